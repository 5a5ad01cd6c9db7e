//! The service around the inner one.

use std::{
    fmt,
    task::{Context, Poll},
    time::Duration,
};

use steadfast_core::{Call, Deadline, Failure, Near, UntilEnd};
use tokio::time::Instant;
use tower_service::Service;

use crate::{Clocks, TimeoutHandle, Watching, clocks::Seed, future::ResponseFuture, state::Shared};

/// Gives the calls of the inner service a deadline; see [`DeadlineLayer`](crate::DeadlineLayer).
///
/// Waiting for readiness is not limited: a call begins with `call`. (`Deadline` is the name of
/// the moment itself, in `steadfast-core`.)
#[derive(Clone)]
#[must_use = "services do nothing unless called"]
pub struct DeadlineService<S, W = UntilEnd> {
    inner: S,
    pipeline: Duration,
    shared: Near<Shared>,
    watching: W,
}

impl<S, W> DeadlineService<S, W> {
    pub(crate) const fn new(
        inner: S,
        pipeline: Duration,
        shared: Near<Shared>,
        watching: W,
    ) -> Self {
        Self { inner, pipeline, shared, watching }
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

impl<S, Req, W> Service<Req> for DeadlineService<S, W>
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
    fn call(&mut self, mut request: Req) -> Self::Future {
        // The one reading of the clock that can not be put off: those below are told a moment.
        let now = Instant::now();
        let own = now
            .checked_add(self.pipeline)
            .unwrap_or_else(|| Deadline::after(self.pipeline).instant());
        let mut seed = Seed::new(request.context());
        match seed.deadline() {
            Some(callers) if callers <= now => return self.refuse(seed, now),
            Some(callers) if callers <= own => seed.started(now),
            _ => {
                request.context_mut().deadline = Some(Deadline::at(own));
                seed.own_deadline(now, own);
            }
        }
        let call = self.inner.call(request);
        ResponseFuture::new(call, Clocks::new(self.shared.clone(), seed), self.watching.clone())
    }
}

impl<S, W: Clone> DeadlineService<S, W> {
    /// The deadline had passed before the call was made.
    #[cold]
    fn refuse<F>(&self, seed: Seed, now: Instant) -> ResponseFuture<F, W> {
        let failure = Clocks::new(self.shared.clone(), seed).refuse(now);
        ResponseFuture::refused(failure, self.watching.clone())
    }
}

impl<S: fmt::Debug, W> fmt::Debug for DeadlineService<S, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeadlineService")
            .field("inner", &self.inner)
            .field("pipeline", &self.pipeline)
            .finish_non_exhaustive()
    }
}
