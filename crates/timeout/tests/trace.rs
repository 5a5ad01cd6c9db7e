//! What is traced. Alone in its file: a callsite that another test reaches first, without a
//! subscriber, may stay disabled.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use common::{Timed, read, reply, text};
use steadfast_core::Failure;
use steadfast_testkit::{CapturedEvents, PlainRequest, plain_request, secs};
use steadfast_timeout::StallTimeoutLayer;
use tower::{Layer, ServiceExt, service_fn};

#[tokio::test(start_paused = true)]
async fn a_limit_that_fired_is_traced_once_with_its_setting_and_time() {
    let captured = CapturedEvents::default();
    let _guard = tracing::subscriber::set_default(captured.clone());
    let mut events = Some(Timed::new([(secs(5), text("a"))]).hanging());
    let provider = service_fn(move |_: PlainRequest| {
        std::future::ready(Ok::<_, Failure>(reply(events.take().unwrap())))
    });
    let request = plain_request(|context| context.target = Some("openai".into()));
    let layer = StallTimeoutLayer::default();
    let mut answer = layer.layer(provider).oneshot(request).await.unwrap();
    assert!(read(&mut answer).await.1.is_some());
    assert_eq!(
        captured.take(),
        ["steadfast::timeout::fired limit=\"stall\" knob=\"stall_ms\" limit_ms=180000 \
          elapsed_ms=185000 delivered=true target=openai"]
    );
}
