//! The allocations of a request that is not stopped or advised.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    future::{Ready, ready},
    pin::Pin,
    task::{Context, Poll, Waker},
};

use allocation_counter::measure;
use steadfast_chat::{ChatRequest, ChatResponse, Delta, Event, Head, Message};
use steadfast_core::{CallContext, Dialect, Failure};
use steadfast_guard::SafetyGuardLayer;
use tokio_stream::Stream;
use tower::{Layer, Service};

/// Answers at once with a response made before.
struct ReadyService(Option<ChatResponse<ReadyEvents>>);

/// Events made before.
struct ReadyEvents(std::vec::IntoIter<Event>);

impl Stream for ReadyEvents {
    type Item = Result<Event, Failure>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready(self.0.next().map(Ok))
    }
}

impl Service<ChatRequest> for ReadyService {
    type Response = ChatResponse<ReadyEvents>;
    type Error = Failure;
    type Future = Ready<Result<Self::Response, Failure>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: ChatRequest) -> Self::Future {
        // Dropping the request is not counted.
        std::mem::forget(request);
        ready(Ok(self.0.take().unwrap()))
    }
}

fn pieces() -> Vec<Event> {
    let piece = |at| {
        let text = format!("Sentence {at} is as long as sentences are. ");
        Event::new([Delta::Text { index: 0, text }])
    };
    let mut all: Vec<_> = (0..300).map(piece).collect();
    all.push(Event::new([Delta::End]));
    all
}

#[test]
fn a_request_without_calls_allocates_nothing() {
    let chat = ChatRequest::new(vec![
        Message::user("hi"),
        Message::assistant("hello"),
        Message::user("what is the time?"),
    ]);
    let task = CallContext::new().with_task("t");
    let session = CallContext::new().with_session("s");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    let _entered = runtime.enter();
    for context in [CallContext::new(), task, session] {
        let layer = SafetyGuardLayer::default();
        for _ in 0..2 {
            let answer =
                ChatResponse::new(Head::new(Dialect::OpenAi), ReadyEvents(pieces().into_iter()));
            let mut service = layer.layer(ReadyService(Some(answer)));
            let request = chat.clone().with_context(context.clone());
            let known = layer.guard().snapshot().len() == 1;
            let mut count = 0;
            let counted = measure(|| {
                let mut cx = Context::from_waker(Waker::noop());
                let mut future = std::pin::pin!(service.call(request));
                let Poll::Ready(Ok(mut answer)) = future.as_mut().poll(&mut cx) else {
                    unreachable!("it answers at once")
                };
                while let Poll::Ready(Some(event)) = Pin::new(&mut answer).poll_next(&mut cx) {
                    count += event.unwrap().deltas.len();
                }
            });
            assert_eq!(count, 301);
            if context.task().is_none() && context.session().is_none() || known {
                // The success path of a layer makes no allocations.
                assert_eq!(counted.count_total, 0, "{context:?}");
            }
        }
    }
}
