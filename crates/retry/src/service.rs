//! The service around the inner one.

use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
};

use steadfast_core::{Call, Failure, IntoFailure, Spare, Track, UntilEnd, inner_service};
use tower_service::Service;

use crate::{RetryHandle, call::CallState, future::ResponseFuture, state::RetryState};

/// Retries calls of the inner service; see [`RetryBackoffLayer`](crate::RetryBackoffLayer).
///
/// The first attempt is made by the inner service, which is ready, and retries by a clone of it,
/// polled ready before each.
#[derive(Clone)]
#[must_use = "services do nothing unless called"]
pub struct RetryBackoff<S, T = UntilEnd> {
    inner: S,
    spare: Spare<S>,
    shared: Arc<RetryState>,
    track: T,
}

inner_service!(RetryBackoff<S, T>);

impl<S: Clone, T> RetryBackoff<S, T> {
    pub(crate) fn new(inner: S, shared: Arc<RetryState>, track: T) -> Self {
        Self { spare: Spare::of(&inner), inner, shared, track }
    }
}

impl<S, T> RetryBackoff<S, T> {
    /// A handle that reads the layer's state and resets it.
    pub fn handle(&self) -> RetryHandle {
        RetryHandle(self.shared.clone())
    }
}

impl<S, Req, T> Service<Req> for RetryBackoff<S, T>
where
    S: Service<Req> + Clone,
    S::Error: IntoFailure,
    Req: Call + Clone,
    T: Track<S::Response> + Clone,
{
    type Response = T::Tracked;
    type Error = Failure;
    type Future = ResponseFuture<S, Req, T>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    #[inline]
    fn call(&mut self, request: Req) -> Self::Future {
        self.shared.called();
        let call = CallState::new(self.shared.clone(), self.spare.clone(), &request);
        ResponseFuture::new(self.inner.call(request), call, self.track.clone())
    }
}

impl<S: fmt::Debug, T> fmt::Debug for RetryBackoff<S, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryBackoff")
            .field("inner", &self.inner)
            .field("config", &self.shared.config)
            .finish_non_exhaustive()
    }
}
