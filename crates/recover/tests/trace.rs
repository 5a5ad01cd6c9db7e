//! What is traced. Alone in its file: a callsite that another test reaches first, without a
//! subscriber, may stay disabled.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use common::*;
use steadfast_chat::StopReason;
use steadfast_core::Reason;
use steadfast_recover::{ContinuationLayer, StreamResumeLayer};
use steadfast_testkit::CapturedEvents;
use tower::{Layer, ServiceExt};

#[tokio::test(start_paused = true)]
async fn every_action_is_traced_once_by_its_name() {
    let captured = CapturedEvents::default();
    let _guard = tracing::subscriber::set_default(captured.clone());
    let piece = |text: &str, end| stream("a", &[Block::Text(text.into())], 8, true, end);
    let model = Model::new(move |call, request| match call {
        0 => Ok(script(piece("Dropped", StopReason::MaxTokens))),
        1 => Ok(script(piece("Hello ", StopReason::MaxTokens))),
        2 => Ok(broken(&piece("out there", StopReason::EndTurn), 3, fail(Reason::Network))),
        3 => Ok(script(piece(
            &format!("{}e, all", requested_anchor(request).unwrap()),
            StopReason::MaxTokens,
        ))),
        _ => Ok(broken(&piece("!", StopReason::EndTurn), 3, fail(Reason::Safety))),
    });
    let stack = ContinuationLayer::default()
        .with_withhold(true)
        .tune(|policy| policy.continuations = 1)
        .unwrap()
        .layer(StreamResumeLayer::default().layer(model.clone()));
    let got = read(stack.clone().oneshot(recording()).await.unwrap()).await;
    assert_eq!(got.text(), "Hello out there, all");
    assert_eq!(read(stack.oneshot(recording()).await.unwrap()).await.failures.len(), 1);
    let names: Vec<_> =
        captured.take().iter().map(|line| line.split(' ').next().unwrap().to_owned()).collect();
    assert_eq!(
        names,
        [
            "steadfast::recover::escalated",
            "steadfast::recover::continued",
            "steadfast::recover::resuming",
            "steadfast::recover::resumed",
            "steadfast::recover::truncated",
            "steadfast::recover::not_resumed",
        ]
    );
}
