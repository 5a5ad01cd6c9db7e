//! What is told when a limit fires: the failure, the trace, the log.

use std::{fmt, time::Duration};

use steadfast_core::{Failure, Fault, Reason, RecoveryLog, Retry, Scope, Step, Target, TimeLimit};
use tracing::{Level, event};

use crate::state::Limits;

/// A limit that has fired.
#[derive(Debug)]
pub(crate) struct Fired<'a> {
    pub(crate) limit: TimeLimit,
    pub(crate) limits: &'a Limits,
    /// The caller's own deadline was earlier than any limit of the layer.
    pub(crate) callers: bool,
    pub(crate) elapsed: Duration,
    /// Content had been handed on.
    pub(crate) delivered: bool,
    pub(crate) target: Option<&'a Target>,
    pub(crate) log: &'a RecoveryLog,
}

impl Fired<'_> {
    /// The setting that decided.
    fn knob(&self) -> &'static str {
        match self.limit {
            TimeLimit::Stall => "stall",
            TimeLimit::FirstContent => "first_content",
            TimeLimit::Attempt => "attempt",
            TimeLimit::Makespan => "ceiling",
            TimeLimit::Throughput => "floor",
            TimeLimit::Pipeline if self.callers => "deadline",
            _ => "pipeline",
        }
    }

    fn set_to(&self) -> Option<Duration> {
        let limits = self.limits;
        match self.limit {
            TimeLimit::Stall => limits.stall,
            TimeLimit::FirstContent => limits.first_content,
            TimeLimit::Attempt => limits.attempt,
            TimeLimit::Makespan => limits.makespan,
            TimeLimit::Throughput => limits.floor.map(|floor| floor.window),
            _ if self.callers => None,
            _ => limits.pipeline,
        }
    }

    /// Tells the trace and the log, and makes the failure.
    pub(crate) fn failure(&self) -> Failure {
        let Self { limit, elapsed, delivered, target, log, .. } = *self;
        event!(
            name: "steadfast::timeout::fired",
            target: "steadfast::timeout",
            Level::WARN,
            limit = limit.as_str(),
            knob = self.knob(),
            limit_ms = self.set_to().map(millis),
            elapsed_ms = millis(elapsed),
            delivered,
            target = target.map(tracing::field::display),
            "{self}",
        );
        log.record(|| {
            Step::new("timeout", "fired")
                .target(target)
                .reason(Reason::Timeout)
                .wait(elapsed)
                .detail(limit.as_str())
        });

        let mut failure = Failure::new(Reason::Timeout, self.to_string()).with_time_limit(limit);
        failure = match limit {
            // Over is over: neither a retry nor another target brings the time back.
            TimeLimit::Pipeline => {
                failure.with_retry(Retry::Forbidden).with_evidence("pipeline_timeout")
            }
            limit => failure.with_evidence(format!("limit:{limit}")),
        };
        if !limit.blames_provider() {
            failure = failure.with_scope(Scope::Request).with_fault(Fault::Local);
        }
        if delivered {
            failure = failure.with_delivered();
        }
        match target {
            Some(target) => failure.with_target(target.clone()),
            None => failure,
        }
    }
}

impl fmt::Display for Fired<'_> {
    /// What happened, the limit, its knob, the time, and how much the caller has.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.limit {
            TimeLimit::Stall => "the answer stalled",
            TimeLimit::FirstContent => "no content came",
            TimeLimit::Attempt => "the attempt took too long",
            TimeLimit::Makespan => "the answer took too long",
            TimeLimit::Throughput => "the answer came too slowly",
            _ => "execution:aborted",
        })?;
        write!(f, ": limit {}", self.limit)?;
        if let Some(limit) = self.set_to() {
            write!(f, " of {limit:?}")?;
        }
        write!(f, ", set by `{}`, fired after ", self.knob())?;
        // Whole milliseconds: timers are no finer.
        write!(f, "{:?}; ", Duration::from_millis(millis(self.elapsed)))?;
        f.write_str(match self.delivered {
            true => "content had been delivered",
            false => "no content had been delivered",
        })
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
