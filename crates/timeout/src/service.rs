//! The service around the inner one.

use std::{
    fmt,
    marker::PhantomData,
    sync::Arc,
    task::{Context, Poll},
};

use steadfast_core::{Call, Deadline, Failure, IntoFailure, UntilEnd, inner_service, time::later};
use tokio::time::Instant;
use tower_service::Service;

use crate::{Clocks, TimeoutHandle, TimeoutReply, future::ResponseFuture, state::TimeoutState};

/// Limits the calls of the inner service; see [`StallTimeoutLayer`](crate::StallTimeoutLayer).
pub type StallTimeout<S, W = UntilEnd> = Timeout<S, W>;

/// Puts the calls of the inner service under time limits; see
/// [`TimeoutLayer`](crate::TimeoutLayer).
///
/// Waiting for readiness is not limited: a call begins with `call`.
#[must_use = "services do nothing unless called"]
pub struct Timeout<S, W = UntilEnd> {
    inner: S,
    shared: Arc<TimeoutState>,
    reach: PhantomData<fn() -> W>,
}

inner_service!(Timeout<S, W>);

impl<S, W> Timeout<S, W> {
    pub(crate) const fn new(inner: S, shared: Arc<TimeoutState>) -> Self {
        Self { inner, shared, reach: PhantomData }
    }

    /// A handle that reads the layer's state and resets it.
    pub fn handle(&self) -> TimeoutHandle {
        TimeoutHandle(self.shared.clone())
    }
}

impl<S, Req, W> Service<Req> for Timeout<S, W>
where
    S: Service<Req>,
    S::Error: IntoFailure,
    Req: Call,
    S::Response: TimeoutReply<W>,
{
    type Response = <S::Response as TimeoutReply<W>>::Limited;
    type Error = Failure;
    type Future = ResponseFuture<S::Future, W>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    #[inline]
    fn call(&mut self, mut request: Req) -> Self::Future {
        let is_whole = request.is_whole().unwrap_or(false);
        let mut clocks = Clocks::new(self.shared.clone(), request.context(), is_whole);
        if let Some(pipeline) = self.shared.limits.pipeline {
            // The only clock reading of a call that is ready at once.
            let now = Instant::now();
            let own = later(now, pipeline);
            match clocks.begin_by(now, own) {
                Err(failure) => return ResponseFuture::refused(failure),
                Ok(true) => {
                    request.context_mut().deadline = Some(Deadline::of_limit(own, pipeline));
                }
                Ok(false) => {}
            }
        }
        ResponseFuture::new(self.inner.call(request), clocks)
    }
}

impl<S: Clone, W> Clone for Timeout<S, W> {
    fn clone(&self) -> Self {
        Self::new(self.inner.clone(), self.shared.clone())
    }
}

impl<S: fmt::Debug, W> fmt::Debug for Timeout<S, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timeout")
            .field("inner", &self.inner)
            .field("limits", &self.shared.limits)
            .finish_non_exhaustive()
    }
}
