//! The layer and its settings.

use std::{fmt, sync::Arc};

use steadfast_core::Target;
use tower_layer::Layer;

use crate::{
    Escalation, EscalationHandle, EscalationPolicy, Operator, PolicyError,
    operator::AnyOperator,
    state::{HeldRequests, Settings},
};

/// Holds a request that every target has failed, for a person to decide. See the [crate's
/// documentation](crate).
///
/// Every service made by one layer value, and by its clones, shares the held requests. The setters create new
/// state: take the [`handle`](Self::handle) after the last one.
#[derive(Clone, Default)]
#[must_use = "a layer does nothing until it wraps a service"]
pub struct EscalationLayer {
    /// `None`: nothing is held.
    settings: Option<Arc<Settings>>,
    requests: Arc<HeldRequests>,
}

impl EscalationLayer {
    /// Holds nothing: calls and failures pass through. The default.
    pub fn off() -> Self {
        Self::default()
    }

    /// Holds requests by `policy`; who decides does so by the [`handle`](Self::handle), or is given by
    /// [`with_operator`](Self::with_operator).
    ///
    /// # Errors
    ///
    /// When the policy is invalid; see [`EscalationPolicy::validate`].
    pub fn new(policy: EscalationPolicy) -> Result<Self, PolicyError> {
        policy.validate()?;
        let settings = Settings { policy, operator: None, reset: None };
        Ok(Self { settings: Some(Arc::new(settings)), requests: Arc::default() })
    }

    fn with(self, change: impl FnOnce(&mut Settings)) -> Self {
        let settings = self.settings.map(|settings| {
            let mut settings = Settings::clone(&settings);
            change(&mut settings);
            Arc::new(settings)
        });
        Self { settings, requests: Arc::default() }
    }

    /// Asks `operator` about each held request. Others may decide before it by the handle. Of a layer that is
    /// [off](Self::off) it changes nothing.
    pub fn with_operator(self, operator: impl Operator) -> Self {
        self.with(|settings| settings.operator = Some(AnyOperator::new(operator)))
    }

    /// Ends a cooldown by `reset`, such as `FailoverHandle::reset`; it returns whether anything was known of
    /// the target. Without this nobody can decide to
    /// [end one](crate::EscalationDecision::ResetCooldown). It runs on the task of the held call.
    pub fn with_reset(self, reset: impl Fn(&Target) -> bool + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.reset = Some(Arc::new(reset)))
    }

    /// As this layer is set, with the held requests and counters of the layer that `handle` is of. The last of
    /// the settings: each of the others begins with a fresh state.
    pub fn sharing(self, handle: &EscalationHandle) -> Self {
        Self { settings: self.settings, requests: handle.0.clone() }
    }

    /// The policy in force; `None` while it is off.
    pub fn policy(&self) -> Option<&EscalationPolicy> {
        self.settings.as_deref().map(|settings| &settings.policy)
    }

    /// A handle that shows the held requests and decides about them.
    pub fn handle(&self) -> EscalationHandle {
        EscalationHandle(self.requests.clone())
    }
}

impl<S: Clone> Layer<S> for EscalationLayer {
    type Service = Escalation<S>;

    fn layer(&self, inner: S) -> Escalation<S> {
        Escalation::new(inner, self.settings.clone(), &self.requests)
    }
}

impl fmt::Debug for EscalationLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EscalationLayer").field("settings", &self.settings).finish_non_exhaustive()
    }
}
