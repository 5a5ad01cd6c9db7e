//! When an answer of a model is over.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use futures_core::Stream;
use steadfast_core::{Failure, Lease, Peek, Track};
use tokio::time::{Instant, Sleep};

use crate::{ChatResponse, Event, Events};

impl<S: Events + Unpin> Track for ChatResponse<S> {
    type Tracked = ChatResponse<TrackedEvents<S>>;
    type Committed = ChatResponse<CommittedEvents<S>>;
    type Look = Look;

    #[inline]
    fn track(self, lease: Lease) -> Self::Tracked {
        let begun = self.begun;
        let mut tracked = self.map(|events| TrackedEvents { events, lease, ended: false });
        // What is added here lets everything through as it comes.
        tracked.begun = begun;
        tracked
    }

    fn poll_content(
        &mut self,
        look: &mut Look,
        peek: Peek,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Failure>> {
        // A layer further in has looked already, and has it at hand.
        if self.begun {
            look.found = true;
            return Poll::Ready(Ok(()));
        }
        look.poll(self, peek, cx)
    }

    #[inline]
    fn commit(self, look: Look, lease: Lease) -> Self::Committed {
        let Look { first, mut more, found, .. } = look;
        more.reverse();
        let (delivered, ended) = (false, false);
        ChatResponse {
            head: self.head,
            events: CommittedEvents { events: self.events, first, more, lease, delivered, ended },
            begun: found,
        }
    }
}

/// Takes note of an event.
#[inline]
fn note_event(event: &Event, lease: &mut Lease) {
    if lease.is_metered()
        && let Some(usage) = event.usage()
    {
        lease.used(usage);
    }
    if lease.awaits_content() && event.is_content() {
        lease.content();
    }
    // Whoever has the terminal event need not ask again.
    if !lease.is_idle() && event.is_end() {
        lease.take().success();
    }
}

/// Takes note of what comes of an answer.
#[inline]
fn note(polled: &Poll<Option<Result<Event, Failure>>>, lease: &mut Lease, ended: &mut bool) {
    match polled {
        Poll::Pending => {}
        Poll::Ready(Some(Ok(event))) => note_event(event, lease),
        Poll::Ready(Some(Err(failure))) => {
            *ended = true;
            lease.take().failure(failure);
        }
        Poll::Ready(None) => {
            *ended = true;
            lease.take().success();
        }
    }
}

/// Events with a lease on them. Ends for good after its first error.
pub struct TrackedEvents<S> {
    events: S,
    /// Idle once it has settled.
    lease: Lease,
    ended: bool,
}

impl<S: Events + Unpin> Stream for TrackedEvents<S> {
    type Item = Result<Event, Failure>;

    #[inline]
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if this.ended {
            return Poll::Ready(None);
        }
        let polled = Pin::new(&mut this.events).poll_next(cx);
        note(&polled, &mut this.lease, &mut this.ended);
        polled
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.events.size_hint()
    }
}

impl<S> fmt::Debug for TrackedEvents<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrackedEvents").field("lease", &self.lease).finish_non_exhaustive()
    }
}

/// What was read of a [`ChatResponse`] while looking for its first content; see
/// [`Track::poll_content`].
#[derive(Default)]
pub struct Look {
    /// The first event, which usually is all: whole answers are one, and so is the first content of
    /// many streams. Needs no memory of its own.
    first: Option<Event>,
    more: Vec<Event>,
    held: usize,
    /// Content is there, or the end.
    found: bool,
    /// Armed when there is something to wait for.
    timer: Option<Pin<Box<Sleep>>>,
}

impl Look {
    fn poll<S: Events + Unpin>(
        &mut self,
        response: &mut ChatResponse<S>,
        peek: Peek,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Failure>> {
        loop {
            match Pin::new(&mut *response).poll_next(cx) {
                Poll::Ready(Some(Ok(event))) => {
                    self.found = event.is_content() || event.is_end();
                    self.held += event.size();
                    if self.first.is_none() {
                        self.first = Some(event);
                    } else {
                        self.more.push(event);
                    }
                    if self.found || self.held > peek.bytes {
                        return Poll::Ready(Ok(()));
                    }
                }
                Poll::Ready(Some(Err(failure))) => return Poll::Ready(Err(failure)),
                Poll::Ready(None) => return Poll::Ready(Ok(())),
                Poll::Pending => {
                    let timer = self
                        .timer
                        .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(far(peek.time))));
                    return timer.as_mut().poll(cx).map(Ok);
                }
            }
        }
    }
}

/// `time` from now; a time too long to represent is a year.
fn far(time: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(time).unwrap_or_else(|| now + Duration::from_secs(31_536_000))
}

impl fmt::Debug for Look {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seen = usize::from(self.first.is_some()) + self.more.len();
        f.debug_struct("Look").field("seen", &seen).finish_non_exhaustive()
    }
}

/// Events of which the first have been looked at, with a lease on them. A failure after content
/// says so ([`Failure::is_delivered`]). Ends for good after its first error.
pub struct CommittedEvents<S> {
    events: S,
    /// What was looked at: the first, and the others with the last one first.
    first: Option<Event>,
    more: Vec<Event>,
    /// Idle once it has settled.
    lease: Lease,
    delivered: bool,
    ended: bool,
}

impl<S> CommittedEvents<S> {
    /// How many events are left of those looked at.
    fn seen(&self) -> usize {
        usize::from(self.first.is_some()) + self.more.len()
    }
}

impl<S: Events + Unpin> Stream for CommittedEvents<S> {
    type Item = Result<Event, Failure>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if this.ended {
            return Poll::Ready(None);
        }
        if let Some(event) = &this.first {
            this.delivered = event.is_content();
            note_event(event, &mut this.lease);
            return Poll::Ready(this.first.take().map(Ok));
        }
        let polled = match this.more.pop() {
            Some(event) => {
                if this.more.is_empty() {
                    // A stream may go on for long.
                    this.more = Vec::new();
                }
                Poll::Ready(Some(Ok(event)))
            }
            None => match Pin::new(&mut this.events).poll_next(cx) {
                Poll::Ready(Some(Err(failure))) if this.delivered => {
                    Poll::Ready(Some(Err(failure.with_delivered())))
                }
                polled => polled,
            },
        };
        if !this.delivered
            && let Poll::Ready(Some(Ok(event))) = &polled
        {
            this.delivered = event.is_content();
        }
        note(&polled, &mut this.lease, &mut this.ended);
        polled
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let (low, high) = self.events.size_hint();
        let seen = self.seen();
        (low.saturating_add(seen), high.and_then(|high| high.checked_add(seen)))
    }
}

impl<S> fmt::Debug for CommittedEvents<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CommittedEvents")
            .field("seen", &self.seen())
            .field("lease", &self.lease)
            .finish_non_exhaustive()
    }
}
