//! The service around the inner one.

use std::{
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll},
};

use steadfast_core::{Call, Failure, IntoFailure, Kept, Spare, inner_service};
use tower_service::Service;

use super::{RetryFuture, layer::RetryShared};

/// Retries calls of the inner service; see [`DeliveryRetryLayer`](crate::DeliveryRetryLayer).
///
/// The first attempt is made by the inner service, which is ready, and retries by a clone of it, polled ready before each.
#[derive(Clone, Debug)]
#[must_use = "services do nothing unless called"]
pub struct DeliveryRetry<S> {
    inner: S,
    spare: Spare<S>,
    shared: Arc<RetryShared>,
}

inner_service!(DeliveryRetry<S>);

impl<S: Clone> DeliveryRetry<S> {
    pub(crate) fn new(inner: S, shared: Arc<RetryShared>) -> Self {
        Self { spare: Spare::of(&inner), inner, shared }
    }
}

impl<S, Req> Service<Req> for DeliveryRetry<S>
where
    S: Service<Req> + Clone,
    S::Error: IntoFailure,
    Req: Call + Clone,
{
    type Response = S::Response;
    type Error = Failure;
    type Future = RetryFuture<S, Req>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Req) -> Self::Future {
        self.shared.calls.fetch_add(1, Ordering::Relaxed);
        let kept = match self.shared.policy.retries {
            0 => Kept::Context(request.context().clone()),
            _ => Kept::Request(request.clone()),
        };
        let first = self.inner.call(request);
        RetryFuture::new(first, self.spare.clone(), kept, self.shared.clone())
    }
}
