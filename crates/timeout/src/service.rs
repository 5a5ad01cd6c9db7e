//! The service around the inner one.

use std::{
    fmt,
    marker::PhantomData,
    sync::Arc,
    task::{Context, Poll},
};

use steadfast_core::{Call, Deadline, Failure, UntilEnd};
use tokio::time::Instant;
use tower_service::Service;

use crate::{Clocks, TimeLimitedReply, TimeoutHandle, future::ResponseFuture, state::Shared};

/// Limits the calls of the inner service; see [`StallTimeoutLayer`](crate::StallTimeoutLayer).
pub type StallTimeout<S, W = UntilEnd> = TimeLimited<S, W>;

/// Gives the calls of the inner service a deadline; see [`DeadlineLayer`](crate::DeadlineLayer).
/// (`Deadline` is the name of the moment itself, in `steadfast-core`.)
pub type DeadlineService<S, W = UntilEnd> = TimeLimited<S, W>;

/// Puts the calls of the inner service under time limits; see
/// [`TimeLimitLayer`](crate::TimeLimitLayer).
///
/// Waiting for readiness is not limited: a call begins with `call`.
#[must_use = "services do nothing unless called"]
pub struct TimeLimited<S, W = UntilEnd> {
    inner: S,
    shared: Arc<Shared>,
    reach: PhantomData<fn() -> W>,
}

impl<S, W> TimeLimited<S, W> {
    pub(crate) const fn new(inner: S, shared: Arc<Shared>) -> Self {
        Self { inner, shared, reach: PhantomData }
    }

    /// Looks at the layer's state and resets it.
    pub fn handle(&self) -> TimeoutHandle {
        TimeoutHandle(self.shared.clone())
    }

    /// The inner service.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }
}

impl<S, Req, W> Service<Req> for TimeLimited<S, W>
where
    S: Service<Req>,
    S::Error: Into<Failure>,
    Req: Call,
    S::Response: TimeLimitedReply<W>,
{
    type Response = <S::Response as TimeLimitedReply<W>>::Limited;
    type Error = Failure;
    type Future = ResponseFuture<S::Future, W>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    #[inline]
    fn call(&mut self, mut request: Req) -> Self::Future {
        let mut clocks = Clocks::new(self.shared.clone(), request.context());
        if let Some(pipeline) = self.shared.limits.pipeline {
            // The one reading of the clock that can not be put off: those below are given a moment.
            let now = Instant::now();
            let own =
                now.checked_add(pipeline).unwrap_or_else(|| Deadline::after(pipeline).instant());
            match clocks.begin_by(now, own) {
                Err(failure) => return ResponseFuture::refused(failure),
                Ok(true) => request.context_mut().deadline = Some(Deadline::at(own)),
                Ok(false) => {}
            }
        }
        ResponseFuture::new(self.inner.call(request), clocks)
    }
}

impl<S: Clone, W> Clone for TimeLimited<S, W> {
    fn clone(&self) -> Self {
        Self::new(self.inner.clone(), self.shared.clone())
    }
}

impl<S: fmt::Debug, W> fmt::Debug for TimeLimited<S, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimeLimited")
            .field("inner", &self.inner)
            .field("limits", &self.shared.limits)
            .finish_non_exhaustive()
    }
}
