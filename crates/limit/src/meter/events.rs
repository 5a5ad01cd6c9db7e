//! The events of an answer, observed.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use futures_core::Stream;
use steadfast_chat::{ChatResponse, Delta, Event, Events};
use steadfast_core::Failure;

use super::{MeteredReply, ReplyMeter};

impl<S: Events + Unpin, M: ReplyMeter + Unpin> MeteredReply<M> for ChatResponse<S> {
    type Metered = ChatResponse<MeteredEvents<S, M>>;

    fn metered(mut self, mut meter: M) -> Self::Metered {
        if meter.log().is_enabled() {
            self.head.log = meter.log().clone();
        }
        meter.head(self.head.status, self.head.headers.received());
        self.map_through(|events| MeteredEvents { events, meter: Some(meter), ended: false })
    }
}

/// The events of an answer, observed and passed on as they are. Ends after its first error.
pub struct MeteredEvents<S, M> {
    events: S,
    /// `None` once it has ended.
    meter: Option<M>,
    ended: bool,
}

impl<S: Events + Unpin, M: ReplyMeter + Unpin> Stream for MeteredEvents<S, M> {
    type Item = Result<Event, Failure>;

    #[inline]
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if this.ended {
            return Poll::Ready(None);
        }
        let polled = ready!(Pin::new(&mut this.events).poll_next(cx));
        match &polled {
            Some(Ok(event)) => {
                if this.meter.is_some() {
                    this.observe(event);
                }
            }
            Some(Err(failure)) => {
                this.ended = true;
                this.meter.failure(failure);
                this.meter = None;
            }
            None => {
                this.ended = true;
                this.meter.success();
                this.meter = None;
            }
        }
        Poll::Ready(polled)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.events.size_hint()
    }
}

impl<S, M: ReplyMeter> MeteredEvents<S, M> {
    fn observe(&mut self, event: &Event) {
        let mut end = false;
        for delta in &event.deltas {
            match delta {
                Delta::Usage(usage) => self.meter.usage(usage),
                Delta::End => end = true,
                Delta::Text { text, .. } | Delta::Thinking { text, .. } => {
                    self.meter.content(text.len());
                }
                Delta::Arguments { json, .. } => self.meter.content(json.len()),
                _ => {}
            }
        }
        if event.is_content() {
            // Content of another kind, or in the frame alone.
            self.meter.content(0);
        }
        // A reader may stop at the terminal event without polling again.
        if end {
            self.meter.success();
            self.meter = None;
        }
    }
}

impl<S, M> fmt::Debug for MeteredEvents<S, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MeteredEvents").field("over", &self.meter.is_none()).finish_non_exhaustive()
    }
}
