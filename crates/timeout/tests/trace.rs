//! What is traced. Alone in its file: a callsite that another test reaches first, with nobody
//! listening, may stay silent.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use common::{Timed, read, reply, text};
use steadfast_core::Failure;
use steadfast_testkit::{Ask, Heard, ask, secs};
use steadfast_timeout::StallTimeoutLayer;
use tower::{Layer, ServiceExt, service_fn};

#[tokio::test(start_paused = true)]
async fn what_fired_is_traced_once_with_its_limit_knob_and_time() {
    let heard = Heard::default();
    let _listening = tracing::subscriber::set_default(heard.clone());
    let mut events = Some(Timed::new([(secs(5), text("a"))]).hanging());
    let provider = service_fn(move |_: Ask| {
        std::future::ready(Ok::<_, Failure>(reply(events.take().unwrap())))
    });
    let request = ask(|context| context.target = Some("openai".into()));
    let layer = StallTimeoutLayer::default();
    let mut answer = layer.layer(provider).oneshot(request).await.unwrap();
    assert!(read(&mut answer).await.1.is_some());
    assert_eq!(
        heard.take(),
        ["steadfast::timeout::fired limit=\"stall\" knob=\"stall\" limit_ms=180000 \
          elapsed_ms=185000 delivered=true target=openai"]
    );
}
