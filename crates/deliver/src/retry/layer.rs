//! The layer, its settings and its handle.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use parking_lot::Mutex;
use steadfast_core::Failure;
use tower_layer::Layer;

use super::{DeliveryRetry, DeliveryRetryPolicy, decide::RetryDecision};
use crate::PolicyError;

/// Sends a message again that failed for a reason that may pass: a rate limit, a 5xx, a connection.
///
/// It works on any request that is a [`Call`](steadfast_core::Call) whose reply is a plain value. Whatever may have been sent is
/// not sent again, unless the [policy](DeliveryRetryPolicy::resend_unclear) allows it: the failure that is returned is then
/// marked ([`Failure::is_delivered`]), so that no layer further out sends it either.
///
/// Every service made by one layer value, and by its clones, shares one set of counters.
#[derive(Clone, Debug)]
#[must_use = "a layer does nothing until it wraps a service"]
pub struct DeliveryRetryLayer {
    shared: Arc<RetryShared>,
}

/// What all services of one layer share.
#[derive(Debug)]
pub(crate) struct RetryShared {
    pub(crate) policy: DeliveryRetryPolicy,
    rng: Mutex<fastrand::Rng>,
    pub(crate) calls: AtomicU64,
    pub(crate) retries: AtomicU64,
    pub(crate) gave_up: AtomicU64,
}

impl DeliveryRetryLayer {
    /// Retries by `policy`.
    ///
    /// # Errors
    ///
    /// When the policy is invalid; the error says what would be valid.
    pub fn new(policy: DeliveryRetryPolicy) -> Result<Self, PolicyError> {
        policy.validate()?;
        Ok(Self::of(policy, fastrand::Rng::new()))
    }

    /// Draws jitter from this seed, so that the same failures give the same waits.
    pub fn with_seed(self, seed: u64) -> Self {
        Self::of(self.shared.policy, fastrand::Rng::with_seed(seed))
    }

    fn of(policy: DeliveryRetryPolicy, rng: fastrand::Rng) -> Self {
        let shared = RetryShared {
            policy,
            rng: Mutex::new(rng),
            calls: AtomicU64::default(),
            retries: AtomicU64::default(),
            gave_up: AtomicU64::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// The policy in force.
    pub fn policy(&self) -> &DeliveryRetryPolicy {
        &self.shared.policy
    }

    /// A handle that reads the layer's counters and resets them.
    pub fn handle(&self) -> DeliveryRetryHandle {
        DeliveryRetryHandle(self.shared.clone())
    }
}

impl Default for DeliveryRetryLayer {
    fn default() -> Self {
        Self::of(DeliveryRetryPolicy::default(), fastrand::Rng::new())
    }
}

impl<S: Clone> Layer<S> for DeliveryRetryLayer {
    type Service = DeliveryRetry<S>;

    fn layer(&self, inner: S) -> Self::Service {
        DeliveryRetry::new(inner, self.shared.clone())
    }
}

impl RetryShared {
    pub(crate) fn decide(
        &self,
        failure: &Failure,
        retries: u32,
        previous: std::time::Duration,
        left: std::time::Duration,
    ) -> RetryDecision {
        self.policy.decide(failure, retries, previous, left, &mut self.rng.lock())
    }
}

/// Reads and resets the counters of a [`DeliveryRetryLayer`]. Cheap to clone.
#[derive(Clone, Debug)]
pub struct DeliveryRetryHandle(Arc<RetryShared>);

/// What a [`DeliveryRetryLayer`] has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeliveryRetrySnapshot {
    /// Messages that were to be sent.
    pub calls: u64,
    /// Retries made.
    pub retries: u64,
    /// Messages that failed in the end.
    pub gave_up: u64,
}

impl DeliveryRetryHandle {
    /// What the layer has done so far.
    pub fn snapshot(&self) -> DeliveryRetrySnapshot {
        let RetryShared { calls, retries, gave_up, .. } = &*self.0;
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        DeliveryRetrySnapshot { calls: read(calls), retries: read(retries), gave_up: read(gave_up) }
    }

    /// Sets the counters to zero.
    pub fn reset(&self) {
        let RetryShared { calls, retries, gave_up, .. } = &*self.0;
        for count in [calls, retries, gave_up] {
            count.store(0, Ordering::Relaxed);
        }
    }
}
