//! The layers and their settings, the same for both policies.

use std::sync::Arc;

use parking_lot::Mutex;
use steadfast_core::RetryBudget;
use tower_layer::Layer;

use crate::{PolicyError, policy::Recovery, service::Recover};

/// Continues answers that ended too early, by a policy: a
/// [`ContinuationLayer`](crate::ContinuationLayer) or a
/// [`StreamResumeLayer`](crate::StreamResumeLayer).
///
/// Every service of a layer value, and of its clones, shares its counters. The setters create new
/// state: take the [`handle`](Self::handle) after the last one.
#[derive(Clone, Debug)]
#[must_use = "a layer does nothing until it wraps a service"]
pub struct RecoverLayer<P: Recovery> {
    shared: Arc<RecoverState<P>>,
}

/// What all services of one layer share.
#[derive(Debug)]
pub struct RecoverState<P: Recovery> {
    pub(crate) policy: P,
    pub(crate) options: P::Options,
    /// The budget when neither the layer nor the request has one.
    pub(crate) fallback: RetryBudget,
    /// Locked only when something was done, which is rare.
    counts: Arc<Mutex<P::Snapshot>>,
}

impl<P: Recovery> RecoverState<P> {
    pub(crate) fn count(&self, add: impl FnOnce(&mut P::Snapshot)) {
        add(&mut self.counts.lock());
    }
}

impl<P: Recovery> Default for RecoverLayer<P> {
    fn default() -> Self {
        Self::of(P::default(), P::Options::default())
    }
}

impl<P: Recovery> RecoverLayer<P> {
    /// Passes every answer on unchanged.
    pub fn off() -> Self {
        Self::of(P::off(), P::Options::default())
    }

    /// Continues answers by `policy`.
    ///
    /// # Errors
    ///
    /// When the policy is invalid; see its `validate`.
    pub fn new(policy: P) -> Result<Self, PolicyError> {
        policy.check()?;
        Ok(Self::of(policy, P::Options::default()))
    }

    fn of(policy: P, options: P::Options) -> Self {
        let (fallback, counts) = (RetryBudget::default(), Arc::default());
        Self { shared: Arc::new(RecoverState { policy, options, fallback, counts }) }
    }

    /// With the policy changed by `change`.
    ///
    /// # Errors
    ///
    /// When it becomes invalid; see its `validate`.
    pub fn tune(self, change: impl FnOnce(&mut P)) -> Result<Self, PolicyError> {
        let layer = self.with(|policy, _| change(policy));
        layer.policy().check()?;
        Ok(layer)
    }

    pub(crate) fn with(self, change: impl FnOnce(&mut P, &mut P::Options)) -> Self {
        let (mut policy, mut options) = (self.shared.policy.clone(), self.shared.options.clone());
        change(&mut policy, &mut options);
        Self::of(policy, options)
    }

    /// As this layer is set, with the counters of the layer that `handle` is of, and with its default budget.
    /// The last of the settings: each of the others begins with a fresh state.
    pub fn sharing(self, handle: &RecoverHandle<P>) -> Self {
        let RecoverState { fallback, counts, .. } = &*handle.0;
        let (policy, options) = (self.shared.policy.clone(), self.shared.options.clone());
        let (fallback, counts) = (fallback.clone(), counts.clone());
        Self { shared: Arc::new(RecoverState { policy, options, fallback, counts }) }
    }

    /// The policy in force.
    pub fn policy(&self) -> &P {
        &self.shared.policy
    }

    /// A handle that reads the layer's counters and resets them.
    pub fn handle(&self) -> RecoverHandle<P> {
        RecoverHandle(self.shared.clone())
    }
}

impl<S: Clone, P: Recovery> Layer<S> for RecoverLayer<P> {
    type Service = Recover<S, P>;

    fn layer(&self, inner: S) -> Recover<S, P> {
        Recover::new(inner, self.shared.clone())
    }
}

/// Reads and resets the counters of a [`RecoverLayer`].
#[derive(Clone, Debug)]
pub struct RecoverHandle<P: Recovery>(Arc<RecoverState<P>>);

impl<P: Recovery> RecoverHandle<P> {
    /// What the layer did so far.
    pub fn snapshot(&self) -> P::Snapshot {
        *self.0.counts.lock()
    }

    /// Sets the counters to zero.
    pub fn reset(&self) {
        self.0.count(|counts| *counts = P::Snapshot::default());
    }
}
