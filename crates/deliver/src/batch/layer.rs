//! The layer.

use std::sync::Arc;

use steadfast_core::Spare;
use tower_layer::Layer;

use super::{Batch, BatchPolicy, open::OpenBatches};
use crate::{DeliveryLedger, PolicyError};

/// Makes one [`ParentTurn`](crate::ParentTurn) of the announcements that come for one session within 2 s: around the parent, inside
/// of the [`RouteFallbackLayer`](crate::RouteFallbackLayer).
///
/// The turn ends with the time of the first of them. One that fails, takes too long, or that one of its callers gives up, fails
/// for all: each then goes to the channel by itself.
///
/// Its services need a tokio runtime, and are always ready: the parent is polled ready for each turn.
#[derive(Clone, Debug)]
#[must_use = "a layer does nothing until it wraps a service"]
pub struct BatchLayer {
    open: Arc<OpenBatches>,
}

impl BatchLayer {
    /// By the default policy. What a turn announces and has announced is recorded in the ledger, which is that of the layers
    /// around it: by it they know when a turn that they have given up has ended.
    pub fn new(ledger: DeliveryLedger) -> Self {
        Self { open: Arc::new(OpenBatches::new(BatchPolicy::default(), ledger)) }
    }

    /// With this policy, and new state.
    ///
    /// # Errors
    ///
    /// When the policy is invalid.
    pub fn with_policy(self, policy: BatchPolicy) -> Result<Self, PolicyError> {
        policy.validate()?;
        Ok(Self { open: Arc::new(OpenBatches::new(policy, self.open.ledger.clone())) })
    }

    /// The policy in force.
    pub fn policy(&self) -> &BatchPolicy {
        &self.open.policy
    }

    /// How many sessions collect announcements at this moment.
    pub fn collecting(&self) -> usize {
        self.open.len()
    }
}

impl<P: Clone> Layer<P> for BatchLayer {
    type Service = Batch<P>;

    fn layer(&self, inner: P) -> Self::Service {
        Batch::new(Spare::of(&inner), self.open.clone())
    }
}
