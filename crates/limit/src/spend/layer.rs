//! The layers: the caps, outermost, and what observes each attempt, innermost.

use std::{
    fmt,
    sync::{Arc, atomic::Ordering},
};

use steadfast_core::{AtOnce, SpendAccount, SpendCaps, SpendLedger, UntilEnd};
use tower_layer::Layer;

use super::{Prices, SpendLimit, SpendLimitPolicy, SpendMeter, state::SpendState};
use crate::{CallTokens, EstimateTokens, FromNeeds, PolicyError};

/// Refuses the calls of tenants and API keys that have spent what they may. See the
/// [crate's documentation](crate).
///
/// The state belongs to the layer value and its clones: every service they make shares it, and so does its
/// [`meter`](Self::meter). `E` estimates the tokens of a request, `T` says when a reply is over.
#[derive(Clone)]
#[must_use = "a layer does nothing until it is put around a service"]
pub struct SpendLimitLayer<E = FromNeeds, T = UntilEnd> {
    estimate: E,
    reach: T,
    state: Arc<SpendState>,
}

impl Default for SpendLimitLayer {
    /// With [`SpendLimitPolicy::default`]: nothing is capped.
    fn default() -> Self {
        Self::unchecked(SpendLimitPolicy::default())
    }
}

impl SpendLimitLayer {
    /// With `policy`, an empty ledger and the built-in prices.
    ///
    /// # Errors
    ///
    /// When the policy is invalid; see [`SpendLimitPolicy::validate`].
    pub fn new(policy: SpendLimitPolicy) -> Result<Self, PolicyError> {
        policy.validate()?;
        Ok(Self::unchecked(policy))
    }

    fn unchecked(policy: SpendLimitPolicy) -> Self {
        let state = Arc::new(SpendState::new(policy));
        Self { estimate: FromNeeds, reach: UntilEnd, state }
    }
}

impl<E, T> SpendLimitLayer<E, T> {
    /// With a ledger that others share, or that was restored. Call it before [`meter`](Self::meter), like the other
    /// settings.
    pub fn with_ledger(self, ledger: SpendLedger) -> Self {
        ledger.set_policy(self.state.policy.accounts);
        self.changed(|state| state.ledger = ledger)
    }

    /// With these prices.
    pub fn with_prices(self, prices: impl Into<Arc<Prices>>) -> Self {
        self.changed(|state| state.prices = prices.into())
    }

    /// With caps of their own for some tenants and keys; `None` leaves an account those of the policy. Asked for
    /// each call, so it must be quick.
    ///
    /// ```
    /// use steadfast_core::{SpendAccount, SpendCaps};
    /// use steadfast_limit::SpendLimitLayer;
    ///
    /// let layer = SpendLimitLayer::default().with_caps(|account| match account {
    ///     SpendAccount::Tenant(name) if &**name == "trial" => Some(SpendCaps::of_tokens(10_000, 50_000)),
    ///     _ => None,
    /// });
    /// # let _ = layer;
    /// ```
    pub fn with_caps(
        self,
        caps: impl Fn(&SpendAccount) -> Option<SpendCaps> + Send + Sync + 'static,
    ) -> Self {
        self.changed(|state| state.caps = Some(Arc::new(caps)))
    }

    fn changed(mut self, change: impl FnOnce(&mut SpendState)) -> Self {
        let mut state = self.state.again();
        change(&mut state);
        self.state = Arc::new(state);
        self
    }

    /// With another estimate of the tokens of a request.
    pub fn with_estimate<Req, F>(self, estimate: F) -> SpendLimitLayer<F, T>
    where
        F: Fn(&Req) -> CallTokens + EstimateTokens<Req>,
    {
        SpendLimitLayer { estimate, reach: self.reach, state: self.state }
    }

    /// For replies that are over when they arrive, such as plain values: what they have used is estimated.
    pub fn at_once(self) -> SpendLimitLayer<E, AtOnce> {
        self.with_reach(AtOnce)
    }

    /// With what [`MeteredReply`](crate::MeteredReply)`<_, U>` observes of a reply.
    pub fn with_reach<U>(self, reach: U) -> SpendLimitLayer<E, U> {
        SpendLimitLayer { estimate: self.estimate, reach, state: self.state }
    }

    /// The ledger: what was spent, to be shown, saved or reset.
    pub fn ledger(&self) -> &SpendLedger {
        &self.state.ledger
    }

    /// The prices it goes by.
    pub fn prices(&self) -> &Arc<Prices> {
        &self.state.prices
    }

    /// The policy in force.
    pub fn policy(&self) -> &SpendLimitPolicy {
        &self.state.policy
    }
}

impl<E: Clone, T: Clone> SpendLimitLayer<E, T> {
    /// The layer that observes each attempt, to be put innermost. Without it, a call is charged what its answer
    /// reports, and not what attempts have cost that failed, that broke, or that were hedges.
    pub fn meter(&self) -> SpendMeterLayer<E, T> {
        SpendMeterLayer {
            estimate: self.estimate.clone(),
            reach: self.reach.clone(),
            state: self.state.clone(),
        }
    }
}

impl<S, E: Clone, T: Clone> Layer<S> for SpendLimitLayer<E, T> {
    type Service = SpendLimit<S, E, T>;

    fn layer(&self, inner: S) -> Self::Service {
        SpendLimit::new(inner, self.estimate.clone(), self.reach.clone(), self.state.clone())
    }
}

impl<E, T> fmt::Debug for SpendLimitLayer<E, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpendLimitLayer")
            .field("policy", &self.state.policy)
            .finish_non_exhaustive()
    }
}

/// Charges each attempt of a call to the caps of a [`SpendLimitLayer`], which makes it
/// ([`SpendLimitLayer::meter`]). Calls that did not pass that layer are not touched.
#[derive(Clone)]
#[must_use = "a layer does nothing until it is put around a service"]
pub struct SpendMeterLayer<E = FromNeeds, T = UntilEnd> {
    estimate: E,
    reach: T,
    state: Arc<SpendState>,
}

impl<S, E: Clone, T: Clone> Layer<S> for SpendMeterLayer<E, T> {
    type Service = SpendMeter<S, E, T>;

    fn layer(&self, inner: S) -> Self::Service {
        self.state.is_metered.store(true, Ordering::Relaxed);
        SpendMeter::new(inner, self.estimate.clone(), self.reach.clone(), self.state.clone())
    }
}

impl<E, T> fmt::Debug for SpendMeterLayer<E, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpendMeterLayer")
            .field("policy", &self.state.policy)
            .finish_non_exhaustive()
    }
}
