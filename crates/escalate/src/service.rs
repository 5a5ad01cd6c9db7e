//! The service around the inner one.

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use steadfast_chat::{ChatRequest, ChatResponse, Events};
use steadfast_core::{Failure, IntoFailure, Spare, inner_service};
use tower_service::Service;

use crate::{
    events::EscalatedEvents,
    future::ResponseFuture,
    state::{HeldRequests, Settings},
};

/// Holds requests that the inner service has failed; see [`EscalationLayer`](crate::EscalationLayer).
///
/// The first call is made by the inner service, which is ready, and those after a decision by clones of it,
/// polled ready before each.
#[derive(Clone, Debug)]
#[must_use = "services do nothing unless called"]
pub struct Escalation<S> {
    inner: S,
    /// `None`: nothing is held.
    source: Option<Arc<Source<S>>>,
}

/// What a service, its clones and their calls share.
#[derive(Debug)]
pub(crate) struct Source<S> {
    pub(crate) settings: Arc<Settings>,
    pub(crate) requests: Arc<HeldRequests>,
    pub(crate) spare: Spare<S>,
}

inner_service!(Escalation<S>);

impl<S: Clone> Escalation<S> {
    pub(crate) fn new(
        inner: S,
        settings: Option<Arc<Settings>>,
        requests: &Arc<HeldRequests>,
    ) -> Self {
        let source = settings.map(|settings| {
            let spare = Spare::of(&inner);
            Arc::new(Source { settings, requests: requests.clone(), spare })
        });
        Self { inner, source }
    }
}

impl<S, E> Service<ChatRequest> for Escalation<S>
where
    S: Service<ChatRequest, Response = ChatResponse<E>> + Clone,
    S::Error: IntoFailure,
    E: Events + Unpin,
{
    type Response = ChatResponse<EscalatedEvents<E>>;
    type Error = Failure;
    type Future = ResponseFuture<S>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    #[inline]
    fn call(&mut self, request: ChatRequest) -> Self::Future {
        // While it is off no request is cloned.
        let kept = self.source.as_ref().map(|source| (request.clone(), source.clone()));
        ResponseFuture::new(self.inner.call(request), kept)
    }
}
