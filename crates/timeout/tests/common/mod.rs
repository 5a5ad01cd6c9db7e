//! A request of somebody else's type, streams that follow a timetable, and a listener.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_types,
    reason = "tests; each file uses its part"
)]

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::{Arc, Mutex as StdMutex},
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_core::Stream;
use steadfast_core::{
    Call, CallContext, ChatResponse, Delta, Dialect, Event, Failure, Head, Reason,
};
use tokio::time::{Instant, Sleep};

#[derive(Clone, Debug, Default)]
pub struct Ask {
    pub context: CallContext,
}

impl Call for Ask {
    fn context(&self) -> &CallContext {
        &self.context
    }

    fn context_mut(&mut self) -> &mut CallContext {
        &mut self.context
    }
}

pub fn ask(change: impl FnOnce(&mut CallContext)) -> Ask {
    let mut ask = Ask::default();
    change(&mut ask.context);
    ask
}

pub const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

pub const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Timers fire on whole milliseconds, at or after their time.
pub fn whole(since: Instant) -> Duration {
    ms(u64::try_from(since.elapsed().as_millis()).unwrap())
}

/// Gives each item so long after the one before; after the last it hangs or ends.
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
    let mut said = String::new();
    while let Some(item) = next(stream).await {
        match item {
            Ok(event) => {
                for delta in &event.deltas {
                    if let Delta::Text { text, .. } = delta {
                        said.push_str(text);
                    }
                }
            }
            Err(failure) => return (said, Some(failure)),
        }
    }
    (said, None)
}

/// Names and fields of the events of `tracing` on this thread.
#[derive(Clone, Default)]
pub struct Heard(pub Arc<StdMutex<Vec<String>>>);

impl tracing::Subscriber for Heard {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        struct Fields(String);
        impl tracing::field::Visit for Fields {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                if field.name() != "message" {
                    self.0 += &format!(" {}={value:?}", field.name());
                }
            }
        }
        let mut fields = Fields(event.metadata().name().to_owned());
        event.record(&mut fields);
        self.0.lock().unwrap().push(fields.0);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}
