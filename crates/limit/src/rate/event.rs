//! What the layer reports: one event for each action, and a step in the log of the call that it concerns.

use std::time::Duration;

use steadfast_core::{CallContext, Failure, Reason, RecoveryLog, Step, Target, time::millis};
use tracing::{Level, event};

use super::state::{Refused, RefusedFor};

/// A call has waited for its turn.
pub(super) fn waited(target: Option<&Target>, waited: Duration, log: &RecoveryLog) {
    event!(
        name: "steadfast::limit::waited",
        target: "steadfast::limit",
        Level::DEBUG,
        target = target.map(tracing::field::display),
        wait_ms = millis(waited),
        "a call has waited for the rate limit",
    );
    log.record(|| Step::new("limit", "waited").with_target(target).with_wait(waited));
}

/// A call would have to wait for too long.
pub(super) fn refused(target: Option<&Target>, refused: &Refused, log: &RecoveryLog) {
    let why = refused.why.as_str();
    event!(
        name: "steadfast::limit::refused",
        target: "steadfast::limit",
        Level::INFO,
        target = target.map(tracing::field::display),
        why,
        wait_ms = millis(refused.wait),
        "the rate limit refuses a call",
    );
    log.record(|| {
        Step::new("limit", "refused")
            .with_target(target)
            .with_reason(Reason::Budget)
            .with_wait(refused.wait)
            .with_detail(why)
    });
}

/// A provider has stated a limit, or another one than before.
pub(super) fn learned(target: Option<&Target>, what: &'static str, limit: u64, period: u64) {
    event!(
        name: "steadfast::limit::learned",
        target: "steadfast::limit",
        Level::INFO,
        target = target.map(tracing::field::display),
        what,
        limit,
        period_ms = period / 1_000_000,
        "a provider has stated a rate limit",
    );
}

/// A provider has refused a call for its rate, which the layer is there to prevent.
pub(super) fn rejected(target: Option<&Target>, hint: Option<Duration>, in_a_row: u32) {
    event!(
        name: "steadfast::limit::rejected",
        target: "steadfast::limit",
        Level::WARN,
        target = target.map(tracing::field::display),
        hint_ms = hint.map(millis),
        in_a_row,
        "a provider has refused a call for its rate",
    );
}

impl RefusedFor {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Time => "wait",
            Self::Crowd => "crowded",
            Self::Slots => "slots",
        }
    }
}

impl Refused {
    /// The failure, reported.
    pub(super) fn failure(&self, context: &CallContext) -> Failure {
        let target = context.target.as_ref();
        refused(target, self, &context.log);
        let text = match self.why {
            RefusedFor::Time => {
                "our rate limit for this target would hold the call longer than it may wait \
                 (`limit.max_wait_ms`, `limit.max_wait_with_spare_ms`, or its deadline); the target was not \
                 asked: come back after the stated wait or go to another target"
            }
            RefusedFor::Crowd => {
                "too many calls wait for our rate limit of this target already (`limit.max_waiting`); the \
                 target was not asked: come back after the stated wait or go to another target"
            }
            RefusedFor::Slots => {
                "too many calls wait already, between attempts or for rate limits, and this one would have had to; \
                 the target was not asked: come back after the stated wait or go to another target"
            }
        };
        let failure = Failure::refused_fixed(Reason::Budget, text)
            .with_retry_after(Some(self.wait))
            .with_evidence("rate_limit");
        let failure = match self.why {
            RefusedFor::Slots => failure.with_crowded(),
            RefusedFor::Time | RefusedFor::Crowd => failure,
        };
        match target {
            Some(target) => failure.with_target(target.clone()),
            None => failure,
        }
    }
}
