//! What the layer reports to the log and the trace: one entry of each for one action.

use steadfast_core::{RecoveryLog, Step, Target, time::millis};
use tokio::time::Instant;
use tracing::{Level, event};

use crate::{DecisionKind, EscalationDecision, EscalationId, HeldRequest, registry::Overflow};

const LAYER: &str = "escalate";

/// A request waits for a decision.
pub(crate) fn held(held: &HeldRequest, now: Instant, log: &RecoveryLog) {
    event!(
        name: "steadfast::escalate::held",
        target: "steadfast::escalate",
        Level::WARN,
        id = tracing::field::display(held.id),
        round = held.round,
        tenant = held.tenant.as_deref(),
        session = held.session.as_deref(),
        model = held.model.as_str(),
        reason = held.reason.as_str(),
        attempts = held.attempts,
        left_ms = millis(held.left_at(now)),
        soonest_ms = held.soonest.map(|soonest| millis(soonest.saturating_duration_since(now))),
        "every target has failed; a person may decide",
    );
    log.record(|| {
        Step::new(LAYER, "held").with_reason(held.reason).with_detail(held.id.to_string())
    });
}

/// Somebody has decided.
pub(crate) fn decided(id: EscalationId, decision: &EscalationDecision, log: &RecoveryLog) {
    let (kind, to) = (decision.kind(), decision.target());
    event!(
        name: "steadfast::escalate::decided",
        target: "steadfast::escalate",
        Level::INFO,
        id = tracing::field::display(id),
        decision = kind.as_str(),
        model = match decision {
            EscalationDecision::TryModel(model) => Some(model.as_str()),
            _ => None,
        },
        target = to.map(tracing::field::display),
        "a person has decided about a held request",
    );
    // The answer is a step of its own.
    if kind != DecisionKind::Answer {
        log.record(|| Step::new(LAYER, "decided").with_target(to).with_detail(kind.as_str()));
    }
}

/// The caller gets an answer that a person has written.
pub(crate) fn answered(id: EscalationId, bytes: usize, log: &RecoveryLog) {
    event!(
        name: "steadfast::escalate::answered",
        target: "steadfast::escalate",
        Level::INFO,
        id = tracing::field::display(id),
        bytes,
        "a person has answered a held request",
    );
    log.record(|| Step::new(LAYER, "answered").with_detail("by hand"));
}

/// The cooldown of a target was ended.
pub(crate) fn cooldown_reset(id: EscalationId, to: &Target, known: bool, log: &RecoveryLog) {
    event!(
        name: "steadfast::escalate::reset",
        target: "steadfast::escalate",
        Level::WARN,
        id = tracing::field::display(id),
        target = tracing::field::display(to),
        known,
        "a person has ended the cooldown of a target",
    );
    log.record(|| Step::new(LAYER, "reset").with_target(Some(to)));
}

/// The attempt after a decision failed, and the request is not held again.
pub(crate) fn failed(id: EscalationId, rounds: u32, log: &RecoveryLog) {
    event!(
        name: "steadfast::escalate::failed",
        target: "steadfast::escalate",
        Level::WARN,
        id = tracing::field::display(id),
        rounds,
        "what was decided failed, and the request is not held again",
    );
    log.record(|| Step::new(LAYER, "failed"));
}

/// Nobody has decided in time.
pub(crate) fn expired(id: EscalationId, round: u32, log: &RecoveryLog) {
    event!(
        name: "steadfast::escalate::expired",
        target: "steadfast::escalate",
        Level::WARN,
        id = tracing::field::display(id),
        round,
        "nobody has decided about a held request in time",
    );
    log.record(|| Step::new(LAYER, "expired"));
}

/// A request is not held.
pub(crate) fn overflow(why: Overflow, log: &RecoveryLog) {
    event!(
        name: "steadfast::escalate::overflow",
        target: "steadfast::escalate",
        Level::WARN,
        why = why.as_str(),
        "a request could not be held for a person",
    );
    log.record(|| Step::new(LAYER, "overflow").with_detail(why.as_str()));
}

/// The caller of a held request went away.
pub(crate) fn left(id: EscalationId) {
    event!(
        name: "steadfast::escalate::left",
        target: "steadfast::escalate",
        Level::INFO,
        id = tracing::field::display(id),
        "the caller of a held request went away",
    );
}

/// An operator inside the process has failed.
pub(crate) fn operator_failed(id: EscalationId, error: &dyn std::fmt::Display) {
    event!(
        name: "steadfast::escalate::operator_failed",
        target: "steadfast::escalate",
        Level::ERROR,
        id = tracing::field::display(id),
        error = tracing::field::display(error),
        "the operator of held requests failed; the request is held as before",
    );
}
