//! The services: a call reserves what it may spend, and each attempt takes its part.

use std::{
    fmt,
    marker::PhantomData,
    sync::Arc,
    task::{Context, Poll},
};

use steadfast_core::{Call, CallSpend, Failure, IntoFailure, SpendLedger, UntilEnd, inner_service};
use tokio::time::Instant;
use tower_service::Service;

use super::{
    AttemptMeter, CallSpendMeter,
    future::{Admit, MeteredFuture, NotAdmitted},
    state::SpendState,
};
use crate::{EstimateTokens, FromNeeds, MeteredReply};

/// A service whose callers have spend caps; made by [`SpendLimitLayer`](crate::SpendLimitLayer).
#[must_use = "services do nothing unless called"]
pub struct SpendLimit<S, E = FromNeeds, T = UntilEnd> {
    inner: S,
    estimate: E,
    reach: PhantomData<fn() -> T>,
    state: Arc<SpendState>,
}

inner_service!(SpendLimit<S, E, T>);

impl<S, E, T> SpendLimit<S, E, T> {
    pub(crate) fn new(inner: S, estimate: E, _: T, state: Arc<SpendState>) -> Self {
        Self { inner, estimate, reach: PhantomData, state }
    }

    /// The ledger of the layer that made this.
    pub fn ledger(&self) -> &SpendLedger {
        &self.state.ledger
    }
}

impl<S, Req, E, T> Admit<Req> for SpendLimit<S, E, T>
where
    S: Service<Req>,
    Req: Call,
    E: EstimateTokens<Req>,
{
    type Inner = S;
    type Meter = Box<CallSpendMeter>;

    fn admit(&self, request: &mut Req) -> Result<Option<Self::Meter>, NotAdmitted> {
        // A call of a call has its caps from that one.
        let is_within = |spend: &CallSpend| spend.is_of(&self.state.ledger);
        if !self.state.is_on() || request.context().spend.as_ref().is_some_and(is_within) {
            return Ok(None);
        }
        let now = Instant::now();
        let (tokens, most) = (self.estimate.estimate(request), self.estimate.most(request));
        let (most, _) = self.state.most(request, most, now);
        let Some(call) = self.state.reserve(request, most, now)? else { return Ok(None) };
        let price = self.state.price(request);
        let context = request.context_mut();
        context.spend = Some(call.clone());
        let meter = CallSpendMeter::new(&self.state, call, price, (tokens, most), &context.log);
        Ok(Some(Box::new(meter)))
    }

    fn inner(&mut self) -> &mut S {
        &mut self.inner
    }
}

impl<S, Req, E, T> Service<Req> for SpendLimit<S, E, T>
where
    S: Service<Req> + Clone,
    S::Error: IntoFailure,
    S::Response: MeteredReply<Option<Box<CallSpendMeter>>, T>,
    Req: Call,
    E: EstimateTokens<Req> + Clone,
{
    type Response = <S::Response as MeteredReply<Option<Box<CallSpendMeter>>, T>>::Metered;
    type Error = Failure;
    type Future = MeteredFuture<Self, Req, T>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    #[inline]
    fn call(&mut self, request: Req) -> Self::Future {
        MeteredFuture::new(self, request, ready)
    }
}

/// The service that is ready, for a call that waits; a clone is left in its place.
fn ready<A: Clone>(service: &mut A) -> A {
    let next = service.clone();
    std::mem::replace(service, next)
}

impl<S: Clone, E: Clone, T> Clone for SpendLimit<S, E, T> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            estimate: self.estimate.clone(),
            reach: PhantomData,
            state: self.state.clone(),
        }
    }
}

impl<S: fmt::Debug, E, T> fmt::Debug for SpendLimit<S, E, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpendLimit")
            .field("inner", &self.inner)
            .field("policy", &self.state.policy)
            .finish_non_exhaustive()
    }
}

/// A service whose attempts are charged; made by [`SpendMeterLayer`](crate::SpendMeterLayer).
#[must_use = "services do nothing unless called"]
pub struct SpendMeter<S, E = FromNeeds, T = UntilEnd> {
    inner: S,
    estimate: E,
    reach: PhantomData<fn() -> T>,
    state: Arc<SpendState>,
}

inner_service!(SpendMeter<S, E, T>);

impl<S, E, T> SpendMeter<S, E, T> {
    pub(crate) fn new(inner: S, estimate: E, _: T, state: Arc<SpendState>) -> Self {
        Self { inner, estimate, reach: PhantomData, state }
    }
}

impl<S, Req, E, T> Admit<Req> for SpendMeter<S, E, T>
where
    S: Service<Req>,
    Req: Call,
    E: EstimateTokens<Req>,
{
    type Inner = S;
    type Meter = Box<AttemptMeter>;

    fn admit(&self, request: &mut Req) -> Result<Option<Self::Meter>, NotAdmitted> {
        let context = request.context();
        let Some(spend) = &context.spend else { return Ok(None) };
        let now = Instant::now();
        let (tokens, most) = (self.estimate.estimate(request), self.estimate.most(request));
        let (most, input) = self.state.most(request, most, now);
        let price = self.state.price(request);
        let most = price.most(&most);
        match spend.attempt(most, now) {
            Ok(attempt) => {
                let meter = AttemptMeter::new(attempt, price, tokens, input, &context.log);
                Ok(Some(Box::new(meter)))
            }
            Err(refusal) => {
                let lease = refusal.unasked.then(|| spend.lease(most));
                Err(NotAdmitted { refusal: Box::new(refusal), lease })
            }
        }
    }

    fn inner(&mut self) -> &mut S {
        &mut self.inner
    }
}

impl<S, Req, E, T> Service<Req> for SpendMeter<S, E, T>
where
    S: Service<Req> + Clone,
    S::Error: IntoFailure,
    S::Response: MeteredReply<Option<Box<AttemptMeter>>, T>,
    Req: Call,
    E: EstimateTokens<Req> + Clone,
{
    type Response = <S::Response as MeteredReply<Option<Box<AttemptMeter>>, T>>::Metered;
    type Error = Failure;
    type Future = MeteredFuture<Self, Req, T>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    #[inline]
    fn call(&mut self, request: Req) -> Self::Future {
        MeteredFuture::new(self, request, ready)
    }
}

impl<S: Clone, E: Clone, T> Clone for SpendMeter<S, E, T> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            estimate: self.estimate.clone(),
            reach: PhantomData,
            state: self.state.clone(),
        }
    }
}

impl<S: fmt::Debug, E, T> fmt::Debug for SpendMeter<S, E, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpendMeter").field("inner", &self.inner).finish_non_exhaustive()
    }
}
