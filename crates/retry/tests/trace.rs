//! What is traced. Alone in its file: a callsite that another test reaches first, without a
//! subscriber, may stay disabled.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use common::{exact, hint, layer, run_script};
use steadfast_core::{Failure, Reason};
use steadfast_retry::RetryPolicy;
use steadfast_testkit::{CapturedEvents, fail, plain_request, secs};

#[tokio::test(start_paused = true)]
async fn every_action_is_traced_once_by_its_name() {
    let captured = CapturedEvents::default();
    let _guard = tracing::subscriber::set_default(captured.clone());
    let layer = layer(RetryPolicy { nudge: true, ..exact() });
    let request = plain_request(|context| context.target = Some("openai".into()));
    let script = [Err(fail(Reason::Network)), Err(hint(Reason::RateLimit, secs(99)))];
    assert!(run_script(&layer, request, script).await.answer.is_err());
    assert!(run_script(&layer, plain_request(|_| ()), [Ok("answer")]).await.answer.is_ok());
    let refused = Failure::refused(Reason::CircuitOpen, "open");
    let script = [Err(fail(Reason::Network)), Err(fail(Reason::RateLimit)), Err(refused)];
    assert!(run_script(&layer, plain_request(|_| ()), script).await.answer.is_err());
    assert_eq!(
        captured.take(),
        [
            "steadfast::retry::retried reason=\"network\" retry=1 wait_ms=500 target=openai",
            "steadfast::retry::nudged retry=1",
            "steadfast::retry::gave_up reason=\"rate_limit\" why=\"hint_too_long\" retries=1 \
             hint_ms=99000 target=openai",
            "steadfast::retry::retried reason=\"network\" retry=1 wait_ms=500",
            "steadfast::retry::nudged retry=1",
            "steadfast::retry::retried reason=\"rate_limit\" retry=2 wait_ms=1000",
            // What was refused is no retry.
            "steadfast::retry::gave_up reason=\"rate_limit\" why=\"refused\" retries=1",
        ]
    );
}
