//! The layer and its settings.

use tower_layer::Layer;

use crate::{PolicyError, RunRegistry, Watchdog, WatchdogPolicy};

/// Gives up runs of agents that take too long, and registers every run with its end.
///
/// The limit is `min(max_steps x 60 s, 600 s)`, 600 s for a run without steps ([`WatchdogPolicy`]). The time in which a run has a live
/// child ([`AgentRun::child`](crate::AgentRun::child)) does not count, but no run lasts longer than 600 s, than its caller's deadline
/// or than its parent. What is given up is dropped at once.
///
/// Every service of one layer value, and of its clones, has one [`RunRegistry`]: by default one in memory, without notices.
#[derive(Clone, Debug)]
#[must_use = "a layer does nothing until it wraps a service"]
pub struct WatchdogLayer {
    policy: WatchdogPolicy,
    registry: RunRegistry,
}

impl WatchdogLayer {
    /// Limits runs by `policy`.
    ///
    /// # Errors
    ///
    /// When the policy is invalid; the error says what would be valid.
    pub fn new(policy: WatchdogPolicy) -> Result<Self, PolicyError> {
        policy.validate()?;
        Ok(Self { policy, registry: RunRegistry::in_memory() })
    }

    /// With this registry: the one on disk, with a sink for notices.
    pub fn with_registry(self, registry: RunRegistry) -> Self {
        Self { registry, ..self }
    }

    /// The policy in force.
    pub const fn policy(&self) -> &WatchdogPolicy {
        &self.policy
    }

    /// The handle to the layer's state: every run, counted, cancelled by hand, or stopped.
    pub const fn registry(&self) -> &RunRegistry {
        &self.registry
    }
}

impl Default for WatchdogLayer {
    fn default() -> Self {
        Self { policy: WatchdogPolicy::default(), registry: RunRegistry::in_memory() }
    }
}

impl<S> Layer<S> for WatchdogLayer {
    type Service = Watchdog<S>;

    fn layer(&self, inner: S) -> Watchdog<S> {
        Watchdog::new(inner, self.policy, self.registry.clone())
    }
}
