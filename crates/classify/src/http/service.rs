//! The HTTP service.

use std::task::{Context, Poll, ready};

use http::Response;
use http_body::Body;
use steadfast_core::{BoxError, Call, Failure, IntoBoxError, inner_service};
use tower_service::Service;

use super::{ClassifiedBody, ResponseFuture};
use crate::{Classifier, stream::Judge};

/// Judges the answers of an HTTP service; see [`HttpClassifyLayer`](super::HttpClassifyLayer).
#[derive(Clone, Debug)]
pub struct HttpClassify<S> {
    inner: S,
    classifier: Classifier,
}

inner_service!(HttpClassify<S>);

impl<S> HttpClassify<S> {
    pub(super) fn new(inner: S, classifier: Classifier) -> Self {
        Self { inner, classifier }
    }
}

impl<S, R, B> Service<R> for HttpClassify<S>
where
    S: Service<R, Response = Response<B>>,
    S::Error: IntoBoxError,
    R: Call,
    B: Body + Unpin,
    B::Error: Into<BoxError>,
{
    type Response = Response<ClassifiedBody<B>>;
    type Error = Failure;
    type Future = ResponseFuture<S::Future, B>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        Poll::Ready(
            ready!(self.inner.poll_ready(cx)).map_err(|error| self.classifier.error(error, None)),
        )
    }

    fn call(&mut self, request: R) -> Self::Future {
        let target = request.context().target.clone();
        // Whatever is inside speaks HTTP to a provider, and counts nothing.
        request.context().log.count_attempt();
        let judge = Judge { classifier: self.classifier.clone(), target, window: None };
        ResponseFuture::new(self.inner.call(request), judge)
    }
}
