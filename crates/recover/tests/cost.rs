//! What an answer that needs nothing pays, and what is bounded.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use std::{
    pin::Pin,
    task::{Context, Poll, Waker},
};

use allocation_counter::measure;
use common::{Block, stream};
use futures_util::Stream;
use steadfast_chat::{ChatRequest, ChatResponse, Delta, Event, Head, StopReason};
use steadfast_core::{Dialect, Failure};
use steadfast_recover::{ContinuationLayer, Partial, ResumePoint, StreamResumeLayer};
use tower::{Layer, Service};

/// Answers at once with these events.
#[derive(Clone)]
struct Ready(Vec<Event>);

impl Service<ChatRequest> for Ready {
    type Response = ChatResponse<Given>;
    type Error = Failure;
    type Future = std::future::Ready<Result<Self::Response, Failure>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: ChatRequest) -> Self::Future {
        let events = std::mem::take(&mut self.0).into_iter();
        std::future::ready(Ok(ChatResponse::new(Head::new(Dialect::OpenAi), Given(events))))
    }
}

struct Given(std::vec::IntoIter<Event>);

impl Stream for Given {
    type Item = Result<Event, Failure>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready(self.0.next().map(Ok))
    }
}

/// Allocations of reading `events` through `layer`, beyond those of the bare service.
fn more<L>(layer: &L, events: &[Event]) -> u64
where
    L: Layer<Ready>,
    L::Service: Service<ChatRequest, Error = Failure>,
    <L::Service as Service<ChatRequest>>::Response: Stream<Item = Result<Event, Failure>> + Unpin,
{
    fn once<S>(service: &mut S) -> u64
    where
        S: Service<ChatRequest, Error = Failure>,
        S::Response: Stream<Item = Result<Event, Failure>> + Unpin,
    {
        let request = ChatRequest::user("hi").streaming();
        let counted = measure(|| {
            let mut cx = Context::from_waker(Waker::noop());
            let mut call = Box::pin(service.call(request));
            let Poll::Ready(Ok(mut reply)) = call.as_mut().poll(&mut cx) else { unreachable!() };
            while let Poll::Ready(Some(event)) = Pin::new(&mut reply).poll_next(&mut cx) {
                assert!(event.is_ok());
            }
        });
        counted.count_total
    }
    let bare = once(&mut Ready(events.to_vec()));
    once(&mut layer.layer(Ready(events.to_vec()))) - bare
}

/// Allocations of one answer after the other, on a thread that has no buffers of answers before.
fn one_by_one<L>(layer: impl Fn() -> L + Send + 'static, answers: Vec<Vec<Event>>) -> Vec<u64>
where
    L: Layer<Ready>,
    L::Service: Service<ChatRequest, Error = Failure>,
    <L::Service as Service<ChatRequest>>::Response: Stream<Item = Result<Event, Failure>> + Unpin,
{
    let count = move || answers.iter().map(|events| more(&layer(), events)).collect();
    std::thread::spawn(count).join().unwrap()
}

#[test]
fn an_answer_that_needs_nothing_pays_for_its_text_alone_and_that_once() {
    let answer = |text: usize, ends| {
        let thought = Block::Thinking("hm ".repeat(999));
        stream("a", &[thought, Block::Text("a".repeat(text))], 9, ends, StopReason::EndTurn)
    };
    // At most once each time the text doubles, from 128 bytes on: a buffer is kept for the next answer,
    // unless it is above 16 KiB, and then an answer that is no longer pays nothing.
    let answers = [
        (0, 0, "nothing to keep"),
        (9, 1, "the first buffer"),
        (1_000, 3, "it doubles three times"),
        (2_000, 1, "from 1,024 bytes"),
        (16_000, 3, "from 2,048 bytes"),
        (16_000, 0, "the buffer of the answer before"),
        (100_000, 3, "from 16 KiB"),
        (9, 1, "a buffer above 16 KiB was given back"),
    ];
    for ends in [true, false] {
        let texts: Vec<_> = answers.iter().map(|(text, ..)| answer(*text, ends)).collect();
        for paid in [
            one_by_one(StreamResumeLayer::default, texts.clone()),
            one_by_one(ContinuationLayer::default, texts),
        ] {
            for (paid, (text, most, why)) in paid.into_iter().zip(answers) {
                assert!(paid <= most, "{text} bytes: {paid} allocations, {most} for {why}");
            }
        }
    }
}

#[test]
fn what_is_kept_is_bounded() {
    let mut partial = Partial::new(10_000);
    for _ in 0..2_000 {
        partial.see(&Event::new([Delta::Text { index: 0, text: "twelve chars".into() }]));
    }
    assert_eq!((partial.resume_point(), partial.text()), (ResumePoint::TooLong, ""));
}
