//! How a layer learns that a reply has content, and that it is over.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Buf;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::{Failure, IntoFailure, Lease};

/// How a layer learns that a reply of type `R` has content, and that it is over: with [`UntilEnd`], the
/// default, or [`AtOnce`].
///
/// For a reply type of your own, implement it for [`UntilEnd`]:
///
/// ```
/// use std::task::{Context, Poll};
/// use steadfast_core::{BufferLimits, Failure, Lease, Track, UntilEnd};
///
/// /// A download that ends its lease itself.
/// struct Download { lease: Lease }
///
/// impl Track<Download> for UntilEnd {
///     type Tracked = Download;
///     fn track(&self, reply: Download) -> Download {
///         reply
///     }
///     fn poll_content(&self, _: &mut Download, _: BufferLimits, _: &mut Context<'_>) -> Poll<Result<(), Failure>> {
///         Poll::Ready(Ok(()))
///     }
///     fn attach(&self, reply: &mut Download, lease: Lease) {
///         reply.lease = lease;
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not know when a reply of type `{R}` is over",
    label = "the inner service replies with `{R}`",
    note = "if it is a plain value, over as soon as it is there, use the layer with `.at_once()`",
    note = "if it has a stream or a body, `impl Track<{R}> for UntilEnd` says when that is over; \
            `http::Response` and `ChatResponse` have it"
)]
pub trait Track<R> {
    /// The reply, which holds what was read of it first, and a lease.
    type Tracked;

    /// `reply` with an [idle](Lease::idle) lease.
    fn track(&self, reply: R) -> Self::Tracked;

    /// Waits for the first content, so that a reply which fails before it can be replaced unnoticed.
    /// What is read before stays in `reply`, and is delivered first. The wait also ends when `limits`
    /// are exceeded. After an error the reply is over.
    fn poll_content(
        &self,
        reply: &mut Self::Tracked,
        limits: BufferLimits,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Failure>>;

    /// Attaches `lease` to the reply: it ends, fails or is dropped with the body or stream. A reply that can
    /// carry the [log](Lease::log) of its call gets it, when it is enabled.
    fn attach(&self, reply: &mut Self::Tracked, lease: Lease);
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
    /// 64 KiB: a head, pings and empty pieces are a few hundred bytes each. 10 minutes: longer than the
    /// stall limit, which ends streams that hang.
    fn default() -> Self {
        Self { bytes: 64 * 1024, time: Duration::from_secs(600) }
    }
}

/// The reply is over when its body or stream has ended. The default.
#[derive(Clone, Copy, Debug, Default)]
pub struct UntilEnd;

/// The reply is over, and a success, as soon as it arrives: for plain values.
#[derive(Clone, Copy, Debug, Default)]
pub struct AtOnce;

impl<R> Track<R> for AtOnce {
    type Tracked = R;

    #[inline]
    fn track(&self, reply: R) -> R {
        reply
    }

    #[inline]
    fn poll_content(
        &self,
        _: &mut R,
        _: BufferLimits,
        _: &mut Context<'_>,
    ) -> Poll<Result<(), Failure>> {
        Poll::Ready(Ok(()))
    }

    #[inline]
    fn attach(&self, _: &mut R, lease: Lease) {
        lease.success();
    }
}

impl<B: Body> Track<http::Response<B>> for UntilEnd
where
    B::Error: Into<Failure>,
{
    type Tracked = http::Response<TrackedBody<B>>;

    #[inline]
    fn track(&self, reply: http::Response<B>) -> Self::Tracked {
        reply.map(|body| TrackedBody { body, lease: Lease::idle(), ended: false })
    }

    /// Which bytes of a body are content is not known, so it has content from its head on.
    #[inline]
    fn poll_content(
        &self,
        _: &mut Self::Tracked,
        _: BufferLimits,
        _: &mut Context<'_>,
    ) -> Poll<Result<(), Failure>> {
        Poll::Ready(Ok(()))
    }

    /// The log of the call is an extension of the response.
    #[inline]
    fn attach(&self, reply: &mut Self::Tracked, lease: Lease) {
        if lease.log().is_enabled() {
            reply.extensions_mut().insert(lease.log().clone());
        }
        reply.body_mut().attach(lease);
    }
}

pin_project! {
    /// Waits for a reply, which then has the lease until its end.
    #[must_use = "futures do nothing unless polled"]
    pub struct Leased<F, T> {
        #[pin]
        call: F,
        lease: Lease,
        track: T,
    }
}

impl<F, T> Leased<F, T> {
    /// The reply of `call` with `lease`, which fails or is dropped with it.
    #[inline]
    pub fn new(call: F, lease: Lease, track: T) -> Self {
        Self { call, lease, track }
    }
}

impl<F, T, R, E> Future for Leased<F, T>
where
    F: Future<Output = Result<R, E>>,
    E: IntoFailure,
    T: Track<R>,
{
    type Output = Result<T::Tracked, Failure>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let reply = ready!(this.call.poll(cx));
        let lease = this.lease.take();
        Poll::Ready(match reply {
            Ok(reply) => {
                let mut reply = this.track.track(reply);
                this.track.attach(&mut reply, lease);
                Ok(reply)
            }
            Err(error) => {
                let failure = error.into();
                lease.failure(&failure);
                Err(failure)
            }
        })
    }
}

impl<F, T> fmt::Debug for Leased<F, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leased").field("lease", &self.lease).finish_non_exhaustive()
    }
}

pin_project! {
    /// A body with a lease. It ends after its first error.
    pub struct TrackedBody<B> {
        #[pin]
        body: B,
        // Idle once it has ended.
        lease: Lease,
        ended: bool,
    }
}

impl<B: Body> TrackedBody<B> {
    fn attach(&mut self, lease: Lease) {
        // A server never polls a body that is empty from the start.
        if self.body.is_end_stream() {
            lease.success();
        } else {
            self.lease = lease;
        }
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
                this.lease.received(frame.data_ref().map_or(0, Buf::remaining), || None);
                // A reader of a body of known length stops at its last byte.
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
