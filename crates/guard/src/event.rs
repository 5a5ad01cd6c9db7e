//! What the guard reports to the log and the traces.

use steadfast_core::{Reason, RecoveryLog, Step, time::millis};

use crate::{Advice, SafetyStop, TaskId};

/// A task was stopped; `inside` an answer under way.
pub(crate) fn stopped(task: TaskId<'_>, stop: &SafetyStop, inside: bool, log: &RecoveryLog) {
    tracing::event!(
        name: "steadfast::guard::stopped",
        target: "steadfast::guard",
        tracing::Level::WARN,
        tenant = task.tenant,
        task = task.name,
        cause = stop.cause.as_str(),
        events = stop.events,
        calls = stop.calls,
        elapsed_ms = stop.elapsed.map(millis),
        inside,
        "the safety guard stopped a task"
    );
    log.record(|| {
        Step::new("guard", "stopped").with_reason(Reason::Safety).with_detail(stop.cause.as_str())
    });
}

/// The model was advised.
pub(crate) fn advised(task: TaskId<'_>, advice: &[Advice], log: &RecoveryLog) {
    for one in advice {
        let (about, count) = match one {
            Advice::Loop { rule, count, .. } => (rule.as_str(), *count),
            Advice::Wait { .. } => ("wait", 0),
            Advice::LastEdit { limit, .. } => ("last_edit", *limit),
        };
        tracing::event!(
            name: "steadfast::guard::advised",
            target: "steadfast::guard",
            tracing::Level::INFO,
            tenant = task.tenant,
            task = task.name,
            about,
            count,
            "the safety guard advised the model"
        );
        log.record(|| Step::new("guard", "advised").with_detail(about));
    }
}

/// An operator reset the counts of a task.
pub(crate) fn extended(task: TaskId<'_>, events: u64, calls: u64) {
    tracing::event!(
        name: "steadfast::guard::extended",
        target: "steadfast::guard",
        tracing::Level::WARN,
        tenant = task.tenant,
        task = task.name,
        events,
        calls,
        "an operator extended a task: all its counts start at zero"
    );
}
