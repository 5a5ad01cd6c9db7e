//! The future of a call under time limits.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use steadfast_core::{Failure, Reason};

use crate::{Clocks, Watching};

pin_project! {
    /// Waits for the reply or a limit, whichever is first, and hands the clocks on to the reply.
    ///
    /// When a limit fires, the call under it is dropped at once. Dropping this drops the call.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<F, W> {
        #[pin]
        call: Option<F>,
        clocks: Option<Clocks>,
        refused: Option<Failure>,
        watching: W,
    }
}

impl<F, W> ResponseFuture<F, W> {
    #[inline]
    pub(crate) fn new(call: F, clocks: Clocks, watching: W) -> Self {
        Self { call: Some(call), clocks: Some(clocks), refused: None, watching }
    }

    /// Fails without a call.
    pub(crate) fn refused(failure: Failure, watching: W) -> Self {
        Self { call: None, clocks: None, refused: Some(failure), watching }
    }
}

impl<F, W, R, E> Future for ResponseFuture<F, W>
where
    F: Future<Output = Result<R, E>>,
    E: Into<Failure>,
    W: Watching<R>,
{
    type Output = Result<W::Watched, Failure>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let (Some(call), true) = (this.call.as_mut().as_pin_mut(), this.clocks.is_some()) else {
            return Poll::Ready(Err(this.refused.take().unwrap_or_else(polled_twice)));
        };
        let result = match call.poll(cx) {
            Poll::Ready(Ok(reply)) => Ok(this.watching.watch(reply, || {
                this.clocks.take().unwrap_or_else(|| unreachable!("they were there just now"))
            })),
            Poll::Ready(Err(error)) => Err(error.into()),
            Poll::Pending => match this.clocks {
                Some(clocks) => Err(ready!(clocks.poll_fired(cx))),
                None => return Poll::Pending,
            },
        };
        this.call.set(None);
        *this.clocks = None;
        Poll::Ready(result)
    }
}

fn polled_twice() -> Failure {
    Failure::refused(Reason::Unknown, "the future of a limited call was polled after it was ready")
}

impl<F, W> fmt::Debug for ResponseFuture<F, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture")
            .field("over", &self.call.is_none())
            .field("clocks", &self.clocks)
            .finish_non_exhaustive()
    }
}
