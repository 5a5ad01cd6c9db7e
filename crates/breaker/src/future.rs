//! The future of a call through a breaker.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use steadfast_core::{Failure, Lease, Reason, Target, Tracking};

use crate::cell::Refused;

pin_project! {
    /// The future of a call through a [`CircuitBreaker`](crate::CircuitBreaker): the inner call's,
    /// or a refusal that is ready at once. Dropping it tells the breaker nothing but frees what it
    /// held there.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<F, T> {
        #[pin]
        state: State<F>,
        tracking: T,
    }
}

pin_project! {
    #[project = Projected]
    enum State<F> {
        Admitted {
            #[pin]
            inner: F,
            // `None` once it has been handed to the reply, or told of the failure.
            lease: Option<Lease>,
        },
        Refused { refusal: Option<Refusal> },
    }
}

/// A call that is not let through: not yet a failure, and so without an allocation.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) refused: Refused,
    pub(crate) target: Option<Target>,
}

impl<F, T> ResponseFuture<F, T> {
    #[inline]
    pub(crate) fn admitted(inner: F, lease: Lease, tracking: T) -> Self {
        Self { state: State::Admitted { inner, lease: Some(lease) }, tracking }
    }

    pub(crate) fn refused(refusal: Refusal, tracking: T) -> Self {
        Self { state: State::Refused { refusal: Some(refusal) }, tracking }
    }
}

impl<F, T, R, E> Future for ResponseFuture<F, T>
where
    F: Future<Output = Result<R, E>>,
    E: Into<Failure>,
    T: Tracking<R>,
{
    type Output = Result<T::Tracked, Failure>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let (inner, lease) = match this.state.project() {
            Projected::Admitted { inner, lease } => (inner, lease),
            Projected::Refused { refusal } => {
                return Poll::Ready(Err(match refusal.take() {
                    Some(refusal) => refusal.into(),
                    None => polled_again(),
                }));
            }
        };
        let mut watch = Watch(Some(lease));
        let polled = inner.poll(cx);
        let lease = watch.0.take();
        let result = ready!(polled);
        let Some(lease) = lease.and_then(Option::take) else {
            return Poll::Ready(Err(polled_again()));
        };
        Poll::Ready(match result {
            Ok(reply) => Ok(this.tracking.track(reply, lease)),
            Err(error) => {
                let failure = error.into();
                lease.failure(&failure);
                Err(failure)
            }
        })
    }
}

/// Settles the lease when it is dropped with it, which is only while a panic of the inner future
/// passes by. Whoever catches the panic may drop the future later, and then nobody could tell that
/// from a cancellation.
struct Watch<'a>(Option<&'a mut Option<Lease>>);

impl Drop for Watch<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(lease) = self.0.take() {
            *lease = None;
        }
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        let failure = Failure::refused_fixed(
            Reason::CircuitOpen,
            "the circuit breaker is open after failures of this target, which was not asked; \
             come back after the stated wait or go to another target",
        )
        .with_retry_after(Some(refusal.refused.wait))
        .with_because(refusal.refused.because)
        .with_evidence("breaker");
        match refusal.target {
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
        };
        out.finish_non_exhaustive()
    }
}
