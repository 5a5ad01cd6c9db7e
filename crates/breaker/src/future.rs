//! The future of a call through a breaker.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use pin_project_lite::pin_project;
use steadfast_core::{
    Failure, Lease, Reason, Target, Track,
    circuit::{OUT_OF_TURN, Refused},
};

pin_project! {
    /// The future of a call through a [`CircuitBreaker`](crate::CircuitBreaker): the inner call's,
    /// or a refusal that is ready at once. Dropping it counts as cancelled: it frees what it held in
    /// the breaker and moves no counter.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<F, T> {
        #[pin]
        state: State<F>,
        track: T,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State<F> {
        Admitted {
            #[pin]
            inner: F,
            lease: Lease,
        },
        Refused { refusal: Refusal },
        Done,
    }
}

/// A call that is not let through: not yet a failure, and so without an allocation.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) refused: Refused,
    /// It is out of turn, and a first attempt would pass.
    pub(crate) turn: bool,
    pub(crate) target: Option<Target>,
}

impl<F, T> ResponseFuture<F, T> {
    #[inline]
    pub(crate) fn admitted(inner: F, lease: Lease, track: T) -> Self {
        Self { state: State::Admitted { inner, lease }, track }
    }

    pub(crate) fn refused(refusal: Refusal, track: T) -> Self {
        Self { state: State::Refused { refusal }, track }
    }
}

impl<F, T, R, E> Future for ResponseFuture<F, T>
where
    F: Future<Output = Result<R, E>>,
    E: Into<Failure>,
    T: Track<R>,
{
    type Output = Result<T::Tracked, Failure>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let failure = match this.state.as_mut().project() {
            StateProjection::Admitted { inner, lease } => {
                // In hand while the inner future runs: should that panic, the lease is dropped while
                // the thread panics. Whoever catches the panic may drop this future later, which
                // would look like a cancellation.
                let held = lease.take();
                match inner.poll(cx) {
                    Poll::Pending => {
                        *lease = held;
                        return Poll::Pending;
                    }
                    Poll::Ready(Ok(reply)) => {
                        this.state.set(State::Done);
                        let mut reply = this.track.track(reply);
                        this.track.attach(&mut reply, held);
                        return Poll::Ready(Ok(reply));
                    }
                    Poll::Ready(Err(error)) => {
                        let failure = error.into();
                        match held.failure_rests(&failure) {
                            true => failure.with_opened_circuit(),
                            false => failure,
                        }
                    }
                }
            }
            StateProjection::Refused { refusal } => refusal.failure(),
            StateProjection::Done => polled_again(),
        };
        this.state.set(State::Done);
        Poll::Ready(Err(failure))
    }
}

impl Refusal {
    fn failure(&mut self) -> Failure {
        let failure = Failure::refused_fixed(
            Reason::CircuitOpen,
            "the circuit breaker is open after failures of this target, which was not asked; \
             come back after the stated wait or go to another target",
        )
        .with_retry_after(Some(self.refused.wait))
        .with_because(self.refused.because)
        .with_evidence("breaker");
        let failure = match self.turn {
            true => failure.with_evidence(OUT_OF_TURN),
            false => failure.with_opened_circuit(),
        };
        match self.target.take() {
            Some(target) => failure.with_target(target),
            None => failure,
        }
    }
}

fn polled_again() -> Failure {
    Failure::refused_fixed(Reason::Unknown, "`ResponseFuture` was polled after it was ready")
}

impl<F, T> fmt::Debug for ResponseFuture<F, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("ResponseFuture");
        match &self.state {
            State::Admitted { lease, .. } => out.field("lease", lease),
            State::Refused { refusal } => out.field("refusal", refusal),
            State::Done => out.field("done", &true),
        };
        out.finish_non_exhaustive()
    }
}
