//! What the guard reports to the log and the traces.

use steadfast_core::{Reason, RecoveryLog, Step};

use crate::{Advice, Stop, TaskId};

/// A task was stopped; `inside` an answer that had begun.
pub(crate) fn stopped(task: TaskId<'_>, stop: &Stop, inside: bool, log: &RecoveryLog) {
    tracing::event!(
        name: "steadfast::guard::stopped",
        target: "steadfast::guard",
        tracing::Level::WARN,
        tenant = task.tenant,
        task = task.name,
        cause = stop.cause.as_str(),
        events = stop.events,
        calls = stop.calls,
        elapsed_ms = u64::try_from(stop.elapsed.as_millis()).unwrap_or(u64::MAX),
        inside,
        "the safety guard stopped a task"
    );
    log.record(|| Step::new("guard", "stopped").reason(Reason::Safety).detail(stop.cause.as_str()));
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
        log.record(|| Step::new("guard", "advised").detail(about));
    }
}

/// An operator gave a task its limits anew.
pub(crate) fn extended(task: TaskId<'_>, events: u64, calls: u64) {
    tracing::event!(
        name: "steadfast::guard::extended",
        target: "steadfast::guard",
        tracing::Level::WARN,
        tenant = task.tenant,
        task = task.name,
        events,
        calls,
        "an operator extended a task: everything counted of it begins anew"
    );
}
