//! Streams with scripted times.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests; each file uses its part"
)]

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_core::Stream;
use steadfast_chat::{ChatResponse, Delta, Event, Head};
use steadfast_core::{Dialect, Failure, Reason};
use tokio::time::Sleep;

/// Yields each item after its wait; after the last it hangs or ends.
pub struct Timed<T> {
    items: VecDeque<(Duration, T)>,
    hangs: bool,
    wait: Option<Pin<Box<Sleep>>>,
    /// Held until the stream is dropped.
    pub alive: Arc<()>,
}

impl<T> Timed<T> {
    pub fn new(items: impl IntoIterator<Item = (Duration, T)>) -> Self {
        Self { items: items.into_iter().collect(), hangs: false, wait: None, alive: Arc::default() }
    }

    pub fn hanging(self) -> Self {
        Self { hangs: true, ..self }
    }

    pub fn poll_item(&mut self, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let Some((after, _)) = self.items.front() else {
            return if self.hangs { Poll::Pending } else { Poll::Ready(None) };
        };
        if !after.is_zero() {
            let after = *after;
            let wait = self.wait.get_or_insert_with(|| Box::pin(tokio::time::sleep(after)));
            ready!(wait.as_mut().poll(cx));
        }
        self.wait = None;
        Poll::Ready(self.items.pop_front().map(|(_, item)| item))
    }
}

impl<T> Unpin for Timed<T> {}

impl Stream for Timed<Result<Event, Failure>> {
    type Item = Result<Event, Failure>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_item(cx)
    }
}

pub type Events = Timed<Result<Event, Failure>>;

pub fn reply(events: Events) -> ChatResponse<Events> {
    ChatResponse::new(Head::new(Dialect::OpenAi), events)
}

pub fn text(text: &str) -> Result<Event, Failure> {
    of(Delta::Text { index: 0, text: text.into() })
}

pub fn ping() -> Result<Event, Failure> {
    of(Delta::Ping)
}

pub fn end() -> Result<Event, Failure> {
    of(Delta::End)
}

pub fn of(delta: Delta) -> Result<Event, Failure> {
    Ok(Event::new([delta]))
}

pub fn cut() -> Failure {
    Failure::new(Reason::Network, "cut")
}

/// The next event.
pub async fn next<S: Stream + Unpin>(stream: &mut S) -> Option<S::Item> {
    std::future::poll_fn(|cx| Pin::new(&mut *stream).poll_next(cx)).await
}

/// Everything until the stream ends or fails: the text of it, and the failure.
pub async fn read<S>(stream: &mut S) -> (String, Option<Failure>)
where
    S: Stream<Item = Result<Event, Failure>> + Unpin,
{
    let mut received = String::new();
    while let Some(item) = next(stream).await {
        match item {
            Ok(event) => {
                for delta in &event.deltas {
                    if let Delta::Text { text, .. } = delta {
                        received.push_str(text);
                    }
                }
            }
            Err(failure) => return (received, Some(failure)),
        }
    }
    (received, None)
}
