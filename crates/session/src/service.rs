//! The service around the agent.

use std::{
    fmt, mem,
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
/// The inner service that is ready waits with the prompt for its turn in the thread, and is called then.
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

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, prompt: SessionPrompt) -> ResponseFuture {
        let next = self.inner.clone();
        let ready = mem::replace(&mut self.inner, next);
        ResponseFuture::new(run(self.shared.clone(), ready, prompt))
    }
}

impl<S: fmt::Debug> fmt::Debug for Session<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("inner", &self.inner).field("config", &self.shared).finish()
    }
}
