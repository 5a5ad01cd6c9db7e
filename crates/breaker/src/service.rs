//! The service: admission in `call`, the verdict when the answer ends.

use std::{
    fmt,
    hash::Hash,
    sync::Arc,
    task::{Context, Poll},
};

use steadfast_core::{Call, Failure, Target, Tracking, UntilEnd};
use tokio::time::Instant;
use tower_service::Service;

use crate::{
    BreakerHandle, ByTarget, KeyBy, ResponseFuture,
    cell::{Own, Shared},
    future::Refusal,
    ticket::{Guard, Ticket},
};

/// A service behind a circuit breaker; made by [`CircuitBreakerLayer`](crate::CircuitBreakerLayer).
///
/// Whether a call passes is decided in `call`, so `poll_ready` says no more than the inner service
/// does. A call that is refused leaves the inner service ready, for the next one.
#[must_use = "services do nothing unless called"]
pub struct CircuitBreaker<S, K = Option<Target>, By = ByTarget, T = UntilEnd> {
    inner: S,
    by: By,
    tracking: T,
    own: Own<K>,
}

impl<S, K, By, T> CircuitBreaker<S, K, By, T> {
    pub(crate) fn new(inner: S, by: By, tracking: T, shared: Arc<Shared<K>>) -> Self {
        Self { inner, by, tracking, own: Own::new(shared) }
    }

    /// The service inside.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// The service inside, to be changed.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// The service inside, without the breaker.
    pub fn into_inner(self) -> S {
        self.inner
    }

    /// A handle on the state of the layer that made this.
    pub fn handle(&self) -> BreakerHandle<K> {
        BreakerHandle::new(self.own.shared().shared().clone())
    }
}

impl<S, Req, K, By, T> Service<Req> for CircuitBreaker<S, K, By, T>
where
    S: Service<Req>,
    S::Error: Into<Failure>,
    Req: Call,
    K: Hash + Eq + Clone + Send + Sync + 'static,
    By: KeyBy<Req, K>,
    T: Tracking<S::Response> + Clone,
{
    type Response = T::Tracked;
    type Error = Failure;
    type Future = ResponseFuture<S::Future, K, T>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    #[inline]
    fn call(&mut self, mut request: Req) -> Self::Future {
        let Self { inner, by, tracking, own } = self;
        let cell = by.with_key(&request, |key| own.find(key));
        let context = request.context();
        let token = match cell.admit(context) {
            Ok(token) => token,
            Err(refused) => {
                // Asked for only when it is there, so that no context is made for its sake.
                let named = context.target.is_some();
                let target = if named { request.context_mut().target.take() } else { None };
                return ResponseFuture::refused(Refusal { refused, target }, tracking.clone());
            }
        };
        let started = cell.times_calls().then(Instant::now);
        let log = context.log.clone();
        let guard = Guard { cell, token, log: &log };
        let call = inner.call(request);
        std::mem::forget(guard);
        let ticket = Ticket::new(cell.clone(), token, log, started);
        ResponseFuture::admitted(call, ticket, tracking.clone())
    }
}

impl<S: Clone, K, By: Clone, T: Clone> Clone for CircuitBreaker<S, K, By, T> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            by: self.by.clone(),
            tracking: self.tracking.clone(),
            own: self.own.clone(),
        }
    }
}

impl<S: fmt::Debug, K, By, T: fmt::Debug> fmt::Debug for CircuitBreaker<S, K, By, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CircuitBreaker")
            .field("inner", &self.inner)
            .field("tracking", &self.tracking)
            .field("shared", self.own.shared())
            .finish_non_exhaustive()
    }
}
