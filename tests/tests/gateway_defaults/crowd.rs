//! More calls wait for a provider that is ill than there is room for.

use std::sync::Arc;

use steadfast::{
    Dialect,
    sim::{ErrorKind, Fault, FaultPlan},
};
use steadfast_tests::gateway::{ask, in_process::InProcess, model};
use tokio::{task::JoinSet, time::Instant};

use crate::failing;

/// Of one route, where there is no other: three quarters of all that may wait.
const ROOM: usize = 768;

/// Nobody waits for those that there is no room for, so their SDKs are asked to do it, as they would without
/// a gateway. Those that were asked again here are not asked again there.
#[tokio::test(start_paused = true)]
async fn who_can_not_wait_here_is_sent_back_to_try_again() {
    let dialect = Dialect::OpenAi;
    let sims = [failing(dialect, FaultPlan::always(Fault::Error(ErrorKind::Overloaded)))];
    let gateway = Arc::new(InProcess::without_file(&sims));
    let start = Instant::now();
    let mut calls = JoinSet::new();
    for _ in 0..ROOM + 100 {
        let gateway = gateway.clone();
        calls.spawn(async move {
            let reply = gateway.send(&ask(dialect, model(dialect), false)).await;
            (start.elapsed(), reply)
        });
    }
    let (mut waited, mut sent_back) = (0, 0);
    for (took, reply) in calls.join_all().await {
        assert_eq!(reply.status, 503, "{}", reply.text());
        match reply.header("x-should-retry") {
            Some("true") => {
                assert!(took.as_secs() < 1, "{took:?}");
                assert_eq!(reply.header("x-steadfast-attempts"), Some("1"));
                sent_back += 1;
            }
            _ => waited += 1,
        }
    }
    assert_eq!((waited, sent_back), (ROOM, 100));
}
