//! The future of a call under time limits.

use std::{
    fmt,
    future::Future,
    marker::PhantomData,
    pin::Pin,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use steadfast_core::{Failure, Reason};

use crate::{Clocks, TimeoutReply};

pin_project! {
    /// Waits for the reply or a limit, whichever is first, and moves the clocks to the reply.
    ///
    /// When a limit fires, the inner call is dropped at once. Dropping this drops the call.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<F, W> {
        #[pin]
        call: Option<F>,
        // Those of the call, or why there is no call; `None` once ready.
        clocks: Option<Result<Clocks, Failure>>,
        reach: PhantomData<fn() -> W>,
    }
}

impl<F, W> ResponseFuture<F, W> {
    #[inline]
    pub(crate) fn new(call: F, clocks: Clocks) -> Self {
        Self { call: Some(call), clocks: Some(Ok(clocks)), reach: PhantomData }
    }

    /// Fails without a call.
    pub(crate) fn refused(failure: Failure) -> Self {
        Self { call: None, clocks: Some(Err(failure)), reach: PhantomData }
    }
}

impl<F, W, R, E> Future for ResponseFuture<F, W>
where
    F: Future<Output = Result<R, E>>,
    E: Into<Failure>,
    R: TimeoutReply<W>,
{
    type Output = Result<R::Limited, Failure>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let (Some(call), Some(Ok(clocks))) = (this.call.as_mut().as_pin_mut(), &mut *this.clocks)
        else {
            return Poll::Ready(Err(match this.clocks.take() {
                Some(Err(refused)) => refused,
                _ => polled_again(),
            }));
        };
        let failure = match call.poll(cx) {
            Poll::Ready(Ok(reply)) => {
                this.call.set(None);
                return Poll::Ready(match this.clocks.take() {
                    Some(Ok(clocks)) => Ok(reply.limited(clocks)),
                    _ => Err(polled_again()),
                });
            }
            Poll::Ready(Err(error)) => error.into(),
            Poll::Pending => ready!(clocks.poll_fired(cx)),
        };
        this.call.set(None);
        *this.clocks = None;
        Poll::Ready(Err(failure))
    }
}

fn polled_again() -> Failure {
    Failure::refused_fixed(
        Reason::Unknown,
        "the future of a limited call was polled after it was ready",
    )
}

impl<F, W> fmt::Debug for ResponseFuture<F, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture")
            .field("over", &self.call.is_none())
            .field("clocks", &self.clocks)
            .finish_non_exhaustive()
    }
}
