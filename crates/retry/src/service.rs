//! The service around the inner one.

use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
};

use steadfast_core::{Call, Failure, Tracking, UntilEnd};
use tower_service::Service;

use crate::{RetryHandle, future::ResponseFuture, state::Shared};

/// What a [`RetryBackoff`] answers with when its inner service answers with `R`: the reply after
/// its first content, with the lease on it that puts back the budget when it ends well.
pub type Reply<T, R> = <T as Tracking<<T as Tracking<R>>::Committed>>::Tracked;

/// Makes calls of the inner service again; see [`RetryBackoffLayer`](crate::RetryBackoffLayer).
///
/// The inner service is cloned for a call that may be retried, and the clone is polled ready
/// before each retry.
#[derive(Clone)]
#[must_use = "services do nothing unless called"]
pub struct RetryBackoff<S, T = UntilEnd> {
    inner: S,
    shared: Arc<Shared>,
    tracking: T,
}

impl<S, T> RetryBackoff<S, T> {
    pub(crate) const fn new(inner: S, shared: Arc<Shared>, tracking: T) -> Self {
        Self { inner, shared, tracking }
    }

    /// Looks at the layer's state and resets it.
    pub fn handle(&self) -> RetryHandle {
        RetryHandle(self.shared.clone())
    }

    /// The inner service.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }
}

impl<S, Req, T> Service<Req> for RetryBackoff<S, T>
where
    S: Service<Req> + Clone,
    S::Error: Into<Failure>,
    Req: Call + Clone,
    T: Tracking<S::Response> + Tracking<<T as Tracking<S::Response>>::Committed> + Clone,
{
    type Response = Reply<T, S::Response>;
    type Error = Failure;
    type Future = ResponseFuture<S, Req, T>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Req) -> Self::Future {
        self.shared.called();
        ResponseFuture::new(&mut self.inner, request, self.shared.clone(), self.tracking.clone())
    }
}

impl<S: fmt::Debug, T> fmt::Debug for RetryBackoff<S, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryBackoff")
            .field("inner", &self.inner)
            .field("config", &self.shared.config)
            .finish()
    }
}
