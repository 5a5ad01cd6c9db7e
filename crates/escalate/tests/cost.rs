//! The allocations of a call that succeeds.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use allocation_counter::measure;
use futures_util::Stream;
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

/// Allocations of one call, and how often its request was cloned that the service has got.
fn costs<S: Service<ChatRequest, Error = Failure>>(mut service: S) -> (u64, usize) {
    let mut request = ChatRequest::user("hi");
    // Clones of a request share it.
    let query: Arc<str> = "beta=true".into();
    request.query = Some(query.clone());
    let mut cx = Context::from_waker(Waker::noop());
    assert!(service.poll_ready(&mut cx).is_ready());
    let mut clones = 0;
    let counted = measure(|| {
        let mut call = std::pin::pin!(service.call(request));
        clones = Arc::strong_count(&query) - 1;
        assert!(call.as_mut().poll(&mut cx).is_ready());
    });
    (counted.count_total, clones)
}

#[test]
fn a_layer_that_is_off_clones_no_request() {
    let off = EscalationLayer::off();
    let on = EscalationLayer::new(EscalationPolicy::default()).unwrap();
    let bare = costs(ReadyService);
    assert_eq!(costs(off.layer(ReadyService)), bare);
    let (_, clones) = costs(on.layer(ReadyService));
    // The test can fail: one that is on has to keep the request.
    assert!(clones > bare.1, "{clones}");
}
