//! The service: admission in `call`, the verdict when the answer ends.

use std::{
    fmt,
    hash::Hash,
    sync::Arc,
    task::{Context, Poll},
};

use steadfast_core::{Call, Failure, IntoFailure, Target, Track, UntilEnd, inner_service};
use tokio::time::Instant;
use tower_service::Service;

use crate::{BreakerHandle, ByTarget, KeyBy, ResponseFuture, future::Refusal, state::Breakers};

/// A service behind a circuit breaker; made by [`CircuitBreakerLayer`](crate::CircuitBreakerLayer).
///
/// Whether a call passes is decided in `call`, so `poll_ready` says no more than the inner service
/// does, and never fails because a breaker is open.
#[must_use = "services do nothing unless called"]
pub struct CircuitBreaker<S, K = Option<Target>, By = ByTarget, T = UntilEnd> {
    inner: S,
    by: By,
    track: T,
    breakers: Arc<Breakers<K>>,
}

inner_service!(CircuitBreaker<S, K, By, T>);

impl<S, K, By, T> CircuitBreaker<S, K, By, T> {
    pub(crate) fn new(inner: S, by: By, track: T, breakers: Arc<Breakers<K>>) -> Self {
        Self { inner, by, track, breakers }
    }

    /// A handle on the state of the layer that made this.
    pub fn handle(&self) -> BreakerHandle<K> {
        BreakerHandle::new(self.breakers.clone())
    }
}

impl<S, Req, K, By, T> Service<Req> for CircuitBreaker<S, K, By, T>
where
    S: Service<Req>,
    S::Error: IntoFailure,
    Req: Call,
    K: Hash + Eq + Clone + Send + Sync + 'static,
    By: KeyBy<Req, K>,
    T: Track<S::Response> + Clone,
{
    type Response = T::Tracked;
    type Error = Failure;
    type Future = ResponseFuture<S::Future, T>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    #[inline]
    fn call(&mut self, mut request: Req) -> Self::Future {
        let now = Instant::now();
        let breaker = self.by.with_key(&request, |key| self.breakers.get_or_insert(key, now));
        let context = request.context();
        match breaker.admit(now, context) {
            // Should the inner service panic, the lease is dropped on the way out.
            Ok(lease) => {
                ResponseFuture::admitted(self.inner.call(request), lease, self.track.clone())
            }
            Err((refused, turn)) => {
                // Asked for only when it is there, so that no context is made for its sake.
                let named = context.target.is_some();
                let target = if named { request.context_mut().target.take() } else { None };
                ResponseFuture::refused(Refusal { refused, turn, target }, self.track.clone())
            }
        }
    }
}

impl<S: Clone, K, By: Clone, T: Clone> Clone for CircuitBreaker<S, K, By, T> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            by: self.by.clone(),
            track: self.track.clone(),
            breakers: self.breakers.clone(),
        }
    }
}

impl<S: fmt::Debug, K, By, T: fmt::Debug> fmt::Debug for CircuitBreaker<S, K, By, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CircuitBreaker")
            .field("inner", &self.inner)
            .field("track", &self.track)
            .field("breakers", &self.breakers)
            .finish_non_exhaustive()
    }
}
