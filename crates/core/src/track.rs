//! When an answer is over.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_core::Stream;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tokio::time::{Instant, Sleep};

use crate::{ChatResponse, Event, Events, Failure, Lease};

/// A reply whose end comes after its head.
///
/// Implemented for [`ChatResponse`] and `http::Response`. Replies that are over when they arrive
/// need nothing: layers are told so by [`AtOnce`].
pub trait Track: Sized {
    /// The reply with a lease that settles when it ends.
    type Tracked;

    /// The same, after its first content has come.
    type Committed;

    /// What was read while looking for the first content; empty at first.
    type Look: Default;

    /// Hands `lease` to the reply: it settles when the body or stream ends, fails or is dropped.
    fn track(self, lease: Lease) -> Self::Tracked;

    /// Waits until the first content is there, so that a reply which fails before can be replaced
    /// unnoticed. What is read on the way goes into `look`. When `peek` is exceeded the waiting is
    /// over too. After an error the reply is over.
    fn poll_content(
        &mut self,
        look: &mut Self::Look,
        peek: Peek,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Failure>>;

    /// Hands `lease` to the reply, as [`track`](Self::track) does, after `look` has found its first
    /// content. Nothing is lost: what was read on the way is delivered first.
    fn commit(self, look: Self::Look, lease: Lease) -> Self::Committed;
}

/// How far to look for the first content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peek {
    /// The most to hold back, in bytes.
    pub bytes: usize,
    /// The longest to hold back.
    pub time: Duration,
}

impl Default for Peek {
    /// 64 KiB: a head, pings and empty pieces are a few hundred bytes each. 10 minutes: waiting
    /// costs nothing here, because hung streams are the stall limit's to end, and that is shorter.
    fn default() -> Self {
        Self { bytes: 64 * 1024, time: Duration::from_secs(600) }
    }
}

/// How a layer learns that a reply is over. The two answers are [`UntilEnd`] and [`AtOnce`].
pub trait Tracking<R> {
    /// Whether a reply is over, and a success, as soon as it is there. A layer may then settle its
    /// books itself and hand on an idle lease.
    const AT_ONCE: bool = false;

    /// See [`Track::Tracked`].
    type Tracked;
    /// See [`Track::Committed`].
    type Committed;
    /// See [`Track::Look`].
    type Look: Default;

    /// See [`Track::track`].
    fn track(&self, reply: R, lease: Lease) -> Self::Tracked;

    /// See [`Track::poll_content`].
    fn poll_content(
        &self,
        reply: &mut R,
        look: &mut Self::Look,
        peek: Peek,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Failure>>;

    /// See [`Track::commit`].
    fn commit(&self, reply: R, look: Self::Look, lease: Lease) -> Self::Committed;
}

/// The reply is over when its body or stream has ended. The default.
#[derive(Clone, Copy, Debug, Default)]
pub struct UntilEnd;

/// The reply is over, and a success, as soon as it is there: for plain values.
#[derive(Clone, Copy, Debug, Default)]
pub struct AtOnce;

impl<R: Track> Tracking<R> for UntilEnd {
    type Tracked = R::Tracked;
    type Committed = R::Committed;
    type Look = R::Look;

    #[inline]
    fn track(&self, reply: R, lease: Lease) -> R::Tracked {
        reply.track(lease)
    }

    #[inline]
    fn poll_content(
        &self,
        reply: &mut R,
        look: &mut R::Look,
        peek: Peek,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Failure>> {
        reply.poll_content(look, peek, cx)
    }

    #[inline]
    fn commit(&self, reply: R, look: R::Look, lease: Lease) -> R::Committed {
        reply.commit(look, lease)
    }
}

impl<R> Tracking<R> for AtOnce {
    const AT_ONCE: bool = true;

    type Tracked = R;
    type Committed = R;
    type Look = ();

    #[inline]
    fn track(&self, reply: R, lease: Lease) -> R {
        lease.success();
        reply
    }

    #[inline]
    fn poll_content(
        &self,
        _: &mut R,
        (): &mut (),
        _: Peek,
        _: &mut Context<'_>,
    ) -> Poll<Result<(), Failure>> {
        Poll::Ready(Ok(()))
    }

    #[inline]
    fn commit(&self, reply: R, (): (), lease: Lease) -> R {
        lease.success();
        reply
    }
}

impl<B: Body> Track for http::Response<B>
where
    B::Error: Into<Failure>,
{
    type Tracked = http::Response<TrackedBody<B>>;
    type Committed = Self::Tracked;
    type Look = ();

    #[inline]
    fn track(self, lease: Lease) -> Self::Tracked {
        self.map(|body| TrackedBody::new(body, lease))
    }

    /// A body is bytes: what in it is content, only its reader knows. So it counts from its head.
    #[inline]
    fn poll_content(
        &mut self,
        (): &mut (),
        _: Peek,
        _: &mut Context<'_>,
    ) -> Poll<Result<(), Failure>> {
        Poll::Ready(Ok(()))
    }

    #[inline]
    fn commit(self, (): (), lease: Lease) -> Self::Committed {
        self.track(lease)
    }
}

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

pin_project! {
    /// A body with a lease on it. Ends for good after its first error.
    pub struct TrackedBody<B> {
        #[pin]
        body: B,
        // Idle once it has settled.
        lease: Lease,
        ended: bool,
    }
}

impl<B: Body> TrackedBody<B> {
    /// `body`, whose end settles `lease`.
    #[inline]
    pub fn new(body: B, mut lease: Lease) -> Self {
        // A server never polls a body that is empty from the start.
        if body.is_end_stream() {
            lease.take().success();
        }
        Self { body, lease, ended: false }
    }
}

impl<B: Body> Body for TrackedBody<B>
where
    B::Error: Into<Failure>,
{
    type Data = B::Data;
    type Error = Failure;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, Failure>>> {
        let mut this = self.project();
        if *this.ended {
            return Poll::Ready(None);
        }
        let polled = ready!(this.body.as_mut().poll_frame(cx));
        Poll::Ready(match polled {
            Some(Ok(frame)) => {
                this.lease.content();
                // Whoever reads a body of known length stops at its last byte.
                if this.body.is_end_stream() {
                    this.lease.take().success();
                }
                Some(Ok(frame))
            }
            Some(Err(error)) => {
                *this.ended = true;
                let failure = error.into();
                this.lease.take().failure(&failure);
                Some(Err(failure))
            }
            None => {
                *this.ended = true;
                this.lease.take().success();
                None
            }
        })
    }

    fn is_end_stream(&self) -> bool {
        self.ended || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<B> fmt::Debug for TrackedBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrackedBody").field("lease", &self.lease).finish_non_exhaustive()
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
