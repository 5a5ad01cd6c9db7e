//! The allocations of a call that succeeds.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    pin::Pin,
    task::{Context, Poll, Waker},
};

use allocation_counter::measure;
use futures_util::Stream;
use http::HeaderValue;
use steadfast_chat::{ChatRequest, ChatResponse, Event, Head};
use steadfast_core::{Dialect, Failure};
use steadfast_escalate::{EscalationLayer, EscalationPolicy};
use tower::{Layer, Service};

/// Answers at once, without events.
#[derive(Clone)]
struct ReadyService;

struct NoEvents;

impl Stream for NoEvents {
    type Item = Result<Event, Failure>;

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready(None)
    }
}

impl Service<ChatRequest> for ReadyService {
    type Response = ChatResponse<NoEvents>;
    type Error = Failure;
    type Future = std::future::Ready<Result<Self::Response, Failure>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: ChatRequest) -> Self::Future {
        std::future::ready(Ok(ChatResponse::new(Head::new(Dialect::OpenAi), NoEvents)))
    }
}

/// Allocations of one call, whose request has a header if it is `forwarding`: a clone of it allocates.
fn allocations<S: Service<ChatRequest, Error = Failure>>(mut service: S, forwarding: bool) -> u64 {
    let mut request = ChatRequest::user("hi");
    if forwarding {
        request.headers.insert("anthropic-beta", HeaderValue::from_static("x"));
    }
    let mut cx = Context::from_waker(Waker::noop());
    assert!(service.poll_ready(&mut cx).is_ready());
    let counted = measure(|| {
        let mut call = std::pin::pin!(service.call(request));
        assert!(call.as_mut().poll(&mut cx).is_ready());
    });
    counted.count_total
}

#[test]
fn a_layer_that_is_off_clones_no_request() {
    let off = EscalationLayer::off();
    let on = EscalationLayer::new(EscalationPolicy::default()).unwrap();
    for forwarding in [false, true] {
        let bare = allocations(ReadyService, forwarding);
        assert_eq!(allocations(off.layer(ReadyService), forwarding), bare);
        let more = allocations(on.layer(ReadyService), forwarding) - bare;
        // The test can fail: one that is on has to keep the headers.
        assert_eq!(more > 0, forwarding, "{more}");
    }
}
