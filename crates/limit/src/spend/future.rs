//! The future of a call whose spend is observed.

use std::{
    fmt,
    future::Future,
    marker::PhantomData,
    pin::Pin,
    task::{Context, Poll},
};

use pin_project_lite::pin_project;
use steadfast_core::{Failure, Reason};

use crate::{MeteredReply, meter::ReplyMeter};

pin_project! {
    /// The future of a call through a [`SpendLimit`](crate::SpendLimit) or a [`SpendMeter`](crate::SpendMeter).
    /// Dropping it charges what the call may have cost by then.
    #[must_use = "futures do nothing unless polled"]
    pub struct MeteredFuture<F, M, T> {
        #[pin]
        state: State<F, M>,
        reach: PhantomData<fn() -> T>,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State<F, M> {
        Calling { #[pin] inner: F, meter: Option<M> },
        Over { failure: Option<Failure> },
    }
}

impl<F, M, T> MeteredFuture<F, M, T> {
    #[inline]
    pub(crate) const fn calling(inner: F, meter: Option<M>) -> Self {
        Self { state: State::Calling { inner, meter }, reach: PhantomData }
    }

    pub(crate) const fn refused(failure: Failure) -> Self {
        Self { state: State::Over { failure: Some(failure) }, reach: PhantomData }
    }
}

impl<F, M, T, R, E> Future for MeteredFuture<F, M, T>
where
    F: Future<Output = Result<R, E>>,
    E: Into<Failure>,
    M: ReplyMeter,
    R: MeteredReply<Option<M>, T>,
{
    type Output = Result<R::Metered, Failure>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let (polled, mut meter) = match this.state.as_mut().project() {
            StateProjection::Calling { inner, meter } => match inner.poll(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(polled) => (polled, meter.take()),
            },
            StateProjection::Over { failure } => {
                return Poll::Ready(Err(failure.take().unwrap_or_else(polled_again)));
            }
        };
        this.state.set(State::Over { failure: None });
        Poll::Ready(match polled {
            Ok(reply) => Ok(reply.metered(meter)),
            Err(error) => {
                let failure = error.into();
                meter.failure(&failure);
                Err(failure)
            }
        })
    }
}

fn polled_again() -> Failure {
    Failure::refused_fixed(Reason::Unknown, "`MeteredFuture` was polled after it was ready")
}

impl<F, M, T> fmt::Debug for MeteredFuture<F, M, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let over = matches!(self.state, State::Over { .. });
        f.debug_struct("MeteredFuture").field("over", &over).finish_non_exhaustive()
    }
}
