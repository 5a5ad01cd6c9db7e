//! The allocations of a request that fits, for histories of every length.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    future::{Ready, ready},
    pin::Pin,
    task::{Context, Poll, Waker},
};

use allocation_counter::measure;
use steadfast_chat::{ChatRequest, ChatResponse, Delta, Event, Head, Message};
use steadfast_compact::{CompactionLayer, TargetFacts, TokenLimits};
use steadfast_core::{CallContext, Dialect, Failure, Target, Usage};
use tokio_stream::Stream;
use tower::{Layer, Service};

/// Answers at once with heads made before.
#[derive(Clone, Default)]
struct Free(std::sync::Arc<parking_lot::Mutex<Vec<ChatResponse<Pieces>>>>);

/// Events made before.
struct Pieces(std::vec::IntoIter<Event>);

impl Stream for Pieces {
    type Item = Result<Event, Failure>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready(self.0.next().map(Ok))
    }
}

impl Service<ChatRequest> for Free {
    type Response = ChatResponse<Pieces>;
    type Error = Failure;
    type Future = Ready<Result<Self::Response, Failure>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: ChatRequest) -> Self::Future {
        // The request is not this one's cost.
        std::mem::forget(request);
        ready(Ok(self.0.lock().pop().unwrap()))
    }
}

fn answer(input: u64) -> ChatResponse<Pieces> {
    let piece = |at| Event::new([Delta::Text { index: 0, text: format!("Sentence {at}. ") }]);
    let mut all: Vec<_> = (0..100).map(piece).collect();
    all.push(Event::new([Delta::Usage(Usage::new(input, 100))]));
    all.push(Event::new([Delta::End]));
    ChatResponse::new(Head::new(Dialect::Anthropic), Pieces(all.into_iter()))
}

fn history(length: usize) -> Vec<Message> {
    (0..length)
        .map(|at| match at % 2 {
            0 => Message::user(format!("question {at}")),
            _ => Message::assistant(format!("answer {at}")),
        })
        .collect()
}

#[test]
fn a_request_that_needs_nothing_allocates_its_first_event_alone() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let _entered = runtime.enter();
    let limits = || TargetFacts::default().with_limits(TokenLimits::new(400_000));
    let session = CallContext::new().with_tenant("t").with_session("s");
    // By the upper bound; counted; and without a name.
    for (length, context) in
        [(9, session.clone()), (9, CallContext::new()), (999, session), (999, CallContext::new())]
    {
        let layer = CompactionLayer::rules_only().with_targets(move |_| limits());
        let free = Free::default();
        let mut service = layer.layer(free.clone());
        let context = context.with_target(Target::new("anthropic").with_model("claude-x"));
        let request = ChatRequest::new(history(length)).with_model("claude-x");
        let request = request.with_context(context);
        for turn in 0..3 {
            free.0.lock().push(answer(9_000));
            let request = request.clone();
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
            assert_eq!(count, 102);
            // The first turn makes the conversation's state. After that one is the upper bound: a layer that has
            // nothing to do allocates nothing but for the events that it waits for.
            if turn > 0 {
                assert_eq!(counted.count_total, 1, "{length} messages, turn {turn}");
            }
        }
    }
}
