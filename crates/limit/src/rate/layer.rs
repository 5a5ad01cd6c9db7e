//! The layer: owns the state that its services share.

use std::{fmt, sync::Arc};

use steadfast_core::{AtOnce, Target, UntilEnd};
use tower_layer::Layer;

use super::{QuotaKey, QuotaOfTarget, RateHandle, RateLimited, RatePolicy, state::RateState};
use crate::{CallTokens, EstimateTokens, FromNeeds, PolicyError};

/// Keeps calls below the rate limits of their targets. See the [crate's documentation](crate).
///
/// The state belongs to the layer value and its clones: every service they make shares it. `By` finds the key
/// of a request, `E` estimates its tokens, `T` says when a reply is over.
#[derive(Clone)]
#[must_use = "a layer does nothing until it is put around a service"]
pub struct RateLimitLayer<By = QuotaOfTarget, E = FromNeeds, T = UntilEnd> {
    by: By,
    estimate: E,
    reach: T,
    state: Arc<RateState>,
}

impl Default for RateLimitLayer {
    /// With [`RatePolicy::default`].
    fn default() -> Self {
        Self::unchecked(RatePolicy::default())
    }
}

impl RateLimitLayer {
    /// With `policy`.
    ///
    /// # Errors
    ///
    /// When the policy is invalid; see [`RatePolicy::validate`].
    pub fn new(policy: RatePolicy) -> Result<Self, PolicyError> {
        policy.validate()?;
        Ok(Self::unchecked(policy))
    }

    fn unchecked(policy: RatePolicy) -> Self {
        let state = Arc::new(RateState::new(policy));
        Self { by: QuotaOfTarget, estimate: FromNeeds, reach: UntilEnd, state }
    }
}

impl<By, E, T> RateLimitLayer<By, E, T> {
    /// With limits for each value of `by`, such as a closure from the request to the target that its host is.
    pub fn with_key<Req, F>(self, by: F) -> RateLimitLayer<F, E, T>
    where
        F: Fn(&Req) -> Option<Target> + QuotaKey<Req>,
    {
        RateLimitLayer { by, estimate: self.estimate, reach: self.reach, state: self.state }
    }

    /// With another estimate of the tokens of a request.
    ///
    /// ```
    /// use steadfast_limit::{CallTokens, RateLimitLayer};
    ///
    /// let layer = RateLimitLayer::default().with_estimate(|request: &http::Request<String>| CallTokens {
    ///     input: request.body().len() as u64 / 4,
    ///     max_output: None,
    /// });
    /// # let _ = layer;
    /// ```
    pub fn with_estimate<Req, F>(self, estimate: F) -> RateLimitLayer<By, F, T>
    where
        F: Fn(&Req) -> CallTokens + EstimateTokens<Req>,
    {
        RateLimitLayer { by: self.by, estimate, reach: self.reach, state: self.state }
    }

    /// For replies that are over when they arrive, such as plain values: nothing is learned from them.
    pub fn at_once(self) -> RateLimitLayer<By, E, AtOnce> {
        self.with_reach(AtOnce)
    }

    /// With what [`MeteredReply`](crate::MeteredReply)`<_, U>` observes of a reply.
    pub fn with_reach<U>(self, reach: U) -> RateLimitLayer<By, E, U> {
        RateLimitLayer { by: self.by, estimate: self.estimate, reach, state: self.state }
    }

    /// As this layer is set, with the limits of the layer that `handle` is of: what was learned, what is used,
    /// and who waits. They go by this layer's policy from now on, whoever else shares them.
    pub fn sharing(mut self, handle: &RateHandle) -> Self {
        self.state = Arc::new(self.state.sharing(&handle.0.memory));
        self
    }

    /// A handle that shows and steers the limits.
    pub fn handle(&self) -> RateHandle {
        RateHandle(self.state.clone())
    }

    /// The policy in force.
    pub fn policy(&self) -> &RatePolicy {
        &self.state.policy
    }
}

impl<S: Clone, By: Clone, E: Clone, T: Clone> Layer<S> for RateLimitLayer<By, E, T> {
    type Service = RateLimited<S, By, E, T>;

    fn layer(&self, inner: S) -> Self::Service {
        let (by, estimate) = (self.by.clone(), self.estimate.clone());
        RateLimited::new(inner, by, estimate, self.reach.clone(), self.state.clone())
    }
}

impl<By, E, T> fmt::Debug for RateLimitLayer<By, E, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer").field("policy", &self.state.policy).finish_non_exhaustive()
    }
}
