//! Requests and replies, and a mock service.
#![allow(dead_code, reason = "each test file uses a part")]

use std::{
    collections::VecDeque,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::Frame;
use steadfast_breaker::BreakerPolicy;
use steadfast_core::circuit::LonePolicy;
use steadfast_core::{CallContext, Failure, Reason, Target};
pub(crate) use steadfast_testkit::{PlainRequest, secs};
use tower_test::mock;

/// A plain value.
pub(crate) type Reply = &'static str;

pub(crate) type Mock = mock::Mock<PlainRequest, Reply>;
pub(crate) type MockHandle = mock::Handle<PlainRequest, Reply>;

/// A request to a target, with one alternative.
pub(crate) fn request(target: &Target) -> PlainRequest {
    let mut context = CallContext::recording().with_target(target.clone());
    context.alternatives = 1;
    PlainRequest { context, text: "?", ..PlainRequest::default() }
}

pub(crate) fn openai() -> Target {
    Target::new("openai").with_model("gpt-4o").with_credential("main")
}

/// One failure opens it, for half a minute.
pub(crate) fn sensitive() -> BreakerPolicy {
    BreakerPolicy { consecutive: Some(1), ..BreakerPolicy::default() }
}

/// The same, without lone calls.
pub(crate) fn strict() -> BreakerPolicy {
    BreakerPolicy { lone: None::<LonePolicy>, ..sensitive() }
}

pub(crate) fn network() -> Failure {
    Failure::new(Reason::Network, "connection reset")
}

/// A mock that is ready for many calls.
pub(crate) fn mock() -> (Mock, MockHandle) {
    let (mock, mut provider) = mock::pair();
    provider.allow(1_000);
    (mock, provider)
}

/// A scripted body, which is pending for ever after its last step.
#[derive(Debug, Default)]
pub(crate) struct Script(VecDeque<Option<Result<Bytes, Failure>>>);

impl Script {
    pub(crate) fn new(
        steps: impl IntoIterator<Item = Option<Result<&'static str, Failure>>>,
    ) -> Self {
        Self(steps.into_iter().map(|step| step.map(|step| step.map(Bytes::from))).collect())
    }
}

impl http_body::Body for Script {
    type Data = Bytes;
    type Error = Failure;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Failure>>> {
        match self.0.pop_front() {
            Some(step) => Poll::Ready(step.map(|step| step.map(Frame::data))),
            None => Poll::Pending,
        }
    }
}
