//! The service around the inner one.

use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
};

use steadfast_chat::{ChatRequest, ChatResponse, Events};
use steadfast_core::Failure;
use tower_service::Service;

use crate::{
    CompactionHandle,
    course::{Sent, compact_and_send},
    events::CompactionEvents,
    future::ResponseFuture,
    look::{Look, look},
    state::{Own, Shared},
};

/// Keeps conversations inside the window of the model behind it; see
/// [`CompactionLayer`](crate::CompactionLayer).
///
/// The first call is the inner service's, which is ready; one that is compacted first takes that
/// ready service with it. A request that was refused as too large is sent again with a clone, polled
/// ready before.
#[must_use = "services do nothing unless called"]
pub struct Compaction<S> {
    inner: S,
    own: Arc<Own<S>>,
}

impl<S> Compaction<S> {
    pub(crate) fn new(inner: S, shared: Arc<Shared>) -> Self
    where
        S: Clone,
    {
        let own = Arc::new(Own::new(shared, inner.clone()));
        Self { inner, own }
    }

    /// Looks at the layer's state and resets it.
    pub fn handle(&self) -> CompactionHandle {
        CompactionHandle(self.own.shared.clone())
    }

    /// The inner service.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }
}

impl<S, E> Service<ChatRequest> for Compaction<S>
where
    S: Service<ChatRequest, Response = ChatResponse<E>, Error: Into<Failure>, Future: Send>
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
        match look(&self.own, &mut request) {
            Look::Pass(sight) => {
                let sent = Sent::keep(&request, sight);
                ResponseFuture::calling(self.inner.call(request), self.own.clone(), sent)
            }
            Look::Work => {
                let spare = self.inner.clone();
                let ready = std::mem::replace(&mut self.inner, spare);
                let work = Box::pin(compact_and_send(self.own.clone(), ready, request));
                ResponseFuture::working(work, self.own.clone())
            }
        }
    }
}

impl<S: Clone> Clone for Compaction<S> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), own: self.own.clone() }
    }
}

impl<S: fmt::Debug> fmt::Debug for Compaction<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compaction")
            .field("inner", &self.inner)
            .field("shared", &self.own.shared)
            .finish()
    }
}
