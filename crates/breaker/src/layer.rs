//! The layer: owns the state, and says how requests find their part of it.

use std::{fmt, hash::Hash, sync::Arc};

use steadfast_core::{AtOnce, Target, UntilEnd};
use tower_layer::Layer;

use crate::{
    BreakerHandle, BreakerPolicy, ByTarget, CircuitBreaker, Covers, KeyBy, PolicyError,
    state::{Breakers, Keys},
};

/// Stops asking a target that keeps failing. See the [crate's documentation](crate).
///
/// The state belongs to the layer value and its clones: every service they make shares it. The
/// methods that change what a key is ([`with_key`](Self::with_key), [`with_covers`](Self::with_covers),
/// [`with_label`](Self::with_label)) begin with a new state, so call them before taking a handle.
///
/// `K` is the key, `By` finds it, `T` says when a reply is over.
#[must_use = "a layer does nothing until it is put around a service"]
pub struct CircuitBreakerLayer<K = Option<Target>, By = ByTarget, T = UntilEnd> {
    by: By,
    track: T,
    policy: Arc<BreakerPolicy>,
    breakers: Arc<Breakers<K>>,
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
            covers: Arc::new(Covers::target),
            label: None,
        };
        let breakers = Arc::new(Breakers::new(policy, keys));
        Self { by: ByTarget, track: UntilEnd, policy: breakers.policy(), breakers }
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
    /// breakers are as narrow as that, say so with [`with_covers`](Self::with_covers). The key does not
    /// appear in logs unless it is given a [`with_label`](Self::with_label), since it may be a secret.
    ///
    /// ```
    /// use steadfast_breaker::CircuitBreakerLayer;
    ///
    /// let layer = CircuitBreakerLayer::default()
    ///     .with_key(|request: &http::Request<()>| request.uri().host().map(str::to_owned));
    /// # let _ = layer;
    /// ```
    pub fn with_key<Req, K2, F>(self, by: F) -> CircuitBreakerLayer<K2, F, T>
    where
        F: Fn(&Req) -> K2 + KeyBy<Req, K2>,
        K2: Hash + Eq + Clone + Send + Sync + 'static,
    {
        let keys = Keys { target: |_| None, covers: Arc::new(|_| Covers::NONE), label: None };
        let breakers = Arc::new(Breakers::new(self.policy().clone(), keys));
        CircuitBreakerLayer { by, track: self.track, policy: self.policy, breakers }
    }

    /// Says how narrow the keys are. Begins with a new state.
    pub fn with_covers(self, covers: Covers) -> Self {
        self.rekeyed(|keys| keys.covers = Arc::new(move |_| covers))
    }

    /// Says how a key is called in events. Begins with a new state.
    pub fn with_label(self, label: impl Fn(&K) -> String + Send + Sync + 'static) -> Self {
        self.rekeyed(|keys| keys.label = Some(Arc::new(label)))
    }

    /// For replies that are over when they arrive: any type, judged a success at once.
    pub fn at_once(self) -> CircuitBreakerLayer<K, By, AtOnce> {
        self.with_track(AtOnce)
    }

    /// With another answer to when a reply is over.
    pub fn with_track<T2>(self, track: T2) -> CircuitBreakerLayer<K, By, T2> {
        CircuitBreakerLayer { by: self.by, track, policy: self.policy, breakers: self.breakers }
    }

    /// As this layer is set, with the breakers of the layer that `handle` is of: they go by this layer's
    /// policy from now on, whoever else shares them, and stand as they stood. What a key covers and how it
    /// is called stays as it was there. The last of the settings: a change of keys begins with a new state.
    pub fn sharing(self, handle: &BreakerHandle<K>) -> Self {
        let breakers = handle.breakers().clone();
        breakers.set_policy(&self.policy);
        Self { breakers, ..self }
    }

    /// Looks at the state, and steers it.
    pub fn handle(&self) -> BreakerHandle<K> {
        BreakerHandle::new(self.breakers.clone())
    }

    /// What it goes by.
    pub fn policy(&self) -> &BreakerPolicy {
        &self.policy
    }

    fn rekeyed(self, change: impl FnOnce(&mut Keys<K>)) -> Self {
        let mut keys = self.breakers.common.keys.clone();
        change(&mut keys);
        let breakers = Arc::new(Breakers::new(self.policy().clone(), keys));
        Self { breakers, ..self }
    }
}

impl<S, K, By: Clone, T: Clone> Layer<S> for CircuitBreakerLayer<K, By, T> {
    type Service = CircuitBreaker<S, K, By, T>;

    fn layer(&self, inner: S) -> Self::Service {
        CircuitBreaker::new(inner, self.by.clone(), self.track.clone(), self.breakers.clone())
    }
}

impl<K, By: Clone, T: Clone> Clone for CircuitBreakerLayer<K, By, T> {
    fn clone(&self) -> Self {
        Self {
            by: self.by.clone(),
            track: self.track.clone(),
            policy: self.policy.clone(),
            breakers: self.breakers.clone(),
        }
    }
}

impl<K, By, T: fmt::Debug> fmt::Debug for CircuitBreakerLayer<K, By, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CircuitBreakerLayer")
            .field("policy", &self.policy)
            .field("track", &self.track)
            .finish_non_exhaustive()
    }
}
