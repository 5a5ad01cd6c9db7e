//! What the layer reports: one step in the call's log and one event for each action.

use steadfast_core::{RecoveryLog, Step, Target};

/// A target has failed `failures` times in a row.
pub(crate) fn failing(target: Option<&Target>, failures: u32, log: &RecoveryLog) {
    tracing::event!(
        name: "steadfast::{{snake}}::failing",
        target: "steadfast::{{snake}}",
        tracing::Level::WARN,
        target = target.map(tracing::field::display),
        failures,
        "a target keeps failing"
    );
    log.record(|| Step::new("{{snake}}", "failing").with_target(target));
}
