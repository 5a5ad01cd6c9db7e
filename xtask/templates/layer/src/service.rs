//! The service: takes a lease in `call`, which ends when the answer does.

use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
};

use steadfast_core::{Call, Failure, IntoFailure, Track, UntilEnd, inner_service};
use tower_service::Service;

use crate::{ {{Pascal}}Handle, future::ResponseFuture, state::State};

/// A service whose answers are counted; made by [`{{Pascal}}Layer`](crate::{{Pascal}}Layer).
#[derive(Clone)]
#[must_use = "services do nothing unless called"]
pub struct {{Pascal}}<S, T = UntilEnd> {
    inner: S,
    state: Arc<State>,
    track: T,
}

inner_service!({{Pascal}}<S, T>);

impl<S, T> {{Pascal}}<S, T> {
    pub(crate) fn new(inner: S, state: Arc<State>, track: T) -> Self {
        Self { inner, state, track }
    }

    /// A handle on the state of the layer that made this.
    pub fn handle(&self) -> {{Pascal}}Handle {
        {{Pascal}}Handle::new(self.state.clone())
    }
}

impl<S, Req, T> Service<Req> for {{Pascal}}<S, T>
where
    S: Service<Req>,
    S::Error: IntoFailure,
    Req: Call,
    T: Track<S::Response> + Clone,
{
    type Response = T::Tracked;
    type Error = Failure;
    type Future = ResponseFuture<S::Future, T>;

    /// Polls only the inner service: this layer decides in `call`.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Req) -> Self::Future {
        // If the inner service panics, the lease is dropped while the stack unwinds.
        let lease = self.state.admit(request.context());
        ResponseFuture::new(self.inner.call(request), lease, self.track.clone())
    }
}

impl<S: fmt::Debug, T: fmt::Debug> fmt::Debug for {{Pascal}}<S, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("{{Pascal}}")
            .field("inner", &self.inner)
            .field("track", &self.track)
            .finish_non_exhaustive()
    }
}
