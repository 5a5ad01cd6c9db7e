//! What all services of one layer share, and the handle to it.

use std::{fmt, sync::Arc};

use parking_lot::Mutex;
use steadfast_core::{
    CallContext, FaultSide, Keep, Keyed, Lease, LeaseEnd, Observer, Outcome, Permit, PermitKind,
    Target,
};
use tokio::time::Instant;

use crate::{ {{Pascal}}Policy, event};

/// What all services of one layer share: counts for each target.
pub(crate) struct State {
    pub(crate) policy: {{Pascal}}Policy,
    targets: Keyed<Option<Target>, Counter>,
}

/// One target's counts, changed by the leases of its calls.
struct Counter {
    target: Option<Target>,
    /// See [`{{Pascal}}Policy::failures_in_a_row`].
    limit: u32,
    counts: Mutex<{{Pascal}}Counts>,
}

/// The counts of one target. Calls without a target share one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct {{Pascal}}Counts {
    /// Calls that have begun.
    pub calls: u64,
    /// Calls under way: their answers have not ended.
    pub under_way: u64,
    /// Answers that succeeded.
    pub answers: u64,
    /// Calls that failed, at once or half way through their answer.
    pub failures: u64,
    /// Failures since the last answer that succeeded.
    pub failures_in_a_row: u32,
}

impl {{Pascal}}Counts {
    /// A call begins; returns its number, from 1.
    fn begin(&mut self) -> u64 {
        self.calls += 1;
        self.under_way += 1;
        self.calls
    }

    /// A call has ended. Returns whether it is the `limit`th failure in a row.
    fn end(&mut self, outcome: Outcome<'_>, limit: u32) -> bool {
        self.under_way = self.under_way.saturating_sub(1);
        match outcome {
            Outcome::Success => {
                self.answers += 1;
                self.failures_in_a_row = 0;
                false
            }
            Outcome::Failure(failure) if failure.fault() == FaultSide::Provider => {
                self.failures += 1;
                self.failures_in_a_row = self.failures_in_a_row.saturating_add(1);
                self.failures_in_a_row == limit
            }
            // Our own refusals, mistakes of the caller and cancelled calls do not count.
            _ => false,
        }
    }
}

impl State {
    pub(crate) fn new(policy: {{Pascal}}Policy) -> Self {
        Self { targets: Keyed::new(policy.keys), policy }
    }

    /// Counts the start of a call, and returns the lease that counts its end.
    pub(crate) fn admit(&self, context: &CallContext) -> Lease {
        let target = &context.target;
        let counter = self.targets.get_or_insert_with(target, Instant::now(), || Counter {
            target: target.clone(),
            limit: self.policy.failures_in_a_row,
            counts: Mutex::default(),
        });
        let permit = Permit::new(PermitKind::Ordinary, counter.counts.lock().begin());
        Lease::new(counter, permit, context.log.clone())
    }
}

impl Observer for Counter {
    fn ended(&self, end: LeaseEnd<'_>) {
        // The lock is released before anything is reported.
        let failing = self.counts.lock().end(end.outcome, self.limit);
        if failing {
            event::failing(self.target.as_ref(), self.limit, end.log);
        }
    }
}

impl Keep for Counter {}

/// Reads and resets the layer's counts. Cheap to clone.
#[derive(Clone)]
pub struct {{Pascal}}Handle {
    state: Arc<State>,
}

impl {{Pascal}}Handle {
    pub(crate) fn new(state: Arc<State>) -> Self {
        Self { state }
    }

    /// The counts of each target, in no order. Targets that have been idle for long are evicted.
    pub fn snapshot(&self) -> Vec<(Option<Target>, {{Pascal}}Counts)> {
        let targets = self.state.targets.entries().into_iter();
        targets.map(|(target, counter)| (target, counter.counts.lock().clone())).collect()
    }

    /// The counts of `target`, if there has been a call of it.
    pub fn get(&self, target: &Option<Target>) -> Option<{{Pascal}}Counts> {
        self.state.targets.get(target).map(|counter| counter.counts.lock().clone())
    }

    /// Removes every target.
    pub fn reset(&self) {
        self.state.targets.retain(|_, _| false);
    }
}

impl fmt::Debug for {{Pascal}}Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("{{Pascal}}Handle").field(&self.snapshot()).finish()
    }
}

#[cfg(test)]
mod tests {
    use steadfast_core::{Failure, Reason};

    use super::*;

    #[test]
    fn reports_failures_in_a_row_once_until_a_success() {
        let failure = Failure::new(Reason::ServerError, "");
        let table = [
            (Outcome::Failure(&failure), false),
            (Outcome::Cancelled, false),
            (Outcome::Failure(&failure), true),
            (Outcome::Failure(&failure), false),
            (Outcome::Success, false),
            (Outcome::Failure(&failure), false),
            (Outcome::Failure(&failure), true),
        ];
        let mut counts = {{Pascal}}Counts::default();
        for (index, (outcome, reported)) in table.into_iter().enumerate() {
            counts.begin();
            assert_eq!(counts.end(outcome, 2), reported, "{index}");
        }
        assert_eq!((counts.calls, counts.answers, counts.failures), (7, 1, 5));
        assert_eq!(counts.under_way, 0);
    }
}
