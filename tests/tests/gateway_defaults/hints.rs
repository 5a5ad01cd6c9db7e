//! A provider that asks for a longer wait than callers have.

use std::time::Duration;

use steadfast::{
    Dialect,
    sim::{Fault, FaultPlan, RateLimit},
};
use steadfast_tests::gateway::{ask, in_process::InProcess, model};
use tokio::time::{Instant, sleep};

use crate::{asked, failing};

/// Nobody waits for it, nobody is refused unasked, and the first call after it lets calls through again is
/// answered, however long the hint was.
#[tokio::test(start_paused = true)]
async fn a_lone_provider_that_asks_for_long_is_asked_once_by_each_call() {
    let dialect = Dialect::Anthropic;
    let sims = [failing(dialect, FaultPlan::always(Fault::rate_limit(RateLimit::after("600"))))];
    let gateway = InProcess::without_file(&sims);
    let question = ask(dialect, model(dialect), false);
    let send = || gateway.send(&question);
    for call in 1..=200 {
        let start = Instant::now();
        let reply = send().await;
        assert_eq!((reply.status, reply.header("retry-after")), (429, Some("600")));
        assert_eq!(reply.header("x-steadfast-reason"), Some("rate_limit"));
        assert_eq!(reply.header("x-should-retry"), Some("false"));
        assert_eq!((start.elapsed(), asked(&sims)), (Duration::ZERO, call));
        sleep(Duration::from_secs(1)).await;
    }
    sims[0].set_faults(FaultPlan::none());
    assert_eq!(send().await.status, 200);
    // Who has just answered is not believed: that wait would be the caller's, and is likely to be wrong.
    sims[0].set_faults(FaultPlan::first(1, Fault::rate_limit(RateLimit::after("600"))));
    let start = Instant::now();
    assert_eq!(send().await.status, 200);
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
}
