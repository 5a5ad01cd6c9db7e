//! The service around the inner one, the same for both layers.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use steadfast_chat::{ChatRequest, ChatResponse, Events};
use steadfast_core::{Dialect, Failure, Reason, Target};
use tower_service::Service;

use crate::again::Spare;

/// What [`ContinuationLayer`](crate::ContinuationLayer) and
/// [`StreamResumeLayer`](crate::StreamResumeLayer) have in common: answers of the inner service are
/// gone on with by further calls of it. Sealed.
pub trait Recovers: Clone {
    /// The events of an answer that began with the events `E`.
    type Events<S: Service<ChatRequest>, E>;

    #[doc(hidden)]
    fn begin<S: Service<ChatRequest>, E>(events: E, begun: Begun<S, Self>) -> Self::Events<S, E>;
}

/// Goes on with answers of the inner service: a [`Continuation`](crate::Continuation) with those
/// that were cut off, a [`StreamResume`](crate::StreamResume) with those that broke.
///
/// The first call is the inner service's, which is ready. Further calls are made by clones of it,
/// polled ready before each.
#[derive(Clone)]
#[must_use = "services do nothing unless called"]
pub struct Recover<S, L> {
    inner: S,
    own: Arc<Own<S, L>>,
}

/// What a service and its clones have in common.
pub(crate) struct Own<S, L> {
    pub(crate) layer: L,
    pub(crate) spare: Spare<S>,
}

/// An answer that has begun, and what it takes to go on with it.
pub struct Begun<S, L> {
    pub(crate) request: ChatRequest,
    pub(crate) own: Arc<Own<S, L>>,
    /// Who answers, when that is known.
    pub(crate) target: Option<Target>,
    pub(crate) dialect: Dialect,
    /// How often a provider was asked.
    pub(crate) asked: u32,
}

impl<S, L> Recover<S, L> {
    pub(crate) fn new(inner: S, layer: L) -> Self
    where
        S: Clone,
    {
        let own = Arc::new(Own { layer, spare: Spare::new(&inner) });
        Self { inner, own }
    }

    /// The inner service.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }
}

impl<S, E, L> Service<ChatRequest> for Recover<S, L>
where
    S: Service<ChatRequest, Response = ChatResponse<E>> + Clone,
    S::Error: Into<Failure>,
    E: Events + Unpin,
    L: Recovers,
{
    type Response = ChatResponse<L::Events<S, E>>;
    type Error = Failure;
    type Future = RecoverFuture<S, S::Future, L>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    #[inline]
    fn call(&mut self, request: ChatRequest) -> Self::Future {
        let kept = Some((request.clone(), self.own.clone()));
        RecoverFuture { call: self.inner.call(request), kept }
    }
}

impl<S: fmt::Debug, L: fmt::Debug> fmt::Debug for Recover<S, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recover")
            .field("inner", &self.inner)
            .field("layer", &self.own.layer)
            .finish()
    }
}

pin_project! {
    /// Waits for the answer to begin. A call that fails before that is the affair of the layers
    /// inside: its failure is passed on. Dropping it drops the call.
    #[must_use = "futures do nothing unless polled"]
    pub struct RecoverFuture<S, F, L> {
        #[pin]
        call: F,
        // `None` once ready.
        kept: Option<(ChatRequest, Arc<Own<S, L>>)>,
    }
}

impl<S, F, E, X, L> Future for RecoverFuture<S, F, L>
where
    S: Service<ChatRequest, Response = ChatResponse<E>>,
    F: Future<Output = Result<ChatResponse<E>, X>>,
    X: Into<Failure>,
    L: Recovers,
{
    type Output = Result<ChatResponse<L::Events<S, E>>, Failure>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let reply = ready!(this.call.poll(cx));
        let Some((request, own)) = this.kept.take() else {
            return Poll::Ready(Err(Failure::refused_fixed(
                Reason::Unknown,
                "`RecoverFuture` was polled after it was ready",
            )));
        };
        Poll::Ready(match reply {
            Ok(reply) => {
                let (target, dialect) = (reply.head.target.clone(), reply.head.dialect);
                let asked = reply.head.attempts;
                let begun = Begun { request, own, target, dialect, asked };
                Ok(reply.map(|events| L::begin(events, begun)))
            }
            Err(error) => Err(error.into()),
        })
    }
}

impl<S, F, L> fmt::Debug for RecoverFuture<S, F, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecoverFuture").field("ready", &self.kept.is_none()).finish_non_exhaustive()
    }
}

impl<S, L> fmt::Debug for Own<S, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Own").finish_non_exhaustive()
    }
}

impl<S, L> fmt::Debug for Begun<S, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Begun").field("target", &self.target).finish_non_exhaustive()
    }
}
