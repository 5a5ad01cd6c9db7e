//! What is traced. Alone in its file: a callsite that another test reaches first, without a subscriber, may stay disabled.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::{
    future::{pending, ready},
    sync::Arc,
};

use common::{Notices, job, watched_by};
use parking_lot::Mutex;
use steadfast_core::{Call, CallContext, Failure, Reason};
use steadfast_supervise::{
    Actors, AgentRun, GhostPolicy, GhostSweep, Prompt, RunRegistry, ThreadKey, ThreadPost,
    record_panics,
};
use steadfast_testkit::{CapturedEvents, ms, secs};
use tokio::time::sleep;
use tower::{ServiceExt, service_fn};

#[derive(Debug, thiserror::Error)]
#[error("outer")]
struct Outer(#[source] Inner);

#[derive(Debug, thiserror::Error)]
#[error("the key sk-ant-a1b2c3d4e5f6a1b2c3d4e5f6 is wrong")]
struct Inner;

/// One test, since the subscriber is the thread's.
#[tokio::test(start_paused = true)]
async fn what_operators_see() {
    record_panics();
    let captured = CapturedEvents::default();
    let _guard = tracing::subscriber::set_default(captured.clone());
    turns(&captured).await;
    runs(&captured).await;
}

async fn turns(captured: &CapturedEvents) {
    let logs = Arc::new(Mutex::new(Vec::new()));
    let seen = logs.clone();
    let service = service_fn(move |prompt: Prompt<&'static str>| {
        seen.lock().push(prompt.context().log.clone());
        async move {
            match prompt.input {
                "panic" => panic!("a bug"),
                "fail" => Err(Failure::new(Reason::Network, "no way").with_source(Outer(Inner))),
                "hang" => pending().await,
                _ => Ok(()),
            }
        }
    });
    let actors = Actors::new(service, |_: ThreadPost<()>| ready(Ok(())));
    let key = ThreadKey::new("t").with_tenant("acme");

    actors.send(key.clone(), "fail").unwrap();
    sleep(ms(1)).await;
    assert_eq!(
        captured.take(),
        [
            "steadfast::supervise::turn_failed tenant=\"acme\" thread=\"t\" prompt=1 kind=\"provider\" \
          reason=\"network\" error=\"network: no way <- outer <- the key [redacted] is wrong\""
        ]
    );

    actors.send(key.clone(), "panic").unwrap();
    sleep(ms(1)).await;
    let events = captured.take();
    assert_eq!(events.len(), 1, "one event");
    let event = &events[0];
    assert!(event.starts_with("steadfast::supervise::turn_failed"), "{event}");
    assert!(
        event.contains("kind=\"unknown\" reason=\"panic\" error=\"panic: a bug, at "),
        "{event}"
    );
    assert!(event.contains("trace.rs:") && event.contains("backtrace="), "{event}");
    assert!(event.contains("what_operators_see") || event.contains("turns"), "{event}");

    let context = CallContext::recording();
    let log = context.log.clone();
    actors.send_with(key.clone(), "hang", context).unwrap();
    sleep(secs(600)).await;
    sleep(ms(1)).await;
    assert_eq!(
        captured.take(),
        ["steadfast::supervise::aborted tenant=\"acme\" thread=\"t\" prompt=3 \
          reason=\"pipeline_timeout\" limit_ms=600000"]
    );
    assert_eq!(log.to_string(), "supervise.aborted timeout 600000ms pipeline_timeout");

    actors.send(key.clone(), "hang").unwrap();
    sleep(ms(1)).await;
    actors.abort(&key).unwrap();
    sleep(secs(301)).await;
    assert_eq!(
        captured.take(),
        [
            "steadfast::supervise::aborted tenant=\"acme\" thread=\"t\" prompt=4 reason=\"by_hand\"",
            "steadfast::supervise::evicted tenant=\"acme\" thread=\"t\"",
        ]
    );
    actors.shutdown(secs(1)).await;
    let refused = actors.send(key, "x").unwrap_err();
    assert_eq!(refused.to_string(), "the service is being restarted; send it again in a moment");
    assert_eq!(
        captured.take(),
        [
            "steadfast::supervise::stopped finished=0 cut=0 dropped=0",
            "steadfast::supervise::refused tenant=\"acme\" thread=\"t\" why=\"stopping\"",
        ]
    );
}

async fn runs(captured: &CapturedEvents) {
    let notices = Notices::default();
    let registry = RunRegistry::in_memory().with_notices(notices.sink());
    let context = CallContext::recording();
    let log = context.log.clone();
    let hang = || job(|_| pending());
    let run = AgentRun::new(hang()).with_id("slow").with_context(context);
    let _ = watched_by(&registry).oneshot(run).await;
    sleep(ms(1)).await;
    assert_eq!(
        captured.take(),
        [
            "steadfast::supervise::watchdog_timeout run=slow limit_ms=600000 elapsed_ms=600000 \
             waited_for_children_ms=0 knob=\"max_run_timeout_ms\"",
            "steadfast::supervise::notice_sent run=slow kind=\"not_in_time\" via=\"direct\"",
        ]
    );
    assert_eq!(log.to_string(), "supervise.watchdog_timeout timeout 600000ms");

    let run = AgentRun::new(job(|_| ready(Ok("done")))).with_id("stuck");
    let stuck = tower::Service::call(&mut watched_by(&registry), run);
    sleep(secs(720)).await;
    GhostSweep::new(registry.clone(), GhostPolicy::default()).unwrap().sweep();
    let _ = stuck.await;
    sleep(ms(1)).await;
    assert_eq!(
        captured.take(),
        [
            "steadfast::supervise::ghost_swept run=stuck age_ms=720000 orphan=false",
            "steadfast::supervise::late_result run=stuck state=\"ghost_sweep\" late=\"completed\"",
            "steadfast::supervise::notice_sent run=stuck kind=\"not_successful\" via=\"direct\"",
        ]
    );
}
