//! What is traced. Alone in its file: a callsite that another test reaches first, with nobody
//! listening, may stay silent.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use common::{exact, hint, layer, play};
use steadfast_core::Reason;
use steadfast_retry::RetryPolicy;
use steadfast_testkit::{Heard, ask, fail, secs};

#[tokio::test(start_paused = true)]
async fn every_action_is_traced_once_under_its_name() {
    let heard = Heard::default();
    let _listening = tracing::subscriber::set_default(heard.clone());
    let layer = layer(RetryPolicy { nudge: true, ..exact() });
    let request = ask(|context| context.target = Some("openai".into()));
    let script = [Err(fail(Reason::Network)), Err(hint(Reason::RateLimit, secs(99)))];
    assert!(play(&layer, request, script).await.answer.is_err());
    assert!(play(&layer, ask(|_| ()), [Ok("answer")]).await.answer.is_ok());
    assert_eq!(
        heard.take(),
        [
            "steadfast::retry::retried reason=\"network\" retry=1 wait_ms=500 target=openai",
            "steadfast::retry::nudged retry=1",
            "steadfast::retry::gave_up reason=\"rate_limit\" why=\"hint_too_long\" retries=1 \
             hint_ms=99000 target=openai",
        ]
    );
}
