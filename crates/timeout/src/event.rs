//! What is reported when a limit fires: the failure, the trace and the log.

use std::{fmt, time::Duration};

use steadfast_core::{
    Failure, FaultSide, Reason, RecoveryLog, Retry, Scope, Step, Target, TimeLimit, time::millis,
};
use tracing::{Level, event};

use crate::limits::TimeLimits;

/// A limit that has fired.
#[derive(Debug)]
pub(crate) struct Fired<'a> {
    pub(crate) limit: TimeLimit,
    pub(crate) limits: &'a TimeLimits,
    /// The limit of the whole call; `None`: the caller's own deadline was earlier.
    pub(crate) pipeline: Option<Duration>,
    pub(crate) elapsed: Duration,
    /// Content had been delivered.
    pub(crate) delivered: bool,
    pub(crate) target: Option<&'a Target>,
    pub(crate) log: &'a RecoveryLog,
}

impl Fired<'_> {
    /// What happened, the key that decided, by its name in a configuration, and what it is set to.
    fn about(&self) -> (&'static str, &'static str, Option<Duration>) {
        let limits = self.limits;
        match self.limit {
            TimeLimit::Stall => ("the answer stalled", "stall_ms", limits.stall),
            TimeLimit::FirstContent => {
                ("no content came", "first_content_ms", limits.first_content)
            }
            TimeLimit::Attempt => ("the attempt took too long", "attempt_ms", limits.attempt),
            TimeLimit::Makespan => ("the answer took too long", "ceiling", limits.makespan),
            TimeLimit::Throughput => {
                ("the answer came too slowly", "floor", limits.floor.map(|floor| floor.window))
            }
            TimeLimit::Whole => ("the answer took too long", "whole_ms", limits.whole),
            _ => match self.pipeline {
                Some(limit) => ("execution:aborted", "pipeline_ms", Some(limit)),
                None => ("execution:aborted", "the caller's deadline", None),
            },
        }
    }

    /// Reports it to the trace and the log, and makes the failure.
    pub(crate) fn failure(&self) -> Failure {
        let Self { limit, elapsed, delivered, target, log, .. } = *self;
        let (_, knob, set_to) = self.about();
        event!(
            name: "steadfast::timeout::fired",
            target: "steadfast::timeout",
            Level::WARN,
            limit = limit.as_str(),
            knob,
            limit_ms = set_to.map(millis),
            elapsed_ms = millis(elapsed),
            delivered,
            target = target.map(tracing::field::display),
            "{self}",
        );
        log.record(|| {
            Step::new("timeout", "fired")
                .with_target(target)
                .with_reason(Reason::Timeout)
                .with_wait(elapsed)
                .with_detail(limit.as_str())
        });

        let mut failure = Failure::new(Reason::Timeout, self.to_string()).with_time_limit(limit);
        failure = match limit {
            // Neither a retry nor another target would have any time left.
            TimeLimit::Pipeline => {
                failure.with_retry(Retry::Forbidden).with_evidence("pipeline_timeout")
            }
            limit => failure.with_evidence(format!("limit:{limit}")),
        };
        if !limit.blames_provider() {
            failure = failure.with_scope(Scope::Request).with_fault(FaultSide::Local);
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
    /// What happened, the limit, its setting, the time, and whether content was delivered.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, knob, set_to) = self.about();
        write!(f, "{what}: limit {}", self.limit)?;
        if let Some(limit) = set_to {
            write!(f, " of {limit:?}")?;
        }
        match set_to {
            Some(_) => write!(f, ", set by `timeout.{knob}`, fired after ")?,
            None => write!(f, ", set by {knob}, fired after ")?,
        }
        // Whole milliseconds: timers are no finer.
        write!(f, "{:?}; ", Duration::from_millis(millis(self.elapsed)))?;
        f.write_str(match self.delivered {
            true => "content had been delivered",
            false => "no content had been delivered",
        })
    }
}
