//! When a reply has content, and when it is over.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::{Failure, Lease};

/// How a layer learns that a reply of type `R` has content, and that it is over. A layer is given
/// one of two answers: [`UntilEnd`], the default, or [`AtOnce`].
///
/// For a reply type of your own, implement it for [`UntilEnd`]:
///
/// ```
/// use std::task::{Context, Poll};
/// use steadfast_core::{BufferLimits, Failure, Lease, Track, UntilEnd};
///
/// /// A download that says itself when it is done.
/// struct Download { lease: Lease }
///
/// impl Track<Download> for UntilEnd {
///     type Tracked = Download;
///     type Buffer = ();
///     fn poll_content(&self, _: &mut Download, _: &mut (), _: BufferLimits, _: &mut Context<'_>) -> Poll<Result<(), Failure>> {
///         Poll::Ready(Ok(()))
///     }
///     fn track(&self, _: Download, (): (), lease: Lease) -> Download {
///         Download { lease }
///     }
/// }
/// ```
pub trait Track<R> {
    /// The reply with a lease on it.
    type Tracked;

    /// What was read while waiting for the first content; empty at first.
    type Buffer: Default;

    /// Waits until the first content is there, so that a reply which fails before can be replaced
    /// unnoticed. What is read on the way goes into `buffer`. When `limits` are exceeded the waiting
    /// is over too. After an error the reply is over.
    fn poll_content(
        &self,
        reply: &mut R,
        buffer: &mut Self::Buffer,
        limits: BufferLimits,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Failure>>;

    /// Hands `lease` to the reply: it ends when the body or stream does, fails with it, or is dropped with it.
    /// What is in `buffer` is delivered first.
    fn track(&self, reply: R, buffer: Self::Buffer, lease: Lease) -> Self::Tracked;
}

/// How much of a reply is held back while waiting for its first content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct BufferLimits {
    /// The most to hold back, in bytes.
    pub bytes: usize,
    /// The longest to hold back.
    pub time: Duration,
}

impl Default for BufferLimits {
    /// 64 KiB: a head, pings and empty pieces are a few hundred bytes each. 10 minutes: waiting
    /// costs nothing here, because hung streams are the stall limit's to end, and that is shorter.
    fn default() -> Self {
        Self { bytes: 64 * 1024, time: Duration::from_secs(600) }
    }
}

/// The reply is over when its body or stream has ended. The default.
#[derive(Clone, Copy, Debug, Default)]
pub struct UntilEnd;

/// The reply is over, and a success, as soon as it is there: for plain values.
#[derive(Clone, Copy, Debug, Default)]
pub struct AtOnce;

impl<R> Track<R> for AtOnce {
    type Tracked = R;
    type Buffer = ();

    #[inline]
    fn poll_content(
        &self,
        _: &mut R,
        (): &mut (),
        _: BufferLimits,
        _: &mut Context<'_>,
    ) -> Poll<Result<(), Failure>> {
        Poll::Ready(Ok(()))
    }

    #[inline]
    fn track(&self, reply: R, (): (), lease: Lease) -> R {
        lease.success();
        reply
    }
}

impl<B: Body> Track<http::Response<B>> for UntilEnd
where
    B::Error: Into<Failure>,
{
    type Tracked = http::Response<TrackedBody<B>>;
    type Buffer = ();

    /// A body is bytes: what in it is content, only its reader knows. So it counts from its head.
    #[inline]
    fn poll_content(
        &self,
        _: &mut http::Response<B>,
        (): &mut (),
        _: BufferLimits,
        _: &mut Context<'_>,
    ) -> Poll<Result<(), Failure>> {
        Poll::Ready(Ok(()))
    }

    #[inline]
    fn track(&self, reply: http::Response<B>, (): (), lease: Lease) -> Self::Tracked {
        reply.map(|body| TrackedBody::new(body, lease))
    }
}

pin_project! {
    /// A body with a lease on it. Ends for good after its first error.
    pub struct TrackedBody<B> {
        #[pin]
        body: B,
        // Idle once it has ended.
        lease: Lease,
        ended: bool,
    }
}

impl<B: Body> TrackedBody<B> {
    /// `body`, with `lease` on it.
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
