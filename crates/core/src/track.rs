//! When an answer is over.

use std::{
    fmt,
    future::{self, Future},
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_core::Stream;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use smallvec::SmallVec;
use tokio::time::{Instant, Sleep};

use crate::{ChatResponse, Event, Events, Failure, Lease, Usage};

/// A reply whose end comes after its head.
///
/// Implemented for [`ChatResponse`] and `http::Response`. Replies that are over when they arrive
/// need nothing: layers are told so by [`AtOnce`].
pub trait Track: Sized {
    /// The reply with a lease that settles when it ends.
    type Tracked;

    /// The reply after its first content has come.
    type Committed;

    /// Waits for the first content.
    type Commit: Future<Output = Result<Self::Committed, Failure>>;

    /// Hands `lease` to the reply: it settles when the body or stream ends, fails or is dropped.
    fn track(self, lease: Lease) -> Self::Tracked;

    /// Waits until the first content is there, so that a reply which fails before can be replaced
    /// unnoticed. Nothing is lost: what was read on the way is delivered first. When `peek` is
    /// exceeded the reply is handed on as it is.
    fn commit(self, peek: Peek) -> Self::Commit;
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
    /// See [`Track::Tracked`].
    type Tracked;
    /// See [`Track::Committed`].
    type Committed;
    /// See [`Track::Commit`].
    type Commit: Future<Output = Result<Self::Committed, Failure>>;

    /// See [`Track::track`].
    fn track(&self, reply: R, lease: Lease) -> Self::Tracked;

    /// See [`Track::commit`].
    fn commit(&self, reply: R, peek: Peek) -> Self::Commit;
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
    type Commit = R::Commit;

    fn track(&self, reply: R, lease: Lease) -> R::Tracked {
        reply.track(lease)
    }

    fn commit(&self, reply: R, peek: Peek) -> R::Commit {
        reply.commit(peek)
    }
}

impl<R> Tracking<R> for AtOnce {
    type Tracked = R;
    type Committed = R;
    type Commit = future::Ready<Result<R, Failure>>;

    fn track(&self, reply: R, lease: Lease) -> R {
        lease.success(None);
        reply
    }

    fn commit(&self, reply: R, _: Peek) -> Self::Commit {
        future::ready(Ok(reply))
    }
}

impl<B: Body> Track for http::Response<B>
where
    B::Error: Into<Failure>,
{
    type Tracked = http::Response<TrackedBody<B>>;
    /// A body is bytes: what in it is content, only its reader knows. So it counts from its head.
    type Committed = Self;
    type Commit = future::Ready<Result<Self, Failure>>;

    fn track(self, lease: Lease) -> Self::Tracked {
        self.map(|body| TrackedBody::new(body, lease))
    }

    fn commit(self, _: Peek) -> Self::Commit {
        future::ready(Ok(self))
    }
}

impl<S: Events + Unpin> Track for ChatResponse<S> {
    type Tracked = ChatResponse<TrackedEvents<S>>;
    type Committed = ChatResponse<Peeked<S>>;
    type Commit = Commit<S>;

    fn track(self, lease: Lease) -> Self::Tracked {
        self.map(|events| TrackedEvents {
            events,
            lease: Some(lease),
            usage: Usage::default(),
            ended: false,
        })
    }

    fn commit(self, peek: Peek) -> Self::Commit {
        Commit { response: Some(self), seen: Seen::new(), held: 0, peek, timer: None }
    }
}

pin_project! {
    /// A body with a lease on it. Ends for good after its first error.
    pub struct TrackedBody<B> {
        #[pin]
        body: B,
        lease: Option<Lease>,
        ended: bool,
    }
}

impl<B: Body> TrackedBody<B> {
    /// `body`, whose end settles `lease`.
    pub fn new(body: B, lease: Lease) -> Self {
        let mut this = Self { body, lease: Some(lease), ended: false };
        // A server never polls a body that is empty from the start.
        if this.body.is_end_stream() {
            settle_success(&mut this.lease, None);
        }
        this
    }
}

fn settle_success(lease: &mut Option<Lease>, usage: Option<&Usage>) {
    if let Some(lease) = lease.take() {
        lease.success(usage);
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
                if let Some(lease) = this.lease.as_mut() {
                    lease.content();
                }
                // Whoever reads a body of known length stops at its last byte.
                if this.body.is_end_stream() {
                    settle_success(this.lease, None);
                }
                Some(Ok(frame))
            }
            Some(Err(error)) => {
                *this.ended = true;
                let failure = error.into();
                if let Some(lease) = this.lease.take() {
                    lease.failure(&failure);
                }
                Some(Err(failure))
            }
            None => {
                *this.ended = true;
                settle_success(this.lease, None);
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

/// Events with a lease on them. Ends for good after its first error.
pub struct TrackedEvents<S> {
    events: S,
    lease: Option<Lease>,
    usage: Usage,
    ended: bool,
}

impl<S: Events + Unpin> Stream for TrackedEvents<S> {
    type Item = Result<Event, Failure>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let polled = ready!(Pin::new(&mut self.events).poll_next(cx));
        let this = &mut *self;
        match &polled {
            Some(Ok(event)) => {
                if let Some(usage) = event.usage() {
                    this.usage.update(usage);
                }
                if let Some(lease) = &mut this.lease
                    && event.is_content()
                {
                    lease.content();
                }
                // Whoever has the terminal event need not ask again.
                if event.is_end() {
                    settle_success(&mut this.lease, Some(&this.usage));
                }
            }
            Some(Err(failure)) => {
                this.ended = true;
                if let Some(lease) = this.lease.take() {
                    lease.failure(failure);
                }
            }
            None => {
                this.ended = true;
                settle_success(&mut this.lease, Some(&this.usage));
            }
        }
        Poll::Ready(polled)
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

/// Events that were read before the first content, with it. Whole answers are one event, which
/// needs no memory of its own.
type Seen = SmallVec<[Event; 1]>;

/// Waits for the first content of a [`ChatResponse`]; see [`Track::commit`].
#[must_use = "futures do nothing unless polled"]
pub struct Commit<S> {
    /// `None` once ready.
    response: Option<ChatResponse<S>>,
    seen: Seen,
    held: usize,
    peek: Peek,
    /// Armed when there is something to wait for.
    timer: Option<Pin<Box<Sleep>>>,
}

impl<S: Events + Unpin> Commit<S> {
    fn done(&mut self) -> Poll<Result<ChatResponse<Peeked<S>>, Failure>> {
        let mut seen = std::mem::take(&mut self.seen);
        seen.reverse();
        Poll::Ready(match self.response.take() {
            Some(response) => {
                Ok(response.map(|events| Peeked { seen, events, delivered: false, ended: false }))
            }
            None => {
                Err(Failure::new(crate::Reason::Unknown, "`Commit` was polled after it was ready"))
            }
        })
    }
}

impl<S: Events + Unpin> Future for Commit<S> {
    type Output = Result<ChatResponse<Peeked<S>>, Failure>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        while let Some(response) = &mut this.response {
            match Pin::new(response).poll_next(cx) {
                Poll::Ready(Some(Ok(event))) => {
                    let enough = event.is_content() || event.is_end();
                    this.held += event.size();
                    this.seen.push(event);
                    if enough || this.held > this.peek.bytes {
                        break;
                    }
                }
                Poll::Ready(Some(Err(failure))) => {
                    this.response = None;
                    return Poll::Ready(Err(failure));
                }
                Poll::Ready(None) => break,
                Poll::Pending => {
                    let time = this.peek.time;
                    let timer = this
                        .timer
                        .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(far(time))));
                    ready!(timer.as_mut().poll(cx));
                    break;
                }
            }
        }
        this.done()
    }
}

/// `time` from now; a time too long to represent is a year.
fn far(time: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(time).unwrap_or_else(|| now + Duration::from_secs(31_536_000))
}

impl<S> fmt::Debug for Commit<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Commit").field("seen", &self.seen.len()).finish_non_exhaustive()
    }
}

/// Events of which the first have been looked at. A failure after content says so
/// ([`Failure::is_delivered`]). Ends for good after its first error.
pub struct Peeked<S> {
    /// The last one first.
    seen: Seen,
    events: S,
    delivered: bool,
    ended: bool,
}

impl<S: Events + Unpin> Stream for Peeked<S> {
    type Item = Result<Event, Failure>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        if this.ended {
            return Poll::Ready(None);
        }
        let polled = match this.seen.pop() {
            Some(event) => Some(Ok(event)),
            None => ready!(Pin::new(&mut this.events).poll_next(cx)),
        };
        Poll::Ready(match polled {
            Some(Ok(event)) => {
                this.delivered |= event.is_content();
                Some(Ok(event))
            }
            Some(Err(failure)) => {
                this.ended = true;
                Some(Err(if this.delivered { failure.with_delivered() } else { failure }))
            }
            None => {
                this.ended = true;
                None
            }
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let (low, high) = self.events.size_hint();
        let seen = self.seen.len();
        (low.saturating_add(seen), high.and_then(|high| high.checked_add(seen)))
    }
}

impl<S> fmt::Debug for Peeked<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peeked").field("seen", &self.seen.len()).finish_non_exhaustive()
    }
}
