//! The layer around a model.

use std::sync::Arc;

use tower_layer::Layer;

use crate::{GuardPolicy, PolicyError, SafetyGuard, SafetyGuardHandle};

/// Stops tasks that exceed a limit or loop. See the [crate's documentation](crate).
///
/// The state belongs to the guard: every service of this layer, its clones and every layer made by
/// the same [`SafetyGuardHandle`] share it.
#[derive(Clone, Debug, Default)]
#[must_use = "a layer does nothing until it is put around a service"]
pub struct SafetyGuardLayer {
    guard: SafetyGuardHandle,
}

impl SafetyGuardLayer {
    /// A layer with a new guard.
    ///
    /// # Errors
    ///
    /// When the policy is invalid; see [`GuardPolicy::validate`].
    pub fn new(policy: GuardPolicy) -> Result<Self, PolicyError> {
        Ok(Self { guard: SafetyGuardHandle::new(policy)? })
    }

    /// A layer without limits and rules ([`GuardPolicy::off`]).
    #[expect(clippy::expect_used, reason = "a policy without limits is valid; a test makes one")]
    pub fn off() -> Self {
        Self::new(GuardPolicy::off()).expect("a policy without limits is valid")
    }

    /// As this layer is set, with the tasks of `guard`; see [`SafetyGuardHandle::sharing`].
    pub fn sharing(self, guard: &SafetyGuardHandle) -> Self {
        Self { guard: self.guard.sharing(guard) }
    }

    /// The guard.
    pub fn guard(&self) -> &SafetyGuardHandle {
        &self.guard
    }
}

impl From<SafetyGuardHandle> for SafetyGuardLayer {
    fn from(guard: SafetyGuardHandle) -> Self {
        Self { guard }
    }
}

impl<S> Layer<S> for SafetyGuardLayer {
    type Service = SafetyGuard<S>;

    fn layer(&self, inner: S) -> Self::Service {
        SafetyGuard::new(inner, Arc::clone(self.guard.tasks()))
    }
}
