//! More calls wait for a provider that is ill than there is room for.

use std::{sync::Arc, time::Duration};

use steadfast::{
    Dialect,
    sim::{ErrorKind, Fault, FaultPlan},
};
use steadfast_tests::gateway::{ask, in_process::InProcess, model};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

use crate::{asked, failing};

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

/// Two providers, and a route to each.
const ROUTES: &str = r#"
[server]
auth = "none"
[[providers]]
name = "openai"
dialect = "openai"
credentials = ["env:FIRST"]
[[providers]]
name = "google"
dialect = "gemini"
credentials = ["env:SECOND"]
models = { "*" = "gemini-2.5-pro" }
[routes.crowded]
agents = ["crowd"]
chain = ["openai"]
[routes.quiet]
agents = ["quiet"]
chain = ["google"]
[retry]
max_waiting = 8
"#;

/// A route whose provider is down takes no more than its share of the room to wait in: whoever comes by
/// another one still waits, and is answered.
#[tokio::test(start_paused = true)]
async fn a_crowd_on_one_route_leaves_room_to_wait_on_another() {
    let error = || Fault::Error(ErrorKind::ServerError);
    let sims = [
        failing(Dialect::OpenAi, FaultPlan::always(error())),
        failing(Dialect::Gemini, FaultPlan::first(1, error())),
    ];
    let gateway = Arc::new(InProcess::with_file(ROUTES, &sims));
    let send = |agent: &'static str| {
        let gateway = gateway.clone();
        async move {
            let (start, dialect) = (Instant::now(), Dialect::OpenAi);
            let request = ask(dialect, model(dialect), false).header("x-steadfast-agent", agent);
            (gateway.send(&request).await, start.elapsed())
        }
    };
    let mut crowd = JoinSet::new();
    for _ in 0..20 {
        crowd.spawn(send("crowd"));
    }
    // Less than the first wait.
    sleep(Duration::from_millis(100)).await;
    let mut sent_back = 0;
    while let Some(ended) = crowd.try_join_next() {
        let (reply, _) = ended.unwrap();
        assert_eq!(reply.header("x-should-retry"), Some("true"), "{}", reply.text());
        sent_back += 1;
    }
    assert_eq!((crowd.len(), sent_back), (6, 14), "three quarters of what there is");

    let (reply, took) = send("quiet").await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(reply.header("x-steadfast-attempts"), Some("2"));
    assert!(took >= Duration::from_millis(500), "it has waited: {took:?}");
    assert_eq!(asked(&sims[1..]), 2);
    assert!(!crowd.is_empty(), "they wait yet");
    let (reply, took) = send("crowd").await;
    assert_ne!(reply.status, 200);
    assert_eq!(reply.header("x-should-retry"), Some("true"), "{}", reply.text());
    assert_eq!(took, Duration::ZERO, "no more of these");
    for (reply, took) in crowd.join_all().await {
        assert_ne!(reply.status, 200);
        assert!(took > Duration::from_secs(1), "{took:?}");
    }
}
