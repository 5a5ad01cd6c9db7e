//! What failover reports: one `tracing` event each, and one step in the request's recovery log.

use std::time::Duration;

use steadfast_core::{Failure, Reason, RecoveryLog, Step, Target, time::millis};

/// The layer's name in recovery logs.
const LAYER: &str = "failover";

/// A call leaves one target for another.
pub(crate) fn switched(log: &RecoveryLog, from: &Target, to: &Target, reason: Reason) {
    tracing::info!(
        name: "steadfast::failover::switched",
        target: "steadfast::failover",
        from = %from, to = %to, reason = reason.as_str(),
        "the call goes on to another target"
    );
    log.record(|| Step::new(LAYER, "switched").with_target(Some(to)).with_reason(reason));
    notice(log, from, to, reason);
}

/// A call goes to a smaller model of the same provider.
pub(crate) fn downgraded(log: &RecoveryLog, from: &Target, to: &Target, reason: Reason) {
    tracing::info!(
        name: "steadfast::failover::downgraded",
        target: "steadfast::failover",
        from = %from, to = %to, reason = reason.as_str(),
        "another model of the provider stands in"
    );
    log.record(|| Step::new(LAYER, "downgraded").with_target(Some(to)).with_reason(reason));
    notice(log, from, to, reason);
}

/// It is reported to people when another model answers for want of capacity.
pub(crate) fn notice(log: &RecoveryLog, from: &Target, to: &Target, reason: Reason) {
    if reason == Reason::Overloaded && from.model() != to.model() {
        log.record_notice(LAYER, to);
    }
}

/// A target is passed over.
pub(crate) fn skipped(log: &RecoveryLog, at: &Target, reason: Reason) {
    tracing::debug!(
        name: "steadfast::failover::skipped",
        target: "steadfast::failover",
        target = %at, reason = reason.as_str(), "a target is passed over");
    log.record(|| Step::new(LAYER, "skipped").with_target(Some(at)).with_reason(reason));
}

/// A target is passed over because its provider is degraded.
pub(crate) fn avoided(log: &RecoveryLog, at: &Target) {
    tracing::debug!(
        name: "steadfast::failover::skipped",
        target: "steadfast::failover",
        target = %at, reason = "degraded", "a target is passed over");
    log.record(|| Step::new(LAYER, "skipped").with_target(Some(at)).with_detail("degraded"));
}

/// A target is left alone for a while.
pub(crate) fn cooled(log: &RecoveryLog, key: &Target, reason: Reason, wait: Duration, fresh: bool) {
    tracing::warn!(
        name: "steadfast::failover::cooled",
        target: "steadfast::failover",
        target = %key, reason = reason.as_str(), wait_ms = millis(wait), again = !fresh,
        "the target is left alone for a while"
    );
    log.record(|| {
        Step::new(LAYER, "cooled").with_target(Some(key)).with_reason(reason).with_wait(wait)
    });
}

/// A target was left alone before this process started, and still is.
pub(crate) fn restored(key: &Target, reason: Reason, left: Duration) {
    tracing::info!(
        name: "steadfast::failover::restored",
        target: "steadfast::failover",
        target = %key, reason = reason.as_str(), wait_ms = millis(left),
        "the target was left alone before the start, and is for what is left of that time"
    );
}

/// Another process has found that a target is unwell, or that it is well again.
#[cfg(feature = "shared")]
pub(crate) fn shared(key: &Target, reason: Option<Reason>, left: Duration) {
    tracing::info!(
        name: "steadfast::failover::shared",
        target: "steadfast::failover",
        target = %key, reason = reason.map(Reason::as_str), wait_ms = millis(left),
        "another node has found how the target is"
    );
}

/// A person has to act: a key is refused, a bill unpaid, a model gone.
pub(crate) fn alarm(key: &Target, failure: &Failure) {
    tracing::error!(
        name: "steadfast::failover::alarm",
        target: "steadfast::failover",
        target = %key, reason = failure.reason().as_str(), error = failure.message(),
        "a person has to see to this: it does not recover by itself"
    );
}

/// One call sees whether a cooling target is back.
pub(crate) fn probe(log: &RecoveryLog, at: &Target) {
    tracing::info!(
        name: "steadfast::failover::probe",
        target: "steadfast::failover",
        target = %at, "one call sees whether the target is back");
    log.record(|| Step::new(LAYER, "probe").with_target(Some(at)));
}

/// A target answered again.
pub(crate) fn recovered(log: &RecoveryLog, key: &Target) {
    tracing::info!(
        name: "steadfast::failover::recovered",
        target: "steadfast::failover",
        target = %key, "the target answers again");
    log.record(|| Step::new(LAYER, "recovered").with_target(Some(key)));
}

/// A target is asked although it is cooling, because there is no other.
pub(crate) fn insisted(log: &RecoveryLog, at: &Target, reason: Reason) {
    tracing::info!(
        name: "steadfast::failover::insisted",
        target: "steadfast::failover",
        target = %at, reason = reason.as_str(),
        "no other target is left; one that is cooling is asked all the same"
    );
    log.record(|| Step::new(LAYER, "insisted").with_target(Some(at)).with_reason(reason));
}

/// Nobody is left to be asked, and the call waits before it goes round its targets again.
pub(crate) fn waited(log: &RecoveryLog, at: &Target, wait: Duration) {
    tracing::info!(
        name: "steadfast::failover::waited",
        target: "steadfast::failover",
        target = %at, wait_ms = millis(wait),
        "no target has answered; the call waits until the first may be asked again"
    );
    log.record(|| Step::new(LAYER, "waited").with_target(Some(at)).with_wait(wait));
}

/// A second target is asked because the first has no content yet.
pub(crate) fn hedged(log: &RecoveryLog, to: &Target, after: Duration) {
    tracing::info!(
        name: "steadfast::failover::hedged",
        target: "steadfast::failover",
        to = %to, after_ms = millis(after),
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
        name: "steadfast::failover::exhausted",
        target: "steadfast::failover",
        targets = failure.trail().len(), last = last.as_str(),
        retry_after_ms = failure.retry_after().map(millis),
        "no target could take the call"
    );
    log.record(|| Step::new(LAYER, "exhausted").with_reason(last));
}

/// Targets are left, but not the means to ask them.
pub(crate) fn stopped(log: &RecoveryLog, why: &'static str) {
    tracing::info!(
        name: "steadfast::failover::stopped",
        target: "steadfast::failover",
        why, "no further target is asked");
    log.record(|| Step::new(LAYER, "stopped").with_detail(why));
}

/// A chain was chosen that there is none of.
pub(crate) fn unknown_chain(name: &str) {
    tracing::warn!(
        name: "steadfast::failover::unknown_chain",
        target: "steadfast::failover",
        name,
        "there is no chain of this name; the call takes the default one"
    );
}
