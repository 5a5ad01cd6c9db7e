//! One attempt at one target: the call, and then its first content.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use steadfast_core::{Failure, Lease, Peek, Tracking};

pin_project! {
    /// One attempt at one target. Dropping it ends the call and frees its place in the books.
    pub(crate) struct Attempt<F, C> {
        #[pin]
        stage: Stage<F, C>,
        // Which candidate.
        slot: u8,
        // `None` once the outcome is known.
        lease: Option<Lease>,
    }
}

pin_project! {
    #[project = StageProjection]
    enum Stage<F, C> {
        // The target has not answered.
        Calling { #[pin] call: F },
        // It has, but there is no content yet.
        Committing { #[pin] commit: C },
    }
}

/// An attempt's answer: whatever it is, and the place it holds in the books.
pub(crate) type Answer<R> = Result<(R, Lease), Failure>;

impl<F, C> Attempt<F, C> {
    pub(crate) fn new(call: F, slot: u8, lease: Lease) -> Self {
        Self { stage: Stage::Calling { call }, slot, lease: Some(lease) }
    }

    pub(crate) fn slot(&self) -> u8 {
        self.slot
    }

    /// Polls for the first content. A failure has been told to the lease when this returns it.
    pub(crate) fn poll<R, E, T>(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        tracking: &T,
        peek: Peek,
    ) -> Poll<Answer<T::Committed>>
    where
        F: Future<Output = Result<R, E>>,
        E: Into<Failure>,
        T: Tracking<R, Commit = C>,
        C: Future<Output = Result<T::Committed, Failure>>,
    {
        let mut this = self.project();
        let outcome = loop {
            match this.stage.as_mut().project() {
                StageProjection::Calling { call } => match ready!(call.poll(cx)) {
                    Ok(reply) => {
                        let commit = tracking.commit(reply, peek);
                        this.stage.set(Stage::Committing { commit });
                    }
                    Err(error) => break Err(error.into()),
                },
                StageProjection::Committing { commit } => break ready!(commit.poll(cx)),
            }
        };
        let Some(lease) = this.lease.take() else {
            return Poll::Ready(Err(Failure::new(
                steadfast_core::Reason::Unknown,
                "an attempt was polled after its outcome was known",
            )));
        };
        Poll::Ready(match outcome {
            Ok(reply) => Ok((reply, lease)),
            Err(failure) => {
                lease.failure(&failure);
                Err(failure)
            }
        })
    }
}

impl<F, C> fmt::Debug for Attempt<F, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attempt").field("slot", &self.slot).finish_non_exhaustive()
    }
}
