//! The service around the inner one.

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use steadfast_chat::{ChatRequest, ChatResponse, Events};
use steadfast_core::{Failure, IntoFailure, Spare, inner_service};
use tower_service::Service;

use crate::{
    CompactionHandle, body::CompactionEvents, decide::NextAction, future::ResponseFuture,
    resend::KeptRequest, state::LayerState,
};

/// Keeps conversations inside the window of the model behind it; see
/// [`CompactionLayer`](crate::CompactionLayer).
///
/// The first call is the inner service's, which is ready; one that is compacted first takes that
/// ready service with it. A request that was refused and can be repaired is sent again with a clone,
/// polled ready before.
#[derive(Clone, Debug)]
#[must_use = "services do nothing unless called"]
pub struct Compaction<S> {
    inner: S,
    layer: Arc<LayerState>,
    spare: Spare<S>,
}

inner_service!(Compaction<S>);

impl<S> Compaction<S> {
    pub(crate) fn new(inner: S, layer: Arc<LayerState>) -> Self
    where
        S: Clone,
    {
        let spare = Spare::of(&inner);
        Self { inner, layer, spare }
    }

    /// Shows the layer's state and resets it.
    pub fn handle(&self) -> CompactionHandle {
        CompactionHandle(self.layer.clone())
    }
}

impl<S, E> Service<ChatRequest> for Compaction<S>
where
    S: Service<ChatRequest, Response = ChatResponse<E>, Error: IntoFailure, Future: Send>
        + Clone
        + Send
        + 'static,
    E: Events + Unpin + Send + 'static,
{
    type Response = ChatResponse<CompactionEvents<E>>;
    type Error = Failure;
    type Future = ResponseFuture<S, E>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    #[inline]
    fn call(&mut self, mut request: ChatRequest) -> Self::Future {
        let (layer, spare) = (self.layer.clone(), self.spare.clone());
        match layer.next_action(&mut request, None) {
            NextAction::Send(state) => {
                let kept = KeptRequest { request: request.clone(), state };
                ResponseFuture::calling(layer, spare, kept, self.inner.call(request))
            }
            action => {
                let next = self.inner.clone();
                let ready = std::mem::replace(&mut self.inner, next);
                ResponseFuture::preparing(layer, spare, ready, request, action)
            }
        }
    }
}
