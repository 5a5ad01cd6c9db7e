//! What can be seen of the health of targets.

use std::{sync::Arc, time::Duration};

use steadfast_core::{Scope, Target};
use tokio::time::Instant;

use crate::health::{Cooldown, LastError, Status};

/// The health of every target at one moment. Cheap to clone.
#[derive(Clone, Debug)]
pub struct FailoverSnapshot {
    at: Instant,
    targets: Arc<[TargetHealth]>,
}

/// The health of one provider, of one of its models or credentials, or of a model with a
/// credential.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TargetHealth {
    /// What it is the health of: the parts that are set.
    pub target: Target,
    /// Which of the parts it is about.
    pub scope: Scope,
    /// How it is doing.
    pub status: Status,
    /// Failures in a row.
    pub consecutive: u32,
    /// Failures ever.
    pub errors: u64,
    /// The last failure.
    pub last_error: Option<LastError>,
    /// When a call of it last got content, to a tenth of a second.
    pub last_success: Option<Instant>,
    /// Until when it is left alone, while it is. What rests for single callers alone is not shown.
    pub cooling: Option<Cooldown>,
    /// A call is under way that sees whether it is back.
    pub probing: bool,
    /// An operator has taken it out: it cools until it is put back.
    pub out: bool,
    /// How many calls are under way here; of providers alone, with all of their models and credentials.
    pub in_flight: u32,
}

impl Default for FailoverSnapshot {
    fn default() -> Self {
        Self { at: Instant::now(), targets: Arc::default() }
    }
}

impl FailoverSnapshot {
    pub(crate) fn new(at: Instant, mut targets: Vec<TargetHealth>) -> Self {
        targets.sort_by_cached_key(|health| health.target.to_string());
        Self { at, targets: targets.into() }
    }

    /// When it was taken.
    pub fn at(&self) -> Instant {
        self.at
    }

    /// Everything that is known, by name.
    pub fn targets(&self) -> &[TargetHealth] {
        &self.targets
    }

    /// What is known of `target`: exactly these parts of it.
    pub fn get(&self, target: &Target) -> Option<&TargetHealth> {
        self.targets.iter().find(|health| health.target == *target)
    }

    /// What is cooling, until a call has seen that it is over.
    pub fn cooling(&self) -> impl Iterator<Item = &TargetHealth> {
        self.targets.iter().filter(|health| health.cooling.is_some())
    }
}

impl TargetHealth {
    /// How much longer it is left alone, counted from `now`.
    pub fn cooling_for(&self, now: Instant) -> Option<Duration> {
        let left = self.cooling?.until.saturating_duration_since(now);
        (!left.is_zero()).then_some(left)
    }
}
