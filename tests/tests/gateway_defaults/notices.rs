//! What people read when another model answers for want of capacity.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use steadfast::{
    Dialect,
    sim::{ErrorKind, Fault, FaultPlan},
};
use steadfast_tests::gateway::{ask, in_process::InProcess, model};
use tokio::time::sleep;

use crate::failing;

#[tokio::test(start_paused = true)]
async fn whoever_is_answered_by_another_model_for_want_of_capacity_reads_it() {
    let (dialect, other) = (Dialect::Anthropic, Dialect::OpenAi);
    for stream in [false, true] {
        let overloaded = FaultPlan::always(Fault::Error(ErrorKind::Overloaded));
        let sims = [failing(dialect, overloaded), failing(other, FaultPlan::none())];
        let gateway = InProcess::without_file(&sims);
        // Each of a session of its own: one stays where it was answered, and has read it.
        let session = AtomicU32::new(0);
        let send = async || {
            let session = session.fetch_add(1, Ordering::Relaxed).to_string();
            let question = ask(dialect, model(dialect), stream);
            gateway.send(&question.header("x-steadfast-session", &session)).await
        };
        // Those that meet it, and those that go to the other at once.
        for call in 0..6 {
            let reply = send().await;
            let notice = reply.header("x-steadfast-notice").unwrap_or_default();
            assert_eq!(reply.status, 200, "{}", reply.text());
            assert!(
                notice.contains(" answers: the model that was asked for has no capacity"),
                "{call}: {notice}"
            );
        }
        assert!(sims[0].journal().len() < 10, "most have not asked it");
        sims[0].set_faults(FaultPlan::none());
        sleep(Duration::from_secs(120)).await;
        assert_eq!(send().await.header("x-steadfast-notice"), None);

        // Another failure is nobody's business but the operator's.
        sims[0].set_faults(FaultPlan::always(Fault::Error(ErrorKind::ServerError)));
        for _ in 0..4 {
            let reply = send().await;
            assert_eq!((reply.status, reply.header("x-steadfast-notice")), (200, None));
        }
    }
}
