//! What the layer reports: one event for each change, and one step in the log of the call that made it.

use steadfast_core::{RecoveryLog, Step, Target, time::millis};

use crate::{HealthStatus, HealthTransition};

/// A provider was degraded, or recovered; `log` is that of the call that decided.
pub(crate) fn changed(provider: &str, change: &HealthTransition, log: Option<&RecoveryLog>) {
    // The names of events are constants, so each has its own call.
    macro_rules! event {
        ($name:literal, $level:ident, $text:literal) => {
            tracing::event!(
                name: $name,
                target: "steadfast::health",
                tracing::Level::$level,
                provider,
                cause = change.cause.as_str(),
                reason = change.reason.map(|reason| reason.as_str()),
                agents = change.agents,
                in_a_row = change.in_a_row,
                calls = change.calls,
                failures = change.failures,
                after_ms = millis(change.after),
                $text
            )
        };
    }
    let action = match change.to {
        HealthStatus::Degraded => {
            event!("steadfast::health::degraded", WARN, "the provider is degraded");
            "degraded"
        }
        HealthStatus::Healthy => {
            event!("steadfast::health::recovered", INFO, "the provider has recovered");
            "recovered"
        }
    };
    if let Some(log) = log {
        log.record(|| {
            let mut step = Step::new("health", action).with_detail(change.cause.as_str());
            step.target = (!provider.is_empty()).then(|| Target::new(provider));
            step.reason = change.reason.filter(|_| change.to == HealthStatus::Degraded);
            step
        });
    }
}
