//! The service: takes a lease in `call`, which ends when the answer does.

use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
};

use steadfast_core::{Call, Failure, IntoFailure, Lease, Track, UntilEnd, inner_service};
use tower_service::Service;

use crate::{HealthHandle, future::ResponseFuture, state::HealthState};

/// A service whose calls are observed by provider; made by
/// [`ProviderHealthLayer`](crate::ProviderHealthLayer). It refuses nothing and changes no answer.
#[derive(Clone)]
#[must_use = "services do nothing unless called"]
pub struct ProviderHealth<S, T = UntilEnd> {
    inner: S,
    state: Arc<HealthState>,
    is_off: bool,
    track: T,
}

inner_service!(ProviderHealth<S, T>);

impl<S, T> ProviderHealth<S, T> {
    pub(crate) fn new(inner: S, state: Arc<HealthState>, is_off: bool, track: T) -> Self {
        Self { inner, state, is_off, track }
    }

    /// A handle on the state of the layer that made this.
    pub fn handle(&self) -> HealthHandle {
        HealthHandle::new(self.state.clone())
    }
}

impl<S, Req, T> Service<Req> for ProviderHealth<S, T>
where
    S: Service<Req>,
    S::Error: IntoFailure,
    Req: Call,
    T: Track<S::Response> + Clone,
{
    type Response = T::Tracked;
    type Error = Failure;
    type Future = ResponseFuture<S::Future, T>;

    /// Polls only the inner service: this layer refuses nothing.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    #[inline]
    fn call(&mut self, request: Req) -> Self::Future {
        // If the inner service panics, the lease is dropped while the stack unwinds.
        let lease = match self.is_off {
            true => Lease::idle().with_log(request.context().log.clone()),
            false => self.state.admit(&request),
        };
        ResponseFuture::new(self.inner.call(request), lease, self.track.clone())
    }
}

impl<S: fmt::Debug, T: fmt::Debug> fmt::Debug for ProviderHealth<S, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProviderHealth")
            .field("inner", &self.inner)
            .field("track", &self.track)
            .finish_non_exhaustive()
    }
}
