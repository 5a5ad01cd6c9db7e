//! What all services of one layer share, and the handle to it.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use steadfast_core::TimeLimit;

use crate::limits::TimeLimits;

/// Every limit, in the order of the counters.
const LIMITS: [TimeLimit; 6] = [
    TimeLimit::Stall,
    TimeLimit::FirstContent,
    TimeLimit::Attempt,
    TimeLimit::Makespan,
    TimeLimit::Pipeline,
    TimeLimit::Throughput,
];

/// What all services of one layer share.
#[derive(Debug, Default)]
pub(crate) struct TimeoutState {
    pub(crate) limits: TimeLimits,
    fired: Arc<Fired>,
}

/// How often each limit has fired.
type Fired = [AtomicU64; LIMITS.len()];

impl TimeoutState {
    pub(crate) fn new(limits: TimeLimits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// These limits, counted where `other` counts.
    pub(crate) fn sharing(&self, other: &Self) -> Self {
        Self { limits: self.limits, fired: other.fired.clone() }
    }

    pub(crate) fn fired(&self, limit: TimeLimit) {
        if let Some(index) = LIMITS.iter().position(|known| *known == limit) {
            self.fired[index].fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Reads and resets the state of a [`StallTimeoutLayer`](crate::StallTimeoutLayer) or a
/// [`DeadlineLayer`](crate::DeadlineLayer). Cheap to clone; every clone and every service of the
/// layer share one state.
#[derive(Clone)]
pub struct TimeoutHandle(pub(crate) Arc<TimeoutState>);

/// What a layer has done so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TimeoutSnapshot {
    /// How often each limit has fired; those that never have are left out.
    pub fired: Vec<(TimeLimit, u64)>,
}

impl TimeoutSnapshot {
    /// How often `limit` has fired.
    pub fn count(&self, limit: TimeLimit) -> u64 {
        self.fired.iter().find(|(known, _)| *known == limit).map_or(0, |(_, count)| *count)
    }
}

impl TimeoutHandle {
    /// What the layer has done so far.
    pub fn snapshot(&self) -> TimeoutSnapshot {
        let fired = LIMITS
            .into_iter()
            .zip(&*self.0.fired)
            .map(|(limit, count)| (limit, count.load(Ordering::Relaxed)))
            .filter(|(_, count)| *count > 0)
            .collect();
        TimeoutSnapshot { fired }
    }

    /// Sets the counters to zero.
    pub fn reset(&self) {
        for count in &*self.0.fired {
            count.store(0, Ordering::Relaxed);
        }
    }
}

impl fmt::Debug for TimeoutHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TimeoutHandle").field(&self.snapshot()).finish()
    }
}
