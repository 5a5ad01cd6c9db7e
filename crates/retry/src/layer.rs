//! The layer and its settings.

use std::{borrow::Cow, fmt, sync::Arc};

use steadfast_core::{AtOnce, Backoff, BudgetSource, RetryBudget, UntilEnd};
use tower_layer::Layer;

use crate::{
    Nudge, PolicyError, RetryBackoff, RetryHandle, RetryPolicy,
    nudge::Nudging,
    state::{Config, RetryState},
};

/// Retries calls that failed for a reason that may pass.
///
/// Every service made by one layer value, and by its clones, shares one budget and one set of
/// counters. The setters create new state: take a [`handle`](Self::handle) after the last one.
///
/// `T` decides when a reply is over: at the end of its body or stream ([`UntilEnd`]), or at once
/// ([`AtOnce`], see [`at_once`](Self::at_once)).
#[must_use = "a layer does nothing until it wraps a service"]
pub struct RetryBackoffLayer<T = UntilEnd> {
    shared: Arc<RetryState>,
    track: T,
}

impl RetryBackoffLayer {
    /// Retries by `policy`.
    ///
    /// # Errors
    ///
    /// When the policy is invalid; the error says what would be valid.
    pub fn new(policy: RetryPolicy) -> Result<Self, PolicyError> {
        policy.validate()?;
        Ok(Self::of(policy))
    }

    /// [`RetryPolicy::transient`]: for calls of a model.
    pub fn transient() -> Self {
        Self::of(RetryPolicy::transient())
    }

    /// [`RetryPolicy::in_stack`]: for a stack whose failover goes round the targets.
    pub fn in_stack() -> Self {
        Self::of(RetryPolicy::in_stack())
    }

    /// [`RetryPolicy::stream`]: for streams that a user watches.
    pub fn stream() -> Self {
        Self::of(RetryPolicy::stream())
    }

    /// [`RetryPolicy::application`]: for whole operations of an application.
    pub fn application() -> Self {
        Self::of(RetryPolicy::application())
    }

    /// [`RetryPolicy::delivery`]: for handing over a finished result.
    pub fn delivery() -> Self {
        Self::of(RetryPolicy::delivery())
    }

    /// Only for policies known to be valid.
    fn of(policy: RetryPolicy) -> Self {
        let built_in = Nudging::BuiltIn { throttled: policy.nudge_throttled };
        let nudging = if policy.nudge { built_in } else { Nudging::Off };
        let config = Config { policy, nudging, budget: BudgetSource::Default, seed: None };
        Self { shared: Arc::new(RetryState::new(config)), track: UntilEnd }
    }
}

impl Default for RetryBackoffLayer {
    /// [`in_stack`](Self::in_stack).
    fn default() -> Self {
        Self::in_stack()
    }
}

impl<T> RetryBackoffLayer<T> {
    fn with(self, change: impl FnOnce(&mut Config)) -> Self {
        let mut config = self.shared.config.clone();
        change(&mut config);
        Self { shared: Arc::new(RetryState::new(config)), track: self.track }
    }

    /// At most this many retries of a call that no other target can serve; 0 for none of any call.
    pub fn with_retries(self, retries: u32) -> Self {
        self.with(|config| config.policy.retries = retries)
    }

    /// With this backoff.
    ///
    /// # Errors
    ///
    /// When it starts at zero.
    pub fn with_backoff(self, backoff: Backoff) -> Result<Self, PolicyError> {
        let policy = RetryPolicy { backoff, ..self.shared.config.policy };
        policy.validate()?;
        Ok(self.with(|config| config.policy = policy))
    }

    /// After this many `overloaded` in a row a failure asks for a fallback model, and the retries end
    /// when another target can serve the call, if only a smaller model; 0 for no such limit.
    pub fn with_overloaded_limit(self, limit: u32) -> Self {
        self.with(|config| config.policy.overloaded_limit = limit)
    }

    /// Draws from `budget`, which may be shared with other layers, even if the request has one.
    /// Without this the budget of the request is used
    /// ([`CallContext::budget`](steadfast_core::CallContext::budget)), else one of the layer's,
    /// with the default of [`RetryBudget`].
    pub fn with_budget(self, budget: RetryBudget) -> Self {
        self.with(|config| config.budget = BudgetSource::Own(budget))
    }

    /// Draws from no budget: while a provider is down, every call makes all the retries it may have.
    pub fn without_budget(self) -> Self {
        self.with(|config| config.budget = BudgetSource::Unlimited)
    }

    /// Adds a message to each retried request that can have one
    /// ([`Call::nudge`](steadfast_core::Call::nudge)). `make` may return none. It runs on the
    /// calling task: it must not block.
    ///
    /// ```
    /// use steadfast_retry::RetryBackoffLayer;
    ///
    /// let layer = RetryBackoffLayer::stream()
    ///     .with_nudge(|nudge| (nudge.began).then_some("Please go on.".into()));
    /// ```
    pub fn with_nudge(
        self,
        make: impl Fn(&Nudge) -> Option<Cow<'static, str>> + Send + Sync + 'static,
    ) -> Self {
        self.with(|config| {
            config.policy.nudge = true;
            config.nudging = Nudging::Custom(Arc::new(make));
        })
    }

    /// Adds no message to retried requests.
    pub fn without_nudge(self) -> Self {
        self.with(|config| {
            config.policy.nudge = false;
            config.nudging = Nudging::Off;
        })
    }

    /// Draws jitter from this seed, so that the same failures give the same waits.
    pub fn with_seed(self, seed: u64) -> Self {
        self.with(|config| config.seed = Some(seed))
    }

    /// For replies that are plain values, over as soon as they are there.
    pub fn at_once(self) -> RetryBackoffLayer<AtOnce> {
        self.with_track(AtOnce)
    }

    /// With another [`Track`](steadfast_core::Track), which decides when a reply is over.
    pub fn with_track<U>(self, track: U) -> RetryBackoffLayer<U> {
        RetryBackoffLayer { shared: self.shared, track }
    }

    /// As this layer is set, with the counters of the layer that `handle` is of, and with its budget where
    /// neither was given one. The last of the settings: each of the others begins with a fresh state.
    pub fn sharing(self, handle: &RetryHandle) -> Self {
        Self { shared: Arc::new(self.shared.sharing(&handle.0)), track: self.track }
    }

    /// The policy in force.
    pub fn policy(&self) -> &RetryPolicy {
        &self.shared.config.policy
    }

    /// A handle that reads the layer's state and resets it.
    pub fn handle(&self) -> RetryHandle {
        RetryHandle(self.shared.clone())
    }
}

impl<S: Clone, T: Clone> Layer<S> for RetryBackoffLayer<T> {
    type Service = RetryBackoff<S, T>;

    fn layer(&self, inner: S) -> Self::Service {
        RetryBackoff::new(inner, self.shared.clone(), self.track.clone())
    }
}

impl<T: Clone> Clone for RetryBackoffLayer<T> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone(), track: self.track.clone() }
    }
}

impl<T> fmt::Debug for RetryBackoffLayer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryBackoffLayer").field("config", &self.shared.config).finish()
    }
}
