//! The future of a call through a breaker.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use steadfast_core::{Failure, Lease, Reason, Target, Tracking};

use crate::{cell::Refused, ticket::Ticket};

pin_project! {
    /// The future of a call through a [`CircuitBreaker`](crate::CircuitBreaker): the inner call's,
    /// or a refusal that is ready at once. Dropping it tells the breaker nothing but frees what it
    /// held there.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<F, K, T>
    where
        K: Clone,
        K: Send,
        K: Sync,
        K: 'static,
    {
        #[pin]
        state: State<F, K>,
        tracking: T,
    }
}

pin_project! {
    #[project = Projected]
    enum State<F, K>
    where
        K: Clone,
        K: Send,
        K: Sync,
        K: 'static,
    {
        Admitted {
            #[pin]
            inner: F,
            // Settled once it has been handed to the reply, or told of the end.
            ticket: Ticket<K>,
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

impl<F, K, T> ResponseFuture<F, K, T>
where
    K: Clone + Send + Sync + 'static,
{
    #[inline]
    pub(crate) fn admitted(inner: F, ticket: Ticket<K>, tracking: T) -> Self {
        Self { state: State::Admitted { inner, ticket }, tracking }
    }

    pub(crate) fn refused(refusal: Refusal, tracking: T) -> Self {
        Self { state: State::Refused { refusal: Some(refusal) }, tracking }
    }
}

impl<F, K, T, R, E> Future for ResponseFuture<F, K, T>
where
    F: Future<Output = Result<R, E>>,
    E: Into<Failure>,
    K: Clone + Send + Sync + 'static,
    T: Tracking<R>,
{
    type Output = Result<T::Tracked, Failure>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let (inner, ticket) = match this.state.project() {
            Projected::Admitted { inner, ticket } => (inner, ticket),
            Projected::Refused { refusal } => {
                return Poll::Ready(Err(match refusal.take() {
                    Some(refusal) => refusal.into(),
                    None => polled_again(),
                }));
            }
        };
        let mut watch = Watch(Some(ticket));
        let polled = inner.poll(cx);
        let ticket = watch.0.take();
        let result = ready!(polled);
        let Some(ticket) = ticket else { return Poll::Ready(Err(polled_again())) };
        Poll::Ready(match result {
            Ok(reply) if T::AT_ONCE => match ticket.succeed() {
                true => Ok(this.tracking.track(reply, Lease::idle())),
                false => Err(polled_again()),
            },
            Ok(reply) => match ticket.lease() {
                Some(lease) => Ok(this.tracking.track(reply, lease)),
                None => Err(polled_again()),
            },
            Err(error) => {
                let failure = error.into();
                ticket.fail(&failure);
                Err(failure)
            }
        })
    }
}

/// Settles the ticket when it is dropped with it, which is only while a panic of the inner future
/// passes by. Whoever catches the panic may drop the future later, and then nobody could tell that
/// from a cancellation.
struct Watch<'a, K: Clone + Send + Sync + 'static>(Option<&'a mut Ticket<K>>);

impl<K: Clone + Send + Sync + 'static> Drop for Watch<'_, K> {
    #[inline]
    fn drop(&mut self) {
        if let Some(ticket) = self.0.take() {
            ticket.abandon();
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

impl<F, K, T> fmt::Debug for ResponseFuture<F, K, T>
where
    K: Clone + Send + Sync + 'static,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("ResponseFuture");
        match &self.state {
            State::Admitted { ticket, .. } => out.field("ticket", ticket),
            State::Refused { refusal } => out.field("refusal", refusal),
        };
        out.finish_non_exhaustive()
    }
}
