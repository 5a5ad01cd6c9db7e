//! What failover reports: one `tracing` event each, under a target of its own, and one step
//! in the request's recovery log.

use std::time::Duration;

use steadfast_core::{Failure, Reason, RecoveryLog, Step, Target};

/// The layer's name in recovery logs.
const LAYER: &str = "failover";

/// A call leaves one target for another.
pub(crate) fn switched(log: &RecoveryLog, from: &Target, to: &Target, reason: Reason) {
    tracing::info!(
        target: "steadfast::failover::switched",
        from = %from, to = %to, %reason,
        "the call goes on to another target"
    );
    log.record(|| Step::new(LAYER, "switched").with_target(Some(to)).with_reason(reason));
}

/// A call goes to a smaller model of the same provider.
pub(crate) fn downgraded(log: &RecoveryLog, from: &Target, to: &Target, reason: Reason) {
    tracing::info!(
        target: "steadfast::failover::downgraded",
        from = %from, to = %to, %reason,
        "another model of the provider stands in"
    );
    log.record(|| Step::new(LAYER, "downgraded").with_target(Some(to)).with_reason(reason));
}

/// A target is passed over.
pub(crate) fn skipped(log: &RecoveryLog, at: &Target, reason: Reason) {
    tracing::debug!(target: "steadfast::failover::skipped", %at, %reason, "a target is passed over");
    log.record(|| Step::new(LAYER, "skipped").with_target(Some(at)).with_reason(reason));
}

/// A target is left alone for a while.
pub(crate) fn cooled(log: &RecoveryLog, key: &Target, reason: Reason, wait: Duration, fresh: bool) {
    tracing::warn!(
        target: "steadfast::failover::cooled",
        at = %key, %reason, wait_ms = wait.as_millis(), again = !fresh,
        "the target is left alone for a while"
    );
    log.record(|| {
        Step::new(LAYER, "cooled").with_target(Some(key)).with_reason(reason).with_wait(wait)
    });
}

/// A person has to act: a key is refused, a bill unpaid.
pub(crate) fn alarm(key: &Target, failure: &Failure) {
    tracing::error!(
        target: "steadfast::failover::alarm",
        at = %key, reason = %failure.reason(), message = failure.message(),
        "a person has to look at this account: nothing else will mend it"
    );
}

/// One call sees whether a cooling target is back.
pub(crate) fn probe(log: &RecoveryLog, at: &Target) {
    tracing::info!(target: "steadfast::failover::probe", %at, "one call sees whether the target is back");
    log.record(|| Step::new(LAYER, "probe").with_target(Some(at)));
}

/// A target answered again.
pub(crate) fn recovered(log: &RecoveryLog, key: &Target) {
    tracing::info!(target: "steadfast::failover::recovered", at = %key, "the target answers again");
    log.record(|| Step::new(LAYER, "recovered").with_target(Some(key)));
}

/// A target is asked although it is cooling, or after a wait, because there is no other.
pub(crate) fn insisted(log: &RecoveryLog, at: &Target, reason: Reason) {
    tracing::info!(
        target: "steadfast::failover::insisted",
        %at, %reason,
        "every target is cooling; the one that comes back first is asked all the same"
    );
    log.record(|| Step::new(LAYER, "insisted").with_target(Some(at)).with_reason(reason));
}

/// Every target is cooling, and the call waits for the first to come back.
pub(crate) fn waited(log: &RecoveryLog, at: &Target, wait: Duration) {
    tracing::info!(
        target: "steadfast::failover::waited",
        %at, wait_ms = wait.as_millis(),
        "every target is cooling; the call waits for the first to come back"
    );
    log.record(|| Step::new(LAYER, "waited").with_target(Some(at)).with_wait(wait));
}

/// A second target is asked because the first has not begun to answer.
pub(crate) fn hedged(log: &RecoveryLog, to: &Target, after: Duration) {
    tracing::info!(
        target: "steadfast::failover::hedged",
        %to, after_ms = after.as_millis(),
        "no content yet; another target is asked as well"
    );
    log.record(|| Step::new(LAYER, "hedged").with_target(Some(to)).with_wait(after));
}

/// The other answer of a hedged call came first.
pub(crate) fn outrun(log: &RecoveryLog, loser: &Target) {
    log.record(|| Step::new(LAYER, "outrun").with_target(Some(loser)));
}

/// No target is left.
pub(crate) fn exhausted(log: &RecoveryLog, failure: &Failure, last: Reason) {
    tracing::warn!(
        target: "steadfast::failover::exhausted",
        targets = failure.trail().len(), %last,
        retry_after_ms = failure.retry_after().map(|wait| wait.as_millis()),
        "no target could take the call"
    );
    log.record(|| Step::new(LAYER, "exhausted").with_reason(last));
}

/// Targets are left, but not the means to ask them.
pub(crate) fn stopped(log: &RecoveryLog, why: &'static str) {
    tracing::info!(target: "steadfast::failover::stopped", why, "no further target is asked");
    log.record(|| Step::new(LAYER, "stopped").with_detail(why));
}

/// A chain was chosen that there is none of.
pub(crate) fn unknown_chain(name: &str) {
    tracing::warn!(
        target: "steadfast::failover::unknown_chain",
        name,
        "there is no chain of this name; the call takes the default one"
    );
}
