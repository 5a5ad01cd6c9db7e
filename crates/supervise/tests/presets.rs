//! The numbers of the systems that `docs/supervise.md` names, each seen from outside.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::future::{pending, ready};

use common::{Notices, job, steps, watched_by};
use parking_lot::Mutex;
use steadfast_core::Failure;
use steadfast_supervise::{
    Actors, GhostPolicy, GhostSweep, NoticeKind, PostBody, Prompt, RunRegistry, ThreadPost,
    TurnFailure,
};
use steadfast_testkit::{elapsed_ms, ms};
use tokio::time::{Instant, sleep};
use tower::{Service, ServiceExt, service_fn};

#[tokio::test(start_paused = true)]
async fn comis_watchdog() {
    for (max_steps, limit_ms) in [(0, 600_000), (3, 180_000), (10, 600_000), (100, 600_000)] {
        let notices = Notices::default();
        let registry = RunRegistry::in_memory().with_notices(notices.sink());
        let started = Instant::now();
        let run = steps(job(|_| pending()), max_steps);
        let _ = watched_by(&registry).oneshot(run).await.unwrap_err();
        assert_eq!(elapsed_ms(started), ms(limit_ms), "{max_steps} steps");
        sleep(ms(1)).await;
        let kinds: Vec<_> = notices.take().iter().map(|notice| notice.kind).collect();
        assert_eq!(kinds, [NoticeKind::NotInTime]);
    }
}

#[tokio::test(start_paused = true)]
async fn comis_ghosts() {
    let registry = RunRegistry::in_memory();
    let _held = watched_by(&registry).call(steps(job(|_| pending()), 1));
    let sweep = GhostSweep::new(registry, GhostPolicy::default()).unwrap();
    sleep(ms(719_999)).await;
    assert_eq!(sweep.sweep(), 0);
    sleep(ms(1)).await;
    assert_eq!(sweep.sweep(), 1);
}

#[tokio::test(start_paused = true)]
async fn comis_pipeline() {
    static POSTED: Mutex<Vec<(u128, PostBody<()>)>> = Mutex::new(Vec::new());
    let started = Instant::now();
    let turn = service_fn(|_: Prompt<()>| pending::<Result<(), Failure>>());
    let actors = Actors::new(turn, move |post: ThreadPost<()>| {
        POSTED.lock().push((elapsed_ms(started).as_millis(), post.body));
        ready(Ok(()))
    });
    actors.send("a thread", ()).unwrap();
    sleep(ms(700_000)).await;
    assert_eq!(*POSTED.lock(), [(600_000, PostBody::Failed(TurnFailure::Pipeline))]);
}
