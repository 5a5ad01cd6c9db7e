//! One attempt at one target: the call, and then its first content.

use std::{
    fmt,
    future::Future,
    mem,
    pin::Pin,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use steadfast_core::{Failure, Lease, Peek, Reason, Tracking};

pin_project! {
    /// One attempt at one target, and its place in the books. Dropping it ends the call and frees the
    /// place.
    pub(crate) struct Attempt<F, R, L> {
        #[pin]
        stage: Stage<F, R, L>,
        // Which candidate.
        slot: u8,
        // Idle once the outcome is known.
        lease: Lease,
    }
}

pin_project! {
    /// How far an attempt is: the call's future of type `F`, the reply of type `R`, and what has been
    /// read of it.
    #[project = StageProjection]
    pub(crate) enum Stage<F, R, L> {
        // The target has not answered.
        Calling { #[pin] call: F },
        // It has, but there is no content yet. `None` once there is.
        Looking { reply: Option<R>, look: L },
        Over,
    }
}

impl<F, R, L: Default> Stage<F, R, L> {
    /// Polls for the first content.
    #[inline]
    pub(crate) fn poll<E, T>(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        tracking: &T,
        peek: Peek,
    ) -> Poll<Result<(R, L), Failure>>
    where
        F: Future<Output = Result<R, E>>,
        E: Into<Failure>,
        T: Tracking<R, Look = L>,
    {
        match self.as_mut().project() {
            StageProjection::Over => Poll::Ready(Err(polled_again())),
            StageProjection::Calling { call } => match ready!(call.poll(cx)) {
                Ok(mut reply) => {
                    let mut look = L::default();
                    match tracking.poll_content(&mut reply, &mut look, peek, cx) {
                        Poll::Ready(Ok(())) => Poll::Ready(Ok((reply, look))),
                        Poll::Ready(Err(failure)) => Poll::Ready(Err(failure)),
                        Poll::Pending => {
                            self.set(Stage::Looking { reply: Some(reply), look });
                            Poll::Pending
                        }
                    }
                }
                Err(error) => Poll::Ready(Err(error.into())),
            },
            StageProjection::Looking { reply: place, look } => {
                let Some(mut reply) = place.take() else {
                    return Poll::Ready(Err(polled_again()));
                };
                match tracking.poll_content(&mut reply, look, peek, cx) {
                    Poll::Ready(Ok(())) => Poll::Ready(Ok((reply, mem::take(look)))),
                    Poll::Ready(Err(failure)) => Poll::Ready(Err(failure)),
                    Poll::Pending => {
                        *place = Some(reply);
                        Poll::Pending
                    }
                }
            }
        }
    }
}

/// An attempt's answer: the reply, what was read of it, and the place it holds in the books.
pub(crate) type Answer<R, L> = Result<(R, L, Lease), Failure>;

impl<F, R, L: Default> Attempt<F, R, L> {
    pub(crate) fn new(call: F, slot: u8, lease: Lease) -> Self {
        Self { stage: Stage::Calling { call }, slot, lease }
    }

    pub(crate) fn slot(&self) -> u8 {
        self.slot
    }

    /// Polls for the first content. A failure has been told to the lease when this returns it.
    pub(crate) fn poll<E, T>(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        tracking: &T,
        peek: Peek,
    ) -> Poll<Answer<R, L>>
    where
        F: Future<Output = Result<R, E>>,
        E: Into<Failure>,
        T: Tracking<R, Look = L>,
    {
        let this = self.project();
        let answer = ready!(this.stage.poll::<E, T>(cx, tracking, peek));
        let lease = this.lease.take();
        Poll::Ready(match answer {
            Ok((reply, look)) => Ok((reply, look, lease)),
            Err(failure) => {
                lease.failure(&failure);
                Err(failure)
            }
        })
    }
}

impl<F, R, L> fmt::Debug for Attempt<F, R, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attempt").field("slot", &self.slot).finish_non_exhaustive()
    }
}

fn polled_again() -> Failure {
    Failure::refused(Reason::Unknown, "an attempt was polled after its outcome was known")
}
