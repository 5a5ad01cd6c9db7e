//! The service: admission in `call`, the rest when the answer ends.

use std::{
    fmt,
    marker::PhantomData,
    sync::Arc,
    task::{Context, Poll},
};

use steadfast_core::{Call, Failure, IntoFailure, Spare, UntilEnd, inner_service};
use tokio::time::Instant;
use tower_service::Service;

use super::{
    QuotaKey, QuotaOfTarget, RateHandle, RatePermit,
    future::RateFuture,
    state::{Admission, RateState},
};
use crate::{EstimateTokens, FromNeeds, MeteredReply};

/// A service below the rate limits of its targets; made by [`RateLimitLayer`](crate::RateLimitLayer).
///
/// A call that passes at once is made by the inner service, which is ready; one that waits by a clone of it,
/// polled ready once its turn has come.
#[must_use = "services do nothing unless called"]
pub struct RateLimited<S, By = QuotaOfTarget, E = FromNeeds, T = UntilEnd> {
    inner: S,
    spare: Spare<S>,
    by: By,
    estimate: E,
    reach: PhantomData<fn() -> T>,
    state: Arc<RateState>,
}

inner_service!(RateLimited<S, By, E, T>);

impl<S: Clone, By, E, T> RateLimited<S, By, E, T> {
    pub(crate) fn new(inner: S, by: By, estimate: E, _: T, state: Arc<RateState>) -> Self {
        let spare = Spare::of(&inner);
        Self { inner, spare, by, estimate, reach: PhantomData, state }
    }
}

impl<S, By, E, T> RateLimited<S, By, E, T> {
    /// A handle on the state of the layer that made this.
    pub fn handle(&self) -> RateHandle {
        RateHandle(self.state.clone())
    }
}

impl<S, Req, By, E, T> Service<Req> for RateLimited<S, By, E, T>
where
    S: Service<Req> + Clone,
    S::Error: IntoFailure,
    S::Response: MeteredReply<RatePermit, T>,
    Req: Call,
    By: QuotaKey<Req>,
    E: EstimateTokens<Req>,
{
    type Response = <S::Response as MeteredReply<RatePermit, T>>::Metered;
    type Error = Failure;
    type Future = RateFuture<S, Req, T>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    #[inline]
    fn call(&mut self, request: Req) -> Self::Future {
        let now = Instant::now();
        let key = self.by.with_key(&request, |key| self.state.key(key, now));
        let context = request.context();
        let admission = key.admit(self.estimate.estimate(&request), context, &self.state, now);
        match admission {
            // Should the inner service panic, the permit is dropped on the way out.
            Admission::Permit(mut permit) => {
                permit.sent();
                RateFuture::calling(self.inner.call(request), permit)
            }
            Admission::Wait(mut waiter) => {
                // The readiness of the inner service is for a call that is made now: it goes back.
                self.inner = self.spare.get();
                let budget = context.budget.as_ref();
                let slot = match budget.map(|budget| budget.wait(context.held_bytes)) {
                    Some(None) => {
                        waiter.give_up(now);
                        None
                    }
                    slot => slot.flatten(),
                };
                RateFuture::waiting(waiter, slot, self.spare.clone(), request)
            }
            Admission::Refused(refused) => RateFuture::refused(refused.failure(context)),
        }
    }
}

impl<S: Clone, By: Clone, E: Clone, T> Clone for RateLimited<S, By, E, T> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            spare: self.spare.clone(),
            by: self.by.clone(),
            estimate: self.estimate.clone(),
            reach: PhantomData,
            state: self.state.clone(),
        }
    }
}

impl<S: fmt::Debug, By, E, T> fmt::Debug for RateLimited<S, By, E, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimited")
            .field("inner", &self.inner)
            .field("policy", &self.state.policy)
            .finish_non_exhaustive()
    }
}
