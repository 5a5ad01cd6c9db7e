//! The layer around a model.

use std::sync::Arc;

use tower_layer::Layer;

use crate::{GuardPolicy, PolicyError, SafetyGuard, SafetyGuardService};

/// Ends tasks that use too much or go in circles. See the [crate's documentation](crate).
///
/// The state belongs to the guard: every service of this layer, its clones and every layer made by
/// the same [`SafetyGuard`] share it.
#[derive(Clone, Debug, Default)]
#[must_use = "a layer does nothing until it is put around a service"]
pub struct SafetyGuardLayer {
    guard: SafetyGuard,
}

impl SafetyGuardLayer {
    /// A layer with a guard of its own.
    ///
    /// # Errors
    ///
    /// When the policy makes no sense; see [`GuardPolicy::validate`].
    pub fn new(policy: GuardPolicy) -> Result<Self, PolicyError> {
        Ok(Self { guard: SafetyGuard::new(policy)? })
    }

    /// A layer that limits nothing and judges nothing ([`GuardPolicy::off`]).
    #[expect(clippy::expect_used, reason = "a policy without limits is valid; a test makes one")]
    pub fn off() -> Self {
        Self::new(GuardPolicy::off()).expect("a policy without limits makes sense")
    }

    /// The guard.
    pub fn guard(&self) -> &SafetyGuard {
        &self.guard
    }
}

impl From<SafetyGuard> for SafetyGuardLayer {
    fn from(guard: SafetyGuard) -> Self {
        Self { guard }
    }
}

impl<S> Layer<S> for SafetyGuardLayer {
    type Service = SafetyGuardService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        SafetyGuardService::new(inner, Arc::clone(self.guard.tasks()))
    }
}
