//! When an answer of a model has content, and when it is over.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use futures_core::Stream;
use steadfast_core::{BufferLimits, Deadline, Failure, Lease, Track, UntilEnd, time::Alarm};

use crate::{ChatResponse, Event, Events};

impl<S: Events + Unpin> Track<ChatResponse<S>> for UntilEnd {
    type Tracked = ChatResponse<TrackedEvents<S>>;

    #[inline]
    fn track(&self, reply: ChatResponse<S>) -> Self::Tracked {
        reply.map_through(|events| TrackedEvents {
            events,
            buffered: Vec::new(),
            timer: None,
            lease: Lease::idle(),
            waited: false,
            exhausted: false,
            delivered: false,
            ended: false,
        })
    }

    fn poll_content(
        &self,
        reply: &mut Self::Tracked,
        limits: BufferLimits,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Failure>> {
        // Otherwise an inner layer has waited for it already.
        if !reply.has_content {
            reply.has_content = ready!(reply.events.poll_fill(limits, cx))?;
        }
        Poll::Ready(Ok(()))
    }

    #[inline]
    fn attach(&self, reply: &mut Self::Tracked, lease: Lease) {
        // A service of a user's own makes its answers without one.
        if lease.log().is_enabled() {
            reply.head.log = lease.log().clone();
        }
        reply.events.lease = lease;
    }
}

/// Events with a lease on them. A failure after content is marked ([`Failure::is_delivered`]). Ends
/// after its first error.
pub struct TrackedEvents<S> {
    events: S,
    /// What was read while waiting for the first content; once that is there, the last one first. Not in place: of all
    /// layers around an answer only the innermost waits, and each moves what is inside it.
    buffered: Vec<Event>,
    /// Armed while there is something to wait for.
    timer: Option<Alarm>,
    /// The wait for the first content is over, whether it came or not.
    waited: bool,
    /// The inner stream has ended, and is not polled again.
    exhausted: bool,
    /// Idle once it has ended.
    lease: Lease,
    /// Content has been passed on.
    delivered: bool,
    ended: bool,
}

impl<S: Events + Unpin> TrackedEvents<S> {
    /// Reads up to the first content, the end or the limits; whether content, or the end, was read.
    fn poll_fill(
        &mut self,
        limits: BufferLimits,
        cx: &mut Context<'_>,
    ) -> Poll<Result<bool, Failure>> {
        if self.waited {
            return Poll::Ready(Ok(false));
        }
        let mut bytes: usize = self.buffered.iter().map(Event::size).sum();
        let has_content = loop {
            match Pin::new(&mut self.events).poll_next(cx) {
                Poll::Ready(Some(Ok(event))) => {
                    let has_content = event.is_content() || event.is_end();
                    bytes += event.size();
                    self.buffered.push(event);
                    if has_content || bytes > limits.bytes {
                        break has_content;
                    }
                }
                Poll::Ready(Some(Err(failure))) => return Poll::Ready(Err(failure)),
                Poll::Ready(None) => {
                    self.exhausted = true;
                    break false;
                }
                Poll::Pending => {
                    let alarm = || Alarm::at(Deadline::after(limits.time).instant());
                    ready!(self.timer.get_or_insert_with(alarm).poll(cx));
                    break false;
                }
            }
        };
        (self.timer, self.waited) = (None, true);
        // `poll_event` pops from the end.
        self.buffered.reverse();
        Poll::Ready(Ok(has_content))
    }

    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Event, Failure>>> {
        if let Some(event) = self.buffered.pop() {
            // A stream may go on for long after its first content.
            if self.buffered.is_empty() {
                self.buffered = Vec::new();
            }
            return Poll::Ready(Some(Ok(event)));
        }
        if self.exhausted {
            return Poll::Ready(None);
        }
        Pin::new(&mut self.events).poll_next(cx)
    }

    fn note(&mut self, event: &Event) {
        self.lease.received(event.frame.as_ref().map_or(0, |frame| frame.bytes.len()), || {
            event.usage().copied()
        });
        if let Some(answer) = self.lease.description() {
            event.describe(answer);
        }
        if !self.delivered && event.is_content() {
            self.delivered = true;
            self.lease.content();
        }
        // A reader may stop at the terminal event without polling again.
        if !self.lease.is_idle() && event.is_end() {
            self.lease.take().success();
        }
    }
}

impl<S: Events + Unpin> Stream for TrackedEvents<S> {
    type Item = Result<Event, Failure>;

    #[inline]
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if this.ended {
            return Poll::Ready(None);
        }
        Poll::Ready(match ready!(this.poll_event(cx)) {
            Some(Ok(event)) => {
                this.note(&event);
                Some(Ok(event))
            }
            Some(Err(failure)) => {
                this.ended = true;
                let failure = if this.delivered { failure.with_delivered() } else { failure };
                this.lease.take().failure(&failure);
                Some(Err(failure))
            }
            None => {
                this.ended = true;
                this.lease.take().success();
                None
            }
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let (low, high) = self.events.size_hint();
        let buffered = self.buffered.len();
        (low.saturating_add(buffered), high.and_then(|high| high.checked_add(buffered)))
    }
}

impl<S> fmt::Debug for TrackedEvents<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrackedEvents")
            .field("buffered", &self.buffered.len())
            .field("lease", &self.lease)
            .finish_non_exhaustive()
    }
}
