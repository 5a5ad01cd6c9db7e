//! The chat service.

use std::{
    fmt,
    task::{Context, Poll, ready},
};

use steadfast_core::{Call, Failure, IntoBoxError, inner_service};
use tower_service::Service;

use crate::{Classifier, ClassifyReply, future::ResponseFuture, layer::Windows, stream::Judge};

/// Judges the failures of a service of chats or of embeddings; see [`ClassifyLayer`](crate::ClassifyLayer).
#[derive(Clone)]
pub struct Classify<S> {
    inner: S,
    classifier: Classifier,
    windows: Option<Windows>,
    retry_empty: bool,
}

inner_service!(Classify<S>);

impl<S> Classify<S> {
    pub(crate) fn new(
        inner: S,
        classifier: Classifier,
        windows: Option<Windows>,
        retry_empty: bool,
    ) -> Self {
        Self { inner, classifier, windows, retry_empty }
    }
}

impl<S: fmt::Debug> fmt::Debug for Classify<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Classify")
            .field("inner", &self.inner)
            .field("classifier", &self.classifier)
            .finish_non_exhaustive()
    }
}

impl<S, R> Service<R> for Classify<S>
where
    S: Service<R, Response: ClassifyReply>,
    S::Error: IntoBoxError,
    R: Call,
{
    type Response = <S::Response as ClassifyReply>::Classified;
    type Error = Failure;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        Poll::Ready(
            ready!(self.inner.poll_ready(cx)).map_err(|error| self.classifier.error(error, None)),
        )
    }

    fn call(&mut self, request: R) -> Self::Future {
        let target = request.context().target.clone();
        let window = match (&self.windows, &target) {
            (Some(windows), Some(target)) => windows(target),
            _ => None,
        };
        let judge = Judge { classifier: self.classifier.clone(), target, window };
        // Once: a model that says nothing again has nothing to say.
        let retry_empty = self.retry_empty && request.context().attempts == 0;
        ResponseFuture::new(self.inner.call(request), judge, retry_empty)
    }
}
