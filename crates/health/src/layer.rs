//! The layer: owns the state that its services share.

use std::{fmt, sync::Arc};

use steadfast_core::{AtOnce, DegradedProviders, UntilEnd};
use tower_layer::Layer;

use crate::{HealthHandle, HealthPolicy, PolicyError, ProviderHealth, state::HealthState};

/// Observes the calls of each provider, and finds out when one is degraded and when it is well again. See the
/// [crate's documentation](crate).
///
/// The state belongs to the layer value and its clones: every service they make shares it. `T` decides when
/// a reply is over.
#[derive(Clone)]
#[must_use = "a layer does nothing until it is put around a service"]
pub struct ProviderHealthLayer<T = UntilEnd> {
    policy: HealthPolicy,
    is_off: bool,
    state: Arc<HealthState>,
    track: T,
}

impl ProviderHealthLayer {
    /// With `policy`; replies are counted when they have their first content, and when they break after it.
    ///
    /// # Errors
    ///
    /// When the policy is invalid; see [`HealthPolicy::validate`].
    pub fn new(policy: HealthPolicy) -> Result<Self, PolicyError> {
        policy.validate()?;
        Ok(Self::of(policy))
    }

    /// Observes nothing: no provider is ever degraded.
    pub fn off() -> Self {
        Self { is_off: true, ..Self::default() }
    }

    fn of(policy: HealthPolicy) -> Self {
        Self { policy, is_off: false, state: HealthState::new(policy), track: UntilEnd }
    }
}

impl Default for ProviderHealthLayer {
    /// With [`HealthPolicy::default`].
    fn default() -> Self {
        Self::of(HealthPolicy::default())
    }
}

impl<T> ProviderHealthLayer<T> {
    /// For replies that are over when they arrive, such as plain values.
    pub fn at_once(self) -> ProviderHealthLayer<AtOnce> {
        self.with_track(AtOnce)
    }

    /// With another [`Track`](steadfast_core::Track), which decides when a reply is over.
    pub fn with_track<U>(self, track: U) -> ProviderHealthLayer<U> {
        let Self { policy, is_off, state, .. } = self;
        ProviderHealthLayer { policy, is_off, state, track }
    }

    /// With what the layer knows that `handle` is of, which goes by this layer's policy from now on.
    pub fn sharing(self, handle: &HealthHandle) -> Self {
        if !self.is_off {
            handle.state().set_policy(self.policy);
        }
        Self { state: handle.state().clone(), ..self }
    }

    /// The providers that are degraded, for the layers that ask: failover, compaction.
    pub fn degraded(&self) -> DegradedProviders {
        self.state.degraded.clone()
    }

    /// A handle that shows what is known of the providers, and steers it.
    pub fn handle(&self) -> HealthHandle {
        HealthHandle::new(self.state.clone())
    }

    /// The policy in force; `None` when nothing is observed.
    pub fn policy(&self) -> Option<&HealthPolicy> {
        (!self.is_off).then_some(&self.policy)
    }
}

impl<S, T: Clone> Layer<S> for ProviderHealthLayer<T> {
    type Service = ProviderHealth<S, T>;

    fn layer(&self, inner: S) -> Self::Service {
        ProviderHealth::new(inner, self.state.clone(), self.is_off, self.track.clone())
    }
}

impl<T: fmt::Debug> fmt::Debug for ProviderHealthLayer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProviderHealthLayer")
            .field("policy", &self.policy())
            .field("track", &self.track)
            .finish_non_exhaustive()
    }
}
