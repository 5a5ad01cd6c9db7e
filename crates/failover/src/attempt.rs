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
    pub(crate) struct Attempt<F, R> {
        #[pin]
        call: FirstContent<F, R>,
        candidate: u8,
        // Idle once the outcome is known.
        lease: Lease,
    }
}

impl<F, R> Attempt<F, R> {
    #[inline]
    pub(crate) fn new(call: F, candidate: u8, lease: Lease) -> Self {
        Self { call: FirstContent::new(call), candidate, lease }
    }

    /// Which candidate is asked.
    pub(crate) fn candidate(&self) -> u8 {
        self.candidate
    }

    /// Polls for the first content. A failure has ended the lease when this returns it; after `Ok`
    /// the reply is to be [taken](Self::finish).
    #[inline]
    pub(crate) fn poll<U, E, T>(
        self: Pin<&mut Self>,
        track: &T,
        limits: BufferLimits,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Failure>>
    where
        F: Future<Output = Result<U, E>>,
        E: Into<Failure>,
        T: Track<U, Tracked = R>,
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
            Poll::Ready(Ok(())) => {
                *this.lease = lease;
                this.lease.content();
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(failed)) => {
                lease.failure(&failed.failure);
                Poll::Ready(Err(failed.failure))
            }
        }
    }

    /// Ends the lease with `failure`, whatever the call comes to.
    pub(crate) fn fail(self: Pin<&mut Self>, failure: &Failure) {
        self.project().lease.take().failure(failure);
    }

    /// The reply whose first content is there, with the lease on it.
    #[inline]
    pub(crate) fn finish<U, E, T>(self: Pin<&mut Self>, track: &T) -> Result<R, Failure>
    where
        F: Future<Output = Result<U, E>>,
        T: Track<U, Tracked = R>,
    {
        let this = self.project();
        this.call.finish(track, this.lease.take())
    }
}

impl<F, R> fmt::Debug for Attempt<F, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attempt")
            .field("call", &self.call)
            .field("candidate", &self.candidate)
            .finish_non_exhaustive()
    }
}
