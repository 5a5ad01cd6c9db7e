//! When an answer of a model has content, and when it is over.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_core::Stream;
use smallvec::SmallVec;
use steadfast_core::{BufferLimits, Failure, Lease, Track, UntilEnd};
use tokio::time::{Instant, Sleep};

use crate::{ChatResponse, Event, Events};

impl<S: Events + Unpin> Track<ChatResponse<S>> for UntilEnd {
    type Tracked = ChatResponse<TrackedEvents<S>>;
    type Buffer = ContentBuffer;

    fn poll_content(
        &self,
        reply: &mut ChatResponse<S>,
        buffer: &mut ContentBuffer,
        limits: BufferLimits,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Failure>> {
        // A layer further in has waited for it already, and has it at hand.
        if reply.has_content {
            return Poll::Ready(Ok(()));
        }
        buffer.poll_fill(reply, limits, cx)
    }

    #[inline]
    fn track(&self, reply: ChatResponse<S>, buffer: ContentBuffer, lease: Lease) -> Self::Tracked {
        let has_content = reply.has_content || buffer.has_content;
        // Delivered from the end.
        let mut buffered = buffer.events;
        buffered.reverse();
        let mut tracked = reply.map(|events| TrackedEvents {
            events,
            buffered,
            lease,
            delivered: false,
            ended: false,
        });
        tracked.has_content = has_content;
        tracked
    }
}

/// What was read of an answer while waiting for its first content. Up to one event, as most answers
/// have, needs no memory of its own.
#[derive(Default)]
pub struct ContentBuffer {
    events: SmallVec<[Event; 1]>,
    bytes: usize,
    /// Content is there, or the end.
    has_content: bool,
    /// Armed when there is something to wait for.
    timer: Option<Pin<Box<Sleep>>>,
}

impl ContentBuffer {
    fn poll_fill<S: Events + Unpin>(
        &mut self,
        response: &mut ChatResponse<S>,
        limits: BufferLimits,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Failure>> {
        loop {
            match Pin::new(&mut *response).poll_next(cx) {
                Poll::Ready(Some(Ok(event))) => {
                    self.has_content = event.is_content() || event.is_end();
                    self.bytes += event.size();
                    self.events.push(event);
                    if self.has_content || self.bytes > limits.bytes {
                        return Poll::Ready(Ok(()));
                    }
                }
                Poll::Ready(Some(Err(failure))) => return Poll::Ready(Err(failure)),
                Poll::Ready(None) => return Poll::Ready(Ok(())),
                Poll::Pending => {
                    let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(limits.time)));
                    return timer.as_mut().poll(cx).map(Ok);
                }
            }
        }
    }
}

/// A time too long to represent is a year.
fn sleep(time: Duration) -> Sleep {
    let now = Instant::now();
    let at = now.checked_add(time).unwrap_or_else(|| now + Duration::from_secs(31_536_000));
    tokio::time::sleep_until(at)
}

impl fmt::Debug for ContentBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ContentBuffer")
            .field("events", &self.events.len())
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

/// Events with a lease on them. A failure after content says so ([`Failure::is_delivered`]). Ends for
/// good after its first error.
pub struct TrackedEvents<S> {
    events: S,
    /// What was read while waiting for the first content, the last one first.
    buffered: SmallVec<[Event; 1]>,
    /// Idle once it has ended.
    lease: Lease,
    /// Content has been handed on.
    delivered: bool,
    ended: bool,
}

impl<S: Events + Unpin> TrackedEvents<S> {
    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Event, Failure>>> {
        match self.buffered.pop() {
            Some(event) => {
                // A stream may go on for long after its first content.
                if self.buffered.is_empty() && self.buffered.spilled() {
                    self.buffered = SmallVec::new();
                }
                Poll::Ready(Some(Ok(event)))
            }
            None => Pin::new(&mut self.events).poll_next(cx),
        }
    }

    fn note(&mut self, event: &Event) {
        if !self.delivered && event.is_content() {
            self.delivered = true;
            self.lease.content();
        }
        // Whoever has the terminal event need not ask again.
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
