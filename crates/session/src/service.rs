//! The service around the agent.

use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
};

use steadfast_core::{Failure, IntoFailure, inner_service};
use tower_service::Service;

use crate::{
    SessionPrompt, SessionReply, SessionRun, SessionStore, SessionTurn, future::ResponseFuture,
    layer::LayerConfig, run::run,
};

/// Gives the inner service its history; see [`SessionLayer`](crate::SessionLayer).
///
/// It is always ready. A prompt waits for its turn in the thread first and for the inner service then, so that what this has few of,
/// such as the permits of a concurrency limit, is not held by prompts that wait for a busy thread. How many wait is limited by the
/// [policy](crate::SessionPolicy) of the store.
#[derive(Clone)]
#[must_use = "services do nothing unless called"]
pub struct Session<S> {
    pub(crate) inner: S,
    pub(crate) shared: Arc<LayerConfig>,
}

inner_service!(Session<S>);

impl<S> Session<S> {
    /// The threads.
    pub fn store(&self) -> &SessionStore {
        &self.shared.store
    }
}

impl<S> Service<SessionPrompt> for Session<S>
where
    S: Service<SessionRun, Response: Into<SessionTurn>, Error: IntoFailure, Future: Send>
        + Clone
        + Send
        + 'static,
{
    type Response = SessionReply;
    type Error = Failure;
    type Future = ResponseFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, prompt: SessionPrompt) -> ResponseFuture {
        ResponseFuture::new(run(self.shared.clone(), self.inner.clone(), prompt))
    }
}

impl<S: fmt::Debug> fmt::Debug for Session<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("inner", &self.inner).field("config", &self.shared).finish()
    }
}
