//! Somebody else's request and reply, and a service driven by hand.
#![allow(dead_code, reason = "each test file uses a part")]

use std::{
    collections::VecDeque,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http_body::Frame;
use steadfast_breaker::BreakerPolicy;
use steadfast_core::circuit::LonePolicy;
use steadfast_core::{Call, CallContext, Failure, Reason, Target};
use tower_test::mock;

/// Somebody's own request.
#[derive(Clone, Debug)]
pub(crate) struct Ask(pub(crate) &'static str, pub(crate) CallContext);

impl Call for Ask {
    fn context(&self) -> &CallContext {
        &self.1
    }
    fn context_mut(&mut self) -> &mut CallContext {
        &mut self.1
    }
}

/// Somebody's own reply, over when it is there.
pub(crate) type Reply = &'static str;

pub(crate) type Mock = mock::Mock<Ask, Reply>;
pub(crate) type Hand = mock::Handle<Ask, Reply>;

/// A question to a target that has `alternatives`.
pub(crate) fn ask(target: &Target) -> Ask {
    let mut context = CallContext::recording().with_target(target.clone());
    context.alternatives = 1;
    Ask("?", context)
}

pub(crate) fn openai() -> Target {
    Target::new("openai").with_model("gpt-4o").with_credential("main")
}

pub(crate) fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// One failure opens it, for half a minute; no jitter.
pub(crate) fn touchy() -> BreakerPolicy {
    BreakerPolicy { consecutive: Some(1), ..BreakerPolicy::default() }
}

/// The same, where nobody is ever alone.
pub(crate) fn strict() -> BreakerPolicy {
    BreakerPolicy { lone: None::<LonePolicy>, ..touchy() }
}

pub(crate) fn network() -> Failure {
    Failure::new(Reason::Network, "connection reset")
}

/// Lets the mock take as many calls as come, and counts nothing.
pub(crate) fn mock() -> (Mock, Hand) {
    let (mock, mut hand) = mock::pair();
    hand.allow(1_000);
    (mock, hand)
}

/// A body that says what it was told to, and hangs when it has nothing more to say.
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
