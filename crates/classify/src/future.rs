//! The future of a chat service, and of one that embeds.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use steadfast_core::{BoxError, Failure, Reason};

use crate::{ClassifyReply, stream::Judge};

pin_project! {
    /// Waits for the answer's head. Dropping it drops the call.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<F> {
        #[pin]
        inner: F,
        // `None` once ready.
        judge: Option<Judge>,
        retry_empty: bool,
    }
}

impl<F> ResponseFuture<F> {
    pub(crate) fn new(inner: F, judge: Judge, retry_empty: bool) -> Self {
        Self { inner, judge: Some(judge), retry_empty }
    }
}

impl<F, R, E> Future for ResponseFuture<F>
where
    F: Future<Output = Result<R, E>>,
    R: ClassifyReply,
    E: Into<BoxError>,
{
    type Output = Result<R::Classified, Failure>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let result = ready!(this.inner.poll(cx));
        let Some(judge) = this.judge.take() else {
            return Poll::Ready(Err(Failure::new(
                Reason::Unknown,
                "`ResponseFuture` was polled after it was ready",
            )));
        };
        Poll::Ready(match result {
            Ok(response) => Ok(response.classified(judge, *this.retry_empty)),
            Err(error) => Err(judge.classifier.error(error, judge.target.as_ref())),
        })
    }
}

impl<F> fmt::Debug for ResponseFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
