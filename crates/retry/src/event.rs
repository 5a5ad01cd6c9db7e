//! What the layer reports to the log and the trace: one entry of each for one action.

use std::time::Duration;

use steadfast_core::{CallContext, Failure, Step, time::millis};
use tracing::{Level, event};

use crate::GiveUp;

const LAYER: &str = "retry";

/// A failed attempt will be retried after `wait`.
pub(crate) fn retried(context: &CallContext, failure: &Failure, retry: u32, wait: Duration) {
    let target = failure.target().or(context.target.as_ref());
    event!(
        name: "steadfast::retry::retried",
        target: "steadfast::retry",
        Level::INFO,
        reason = failure.reason().as_str(),
        retry,
        wait_ms = millis(wait),
        hint_ms = failure.retry_after().map(millis),
        target = target.map(tracing::field::display),
        "retrying after {wait:?}: {failure}",
    );
    context.log.record(|| {
        Step::new(LAYER, "retried")
            .with_target(target)
            .with_reason(failure.reason())
            .with_wait(wait)
    });
}

/// The layer returns a failure that it had retried or could have.
pub(crate) fn gave_up(context: &CallContext, failure: &Failure, retries: u32, why: GiveUp) {
    let target = failure.target().or(context.target.as_ref());
    event!(
        name: "steadfast::retry::gave_up",
        target: "steadfast::retry",
        Level::WARN,
        reason = failure.reason().as_str(),
        why = why.as_str(),
        retries,
        hint_ms = failure.retry_after().map(millis),
        target = target.map(tracing::field::display),
        "gave up after {retries} retries ({why}): {failure}",
    );
    context.log.record(|| {
        Step::new(LAYER, "gave_up")
            .with_target(target)
            .with_reason(failure.reason())
            .with_detail(why.as_str())
    });
}

/// A retried request got a message.
pub(crate) fn nudged(context: &CallContext, retry: u32) {
    event!(
        name: "steadfast::retry::nudged",
        target: "steadfast::retry",
        Level::DEBUG,
        retry,
        "added a message to the retried request",
    );
    context.log.record(|| Step::new(LAYER, "nudged").with_target(context.target.as_ref()));
}
