//! The layer: owns the state, and says how requests find their part of it.

use std::{fmt, hash::Hash, sync::Arc};

use steadfast_core::{AtOnce, Target, UntilEnd};
use tower_layer::Layer;

use crate::{
    BreakerHandle, BreakerPolicy, ByTarget, CircuitBreaker, Covers, KeyBy, PolicyError,
    cell::{CoversOf, Keys, Shared},
};

/// Stops asking a target that keeps failing. See the [crate's documentation](crate).
///
/// The state belongs to the layer value and its clones: every service they make shares it. The
/// methods that change what a key is ([`per`](Self::per), [`covers`](Self::covers),
/// [`label`](Self::label)) begin with a new state, so call them before taking a handle.
///
/// `K` is the key, `By` finds it, `T` says when a reply is over.
#[must_use = "a layer does nothing until it is put around a service"]
pub struct CircuitBreakerLayer<K = Option<Target>, By = ByTarget, T = UntilEnd> {
    by: By,
    tracking: T,
    shared: Arc<Shared<K>>,
}

impl Default for CircuitBreakerLayer {
    /// With [`BreakerPolicy::default`].
    fn default() -> Self {
        Self::unchecked(BreakerPolicy::default())
    }
}

impl CircuitBreakerLayer {
    /// A breaker for each target, replies judged when they have ended.
    ///
    /// # Errors
    ///
    /// When the policy makes no sense; see [`BreakerPolicy::validate`].
    pub fn new(policy: BreakerPolicy) -> Result<Self, PolicyError> {
        policy.validate()?;
        Ok(Self::unchecked(policy))
    }

    fn unchecked(policy: BreakerPolicy) -> Self {
        let keys = Keys {
            target: |target: &Option<Target>| target.clone(),
            covers: CoversOf::Each(Covers::target),
            label: None,
        };
        let shared = Arc::new(Shared::new(Arc::new(policy), keys));
        Self { by: ByTarget, tracking: UntilEnd, shared }
    }
}

impl<K, By, T> CircuitBreakerLayer<K, By, T>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
{
    /// A breaker for each value of `by`, such as a closure from the request to its host. Begins
    /// with a new state.
    ///
    /// Failures that concern one model or one credential say nothing about such a key; if its
    /// breakers are as narrow as that, say so with [`covers`](Self::covers). The key does not
    /// appear in logs unless it is given a [`label`](Self::label), since it may be a secret.
    ///
    /// ```
    /// use steadfast_breaker::CircuitBreakerLayer;
    ///
    /// let layer = CircuitBreakerLayer::default()
    ///     .per(|request: &http::Request<()>| request.uri().host().map(str::to_owned));
    /// # let _ = layer;
    /// ```
    pub fn per<Req, K2, F>(self, by: F) -> CircuitBreakerLayer<K2, F, T>
    where
        F: Fn(&Req) -> K2 + KeyBy<Req, K2>,
        K2: Hash + Eq + Clone + Send + Sync + 'static,
    {
        let keys = Keys { target: |_| None, covers: CoversOf::All(Covers::NONE), label: None };
        let shared = Arc::new(Shared::new(self.shared.common.policy.clone(), keys));
        CircuitBreakerLayer { by, tracking: self.tracking, shared }
    }

    /// Says how narrow the keys are. Begins with a new state.
    pub fn covers(self, covers: Covers) -> Self {
        self.rekeyed(|keys| keys.covers = CoversOf::All(covers))
    }

    /// Says how a key is called in events. Begins with a new state.
    pub fn label(self, label: impl Fn(&K) -> String + Send + Sync + 'static) -> Self {
        self.rekeyed(|keys| keys.label = Some(Arc::new(label)))
    }

    /// For replies that are over when they arrive: any type, judged a success at once.
    pub fn at_once(self) -> CircuitBreakerLayer<K, By, AtOnce> {
        self.tracking(AtOnce)
    }

    /// With another answer to when a reply is over.
    pub fn tracking<T2>(self, tracking: T2) -> CircuitBreakerLayer<K, By, T2> {
        CircuitBreakerLayer { by: self.by, tracking, shared: self.shared }
    }

    /// Looks at the state, and steers it.
    pub fn handle(&self) -> BreakerHandle<K> {
        BreakerHandle::new(self.shared.clone())
    }

    /// What it goes by.
    pub fn policy(&self) -> &BreakerPolicy {
        &self.shared.common.policy
    }

    fn rekeyed(self, change: impl FnOnce(&mut Keys<K>)) -> Self {
        let mut keys = self.shared.common.keys.clone();
        change(&mut keys);
        let shared = Arc::new(Shared::new(self.shared.common.policy.clone(), keys));
        Self { shared, ..self }
    }
}

impl<S, K, By: Clone, T: Clone> Layer<S> for CircuitBreakerLayer<K, By, T> {
    type Service = CircuitBreaker<S, K, By, T>;

    fn layer(&self, inner: S) -> Self::Service {
        CircuitBreaker::new(inner, self.by.clone(), self.tracking.clone(), self.shared.clone())
    }
}

impl<K, By: Clone, T: Clone> Clone for CircuitBreakerLayer<K, By, T> {
    fn clone(&self) -> Self {
        Self { by: self.by.clone(), tracking: self.tracking.clone(), shared: self.shared.clone() }
    }
}

impl<K, By, T: fmt::Debug> fmt::Debug for CircuitBreakerLayer<K, By, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CircuitBreakerLayer")
            .field("policy", &self.shared.common.policy)
            .field("tracking", &self.tracking)
            .finish_non_exhaustive()
    }
}
