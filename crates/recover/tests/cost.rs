//! The allocations of an answer that needs no further call, and bounds of memory.
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
struct ReadyService(Vec<Event>);

impl Service<ChatRequest> for ReadyService {
    type Response = ChatResponse<ReadyEvents>;
    type Error = Failure;
    type Future = std::future::Ready<Result<Self::Response, Failure>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: ChatRequest) -> Self::Future {
        let events = std::mem::take(&mut self.0).into_iter();
        std::future::ready(Ok(ChatResponse::new(Head::new(Dialect::OpenAi), ReadyEvents(events))))
    }
}

struct ReadyEvents(std::vec::IntoIter<Event>);

impl Stream for ReadyEvents {
    type Item = Result<Event, Failure>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready(self.0.next().map(Ok))
    }
}

/// Allocations of reading `events` through `layer`, beyond those of the bare service.
fn more<L>(layer: &L, events: &[Event]) -> u64
where
    L: Layer<ReadyService>,
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
    let bare = once(&mut ReadyService(events.to_vec()));
    once(&mut layer.layer(ReadyService(events.to_vec()))) - bare
}

/// Allocations of one answer after the other, on a thread without buffers of earlier answers.
fn one_by_one<L>(layer: impl Fn() -> L + Send + 'static, answers: Vec<Vec<Event>>) -> Vec<u64>
where
    L: Layer<ReadyService>,
    L::Service: Service<ChatRequest, Error = Failure>,
    <L::Service as Service<ChatRequest>>::Response: Stream<Item = Result<Event, Failure>> + Unpin,
{
    let count = move || answers.iter().map(|events| more(&layer(), events)).collect();
    std::thread::spawn(count).join().unwrap()
}

#[test]
fn a_successful_answer_allocates_only_itself_and_its_text_buffer() {
    let answer = |text: usize, ends| {
        let thought = Block::Thinking("hm ".repeat(999));
        stream("a", &[thought, Block::Text("a".repeat(text))], 9, ends, StopReason::EndTurn)
    };
    // At most once each time the text doubles, from 128 bytes on. A buffer of up to 16 KiB is reused, and
    // then an answer that is no longer allocates nothing.
    let answers = [
        (0, 0, "nothing to keep"),
        (9, 1, "the first buffer"),
        (1_000, 3, "it doubles three times, from 128 bytes"),
        (2_000, 1, "from 1,024 bytes"),
        (16_000, 3, "from 2,048 bytes"),
        (16_000, 0, "the buffer is reused"),
        (100_000, 3, "from 16 KiB"),
        (9, 1, "a buffer above 16 KiB was freed"),
    ];
    for ends in [true, false] {
        let texts: Vec<_> = answers.iter().map(|(text, ..)| answer(*text, ends)).collect();
        for counts in [
            one_by_one(StreamResumeLayer::default, texts.clone()),
            one_by_one(ContinuationLayer::default, texts),
        ] {
            for (count, (text, most, why)) in counts.into_iter().zip(answers) {
                let most = most + 1;
                assert!(count <= most, "{text} bytes: {count} allocations, one for itself, {why}");
            }
        }
    }
}

#[test]
fn the_text_that_is_kept_is_bounded() {
    let mut partial = Partial::new(10_000);
    for _ in 0..2_000 {
        partial.see(&Event::new([Delta::Text { index: 0, text: "twelve chars".into() }]));
    }
    assert_eq!((partial.resume_point(), partial.text()), (ResumePoint::TooLong, ""));
}
