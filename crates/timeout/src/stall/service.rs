//! The service around the inner one.

use std::{
    fmt,
    task::{Context, Poll},
};

use steadfast_core::{Call, Failure, Near, UntilEnd};
use tower_service::Service;

use crate::{Clocks, TimeoutHandle, Watching, clocks::Seed, future::ResponseFuture, state::Shared};

/// Limits the calls of the inner service; see [`StallTimeoutLayer`](crate::StallTimeoutLayer).
///
/// Waiting for readiness is not limited: a call begins with `call`.
#[derive(Clone)]
#[must_use = "services do nothing unless called"]
pub struct StallTimeout<S, W = UntilEnd> {
    inner: S,
    shared: Near<Shared>,
    watching: W,
}

impl<S, W> StallTimeout<S, W> {
    pub(crate) const fn new(inner: S, shared: Near<Shared>, watching: W) -> Self {
        Self { inner, shared, watching }
    }

    /// Looks at the layer's state and resets it.
    pub fn handle(&self) -> TimeoutHandle {
        TimeoutHandle(self.shared.shared().clone())
    }

    /// The inner service.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }
}

impl<S, Req, W> Service<Req> for StallTimeout<S, W>
where
    S: Service<Req>,
    S::Error: Into<Failure>,
    Req: Call,
    W: Watching<S::Response> + Clone,
{
    type Response = W::Watched;
    type Error = Failure;
    type Future = ResponseFuture<S::Future, W>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    #[inline]
    fn call(&mut self, request: Req) -> Self::Future {
        let seed = Seed::new(request.context());
        let call = self.inner.call(request);
        ResponseFuture::new(call, Clocks::new(self.shared.clone(), seed), self.watching.clone())
    }
}

impl<S: fmt::Debug, W> fmt::Debug for StallTimeout<S, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StallTimeout")
            .field("inner", &self.inner)
            .field("limits", &self.shared.limits)
            .finish_non_exhaustive()
    }
}
