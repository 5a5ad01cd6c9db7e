//! The services inside the layers: they answer at once and do nothing else.

use std::{
    future::{Ready, ready},
    pin::Pin,
    task::{Context, Poll},
};

use futures_core::Stream;
use steadfast_chat::{ChatResponse, Delta, Event, Head};
use steadfast_core::{Call, CallContext, Dialect, Failure, Reason};
use tower::Service;

/// A request with only a context.
#[derive(Clone, Debug, Default)]
pub(crate) struct BareRequest {
    pub(crate) context: CallContext,
}

impl Call for BareRequest {
    fn context(&self) -> &CallContext {
        &self.context
    }

    fn context_mut(&mut self) -> &mut CallContext {
        &mut self.context
    }
}

/// An answer of so many pieces, and its end.
#[derive(Debug)]
pub(crate) struct Pieces {
    left: Option<u32>,
}

impl Stream for Pieces {
    type Item = Result<Event, Failure>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready(match self.left {
            None => None,
            Some(0) => {
                self.left = None;
                Some(Ok(Event::new([Delta::End])))
            }
            Some(left) => {
                self.left = Some(left - 1);
                // The smallest content: it allocates nothing.
                Some(Ok(Event::new([Delta::Redacted { index: 0, data: String::new() }])))
            }
        })
    }
}

/// Answers with a stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answers {
    pub(crate) pieces: u32,
}

impl Service<BareRequest> for Answers {
    type Response = ChatResponse<Pieces>;
    type Error = Failure;
    type Future = Ready<Result<Self::Response, Failure>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: BareRequest) -> Self::Future {
        let events = Pieces { left: Some(self.pieces) };
        ready(Ok(ChatResponse::new(Head::new(Dialect::OpenAi), events)))
    }
}

/// Answers with a number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Number;

impl Service<BareRequest> for Number {
    type Response = u64;
    type Error = Failure;
    type Future = Ready<Result<u64, Failure>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: BareRequest) -> Self::Future {
        ready(Ok(1))
    }
}

/// Fails every other call, with a static message.
#[derive(Clone, Debug, Default)]
pub(crate) struct EveryOther(std::sync::Arc<std::sync::atomic::AtomicU32>);

impl Service<BareRequest> for EveryOther {
    type Response = u64;
    type Error = Failure;
    type Future = Ready<Result<u64, Failure>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: BareRequest) -> Self::Future {
        let calls = self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        ready(if calls.is_multiple_of(2) {
            Err(Failure::new(Reason::ServerError, "down"))
        } else {
            Ok(1)
        })
    }
}

/// Never ready, for a load shedder.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Busy;

impl Service<BareRequest> for Busy {
    type Response = u64;
    type Error = Failure;
    type Future = Ready<Result<u64, Failure>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        Poll::Pending
    }

    fn call(&mut self, _: BareRequest) -> Self::Future {
        ready(Ok(1))
    }
}
