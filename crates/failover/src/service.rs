//! The service that picks the target.

use std::{
    fmt, mem,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use parking_lot::Mutex;
use steadfast_core::{
    Call, DegradedProviders, Failure, IntoFailure, Needs, RetryBudget, Track, UntilEnd, Witness,
    inner_service,
};
use tower_service::Service;

use crate::{
    affinity::{Session, Sessions},
    balance::Draws,
    call::CallState,
    choose::{ChooseChain, OneChain},
    future::ResponseFuture,
    handle::FailoverHandle,
    policy::FailoverPolicy,
    registry::HealthRegistry,
    route::Chains,
};

/// Sends each call to the first target that is not cooling, and on to the next when that fails.
/// Made by [`CooldownFailoverLayer`](crate::CooldownFailoverLayer).
///
/// Cloning it clones the inner service and shares everything known of the targets. Each call takes the
/// inner service along and leaves a clone, so that nothing which a layer further in reserved and did not
/// use stays behind.
#[derive(Clone)]
#[must_use = "services do nothing unless called"]
pub struct CooldownFailover<S, C = OneChain, T = UntilEnd> {
    inner: S,
    choose: C,
    track: T,
    failover: Arc<FailoverState>,
}

/// What all services of a layer share.
#[derive(Debug)]
pub(crate) struct FailoverState {
    pub(crate) chains: Chains,
    pub(crate) rules: Arc<CallRules>,
    /// What is known of targets, which layers of different chains and policies can share.
    pub(crate) registry: Arc<HealthRegistry>,
    pub(crate) sessions: Arc<Sessions>,
}

/// What the calls of a layer go by.
#[derive(Debug)]
pub(crate) struct CallRules {
    pub(crate) policy: Arc<FailoverPolicy>,
    /// What repetitions and hedges are paid from.
    pub(crate) budget: Option<RetryBudget>,
    /// Providers that are asked after others.
    degraded: Option<DegradedProviders>,
    pub(crate) draws: Draws,
    rng: Mutex<fastrand::Rng>,
}

impl CallRules {
    pub(crate) fn new(
        policy: Arc<FailoverPolicy>,
        budget: Option<RetryBudget>,
        degraded: Option<DegradedProviders>,
        seed: Option<u64>,
    ) -> Self {
        let mut rng = seed.map_or_else(fastrand::Rng::new, fastrand::Rng::with_seed);
        let draws = Draws::new(rng.fork().u64(..));
        Self { policy, budget, degraded, draws, rng: Mutex::new(rng) }
    }

    /// The providers that are degraded, when there are any.
    #[inline]
    pub(crate) fn degraded(&self) -> Option<&DegradedProviders> {
        self.degraded.as_ref().filter(|degraded| !degraded.is_empty())
    }

    /// The pause before the next round, after `rounds` and a pause of `last`.
    pub(crate) fn pause(&self, rounds: u32, last: Duration) -> Duration {
        self.policy.pause.delay(rounds, last, &mut self.rng.lock())
    }
}

inner_service!(CooldownFailover<S, C, T>);

impl<S, C, T> CooldownFailover<S, C, T> {
    pub(crate) fn new(inner: S, choose: C, track: T, failover: Arc<FailoverState>) -> Self {
        Self { inner, choose, track, failover }
    }

    /// A handle to see and steer what the layer does.
    pub fn handle(&self) -> FailoverHandle {
        FailoverHandle::new(self.failover.clone())
    }
}

impl<S, C, T, Req> Service<Req> for CooldownFailover<S, C, T>
where
    S: Service<Req> + Clone,
    S::Error: IntoFailure,
    Req: Call + Clone,
    C: ChooseChain<Req>,
    T: Track<S::Response> + Clone,
{
    type Response = T::Tracked;
    type Error = Failure;
    type Future = ResponseFuture<S, Req, T>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    #[inline]
    fn call(&mut self, request: Req) -> Self::Future {
        let Self { inner, choose, track, failover } = self;
        let mut needs = choose.is_needed().then(|| request.needs());
        let chain = needs.as_ref().and_then(|needs| choose.choose(&request, needs));
        let route = failover.chains.route(chain, request.model(), failover);
        if needs.is_none() && route.choosy {
            // Finding them takes a walk over the conversation.
            needs = Some(request.needs());
        }
        let needs = needs.unwrap_or_else(Needs::default);
        let session = Session::of(failover, &request);
        let context = request.context();
        let witness = match context.witness.is_known() {
            true => context.witness,
            false => Witness::of(context, request.prompt_digest()),
        };
        let is_whole = request.is_whole().unwrap_or(false);
        let call = CallState::new(route, context, (witness, is_whole), needs, session);
        let clone = inner.clone();
        let ready = mem::replace(inner, clone);
        ResponseFuture::new(ready, request, call, track.clone())
    }
}

impl<S: fmt::Debug, C, T> fmt::Debug for CooldownFailover<S, C, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CooldownFailover")
            .field("inner", &self.inner)
            .field("failover", &self.failover)
            .finish_non_exhaustive()
    }
}
