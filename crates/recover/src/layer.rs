//! The layers and their settings, the same for both policies.

use std::sync::Arc;

use parking_lot::Mutex;
use steadfast_core::RetryBudget;
use tower_layer::Layer;

use crate::{PolicyError, policy::Recovery, service::Recover};

/// Goes on with answers that ended too early, by a policy: a
/// [`ContinuationLayer`](crate::ContinuationLayer) or a
/// [`StreamResumeLayer`](crate::StreamResumeLayer).
///
/// Every service of a layer value, and of its clones, shares its counters. The setters begin a new
/// state: take the [`handle`](Self::handle) last.
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
    /// What is drawn from when neither the layer nor the request has a budget.
    pub(crate) fallback: RetryBudget,
    /// Locked only when something was done, which is rare.
    counts: Mutex<P::Snapshot>,
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
    /// Passes on what comes as it comes.
    pub fn off() -> Self {
        Self::of(P::off(), P::Options::default())
    }

    /// Goes on with answers by `policy`.
    ///
    /// # Errors
    ///
    /// When the policy makes no sense; see its `validate`.
    pub fn new(policy: P) -> Result<Self, PolicyError> {
        policy.check()?;
        Ok(Self::of(policy, P::Options::default()))
    }

    fn of(policy: P, options: P::Options) -> Self {
        let (fallback, counts) = (RetryBudget::default(), Mutex::default());
        Self { shared: Arc::new(RecoverState { policy, options, fallback, counts }) }
    }

    /// With the policy changed by `change`.
    ///
    /// # Errors
    ///
    /// When it makes no sense any more; see its `validate`.
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

    /// The policy in force.
    pub fn policy(&self) -> &P {
        &self.shared.policy
    }

    /// Looks at what the layer did.
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

/// Looks at what a [`RecoverLayer`] did, and sets its counters back.
#[derive(Clone, Debug)]
pub struct RecoverHandle<P: Recovery>(Arc<RecoverState<P>>);

impl<P: Recovery> RecoverHandle<P> {
    /// What the layer did so far.
    pub fn snapshot(&self) -> P::Snapshot {
        *self.0.counts.lock()
    }

    /// Counts from zero again.
    pub fn reset(&self) {
        self.0.count(|counts| *counts = P::Snapshot::default());
    }
}
