//! The service around the inner one.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use steadfast_core::{ChatRequest, ChatResponse, Events, Failure, Reason};
use tower_service::Service;

use super::{events::ResumedEvents, layer::Shared};
use crate::again::Spare;

/// Goes on with streams of the inner service that break; see
/// [`StreamResumeLayer`](crate::StreamResumeLayer).
///
/// The first call is the inner service's, which is ready. Resumes are made by clones of it, polled
/// ready before each.
#[derive(Clone)]
#[must_use = "services do nothing unless called"]
pub struct StreamResume<S> {
    inner: S,
    own: Arc<Own<S>>,
}

/// What a service and its clones have in common.
pub(crate) struct Own<S> {
    pub(crate) shared: Arc<Shared>,
    pub(crate) spare: Spare<S>,
}

impl<S> StreamResume<S> {
    pub(crate) fn new(inner: S, shared: Arc<Shared>) -> Self
    where
        S: Clone,
    {
        let own = Arc::new(Own { shared, spare: Spare::new(&inner) });
        Self { inner, own }
    }

    /// The inner service.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }
}

impl<S, E> Service<ChatRequest> for StreamResume<S>
where
    S: Service<ChatRequest, Response = ChatResponse<E>> + Clone,
    S::Error: Into<Failure>,
    E: Events + Unpin,
{
    type Response = ChatResponse<ResumedEvents<S, E>>;
    type Error = Failure;
    type Future = ResumeFuture<S, S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    #[inline]
    fn call(&mut self, request: ChatRequest) -> Self::Future {
        let kept = Some((request.clone(), self.own.clone()));
        ResumeFuture { call: self.inner.call(request), kept }
    }
}

impl<S: fmt::Debug> fmt::Debug for StreamResume<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamResume")
            .field("inner", &self.inner)
            .field("shared", &self.own.shared)
            .finish()
    }
}

pin_project! {
    /// Waits for the answer to begin. A call that fails before is the affair of the layers inside.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResumeFuture<S, F> {
        #[pin]
        call: F,
        // `None` once ready.
        kept: Option<(ChatRequest, Arc<Own<S>>)>,
    }
}

impl<S, F, E, X> Future for ResumeFuture<S, F>
where
    S: Service<ChatRequest, Response = ChatResponse<E>>,
    F: Future<Output = Result<ChatResponse<E>, X>>,
    X: Into<Failure>,
{
    type Output = Result<ChatResponse<ResumedEvents<S, E>>, Failure>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let reply = ready!(this.call.poll(cx));
        let Some((request, own)) = this.kept.take() else {
            return Poll::Ready(Err(Failure::refused(
                Reason::Unknown,
                "the future of a resumable call was polled after it was ready",
            )));
        };
        Poll::Ready(match reply {
            Ok(reply) => {
                let (target, dialect) = (reply.head.target.clone(), reply.head.dialect);
                let attempts = reply.head.attempts;
                Ok(reply.map(|events| {
                    ResumedEvents::new(events, request, own, target, dialect, attempts)
                }))
            }
            Err(error) => Err(error.into()),
        })
    }
}

impl<S, F> fmt::Debug for ResumeFuture<S, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResumeFuture").field("ready", &self.kept.is_none()).finish_non_exhaustive()
    }
}
