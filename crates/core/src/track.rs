//! When an answer is over.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::{Failure, Lease};

/// A reply whose end comes after its head.
///
/// Implemented for `http::Response`, and for the chat responses of `steadfast-chat`. Replies that are over when they arrive
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
