//! One attempt at one target: the call, and then its first content.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use pin_project_lite::pin_project;
use steadfast_core::{BufferLimits, Failure, FirstContent, Lease, Track};

pin_project! {
    /// One attempt at one target, with its lease on that target's health. Dropping it ends the call.
    pub(crate) struct Attempt<F, R, B> {
        #[pin]
        call: FirstContent<F, R, B>,
        candidate: u8,
        // Idle once the outcome is known.
        lease: Lease,
    }
}

/// What an attempt came to: the reply, what was read of it, and the lease that goes with it.
type Answer<R, B> = Result<(R, B, Lease), Failure>;

impl<F, R, B: Default> Attempt<F, R, B> {
    #[inline]
    pub(crate) fn new(call: F, candidate: u8, lease: Lease) -> Self {
        Self { call: FirstContent::new(call), candidate, lease }
    }

    /// Which candidate is asked.
    pub(crate) fn candidate(&self) -> u8 {
        self.candidate
    }

    /// Polls for the first content. A failure has ended the lease when this returns it.
    #[inline]
    pub(crate) fn poll<E, T>(
        self: Pin<&mut Self>,
        track: &T,
        limits: BufferLimits,
        cx: &mut Context<'_>,
    ) -> Poll<Answer<R, B>>
    where
        F: Future<Output = Result<R, E>>,
        E: Into<Failure>,
        T: Track<R, Buffer = B>,
    {
        let this = self.project();
        // In hand while the call runs: should that panic, the lease is dropped while the thread
        // panics, and not later by whoever has caught it.
        let lease = this.lease.take();
        match this.call.poll(track, limits, cx) {
            Poll::Pending => {
                *this.lease = lease;
                Poll::Pending
            }
            Poll::Ready(Ok((reply, buffer))) => Poll::Ready(Ok((reply, buffer, lease))),
            Poll::Ready(Err(failed)) => {
                lease.failure(&failed.failure);
                Poll::Ready(Err(failed.failure))
            }
        }
    }
}

impl<F, R, B> fmt::Debug for Attempt<F, R, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attempt")
            .field("call", &self.call)
            .field("candidate", &self.candidate)
            .finish_non_exhaustive()
    }
}
