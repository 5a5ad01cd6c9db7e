//! Changing a failure after it was made: everything except that it is forbidden to retry.

use std::{borrow::Cow, time::Duration};

use http::{HeaderValue, StatusCode};

use super::{Attempt, BoxError, Failure, RefusedParameter, Window};
use crate::{
    Failover, FaultSide, Reason, RecoveryRule, RecoveryTable, Retry, Scope, Target, TimeLimit,
    Upstream, Usage,
    redact::{MASK, redact},
};

impl Failure {
    /// Sets the reason and that reason's default rule. A *forbidden* verdict is kept: nothing
    /// changes [`Reason::Safety`].
    pub fn with_reason(self, reason: Reason) -> Self {
        self.with_rule(reason, &reason.rule())
    }

    /// Sets the rule of its reason in the operator's table.
    pub fn with_table(self, table: &RecoveryTable) -> Self {
        let reason = self.0.reason;
        self.with_rule(reason, table.rule(reason))
    }

    fn with_rule(mut self, reason: Reason, rule: &RecoveryRule) -> Self {
        if self.is_forbidden() {
            return self;
        }
        self.0.reason = reason;
        self.0.retry = rule.retry;
        self.0.failover = rule.failover;
        self.0.scope = rule.scope;
        self.0.fault = rule.fault;
        self.0.permanent = rule.permanent;
        self
    }

    fn is_forbidden(&self) -> bool {
        self.0.retry == Retry::Forbidden
    }

    /// Overrides whether the same target may be called again. *Forbidden* can be set but not
    /// removed.
    pub fn with_retry(mut self, retry: Retry) -> Self {
        if !self.is_forbidden() {
            self.0.retry = retry;
            if retry == Retry::Forbidden {
                self.0.failover = Failover::Forbidden;
            }
        }
        self
    }

    /// Overrides where else the call may go, unless that is forbidden.
    pub fn with_failover(mut self, failover: Failover) -> Self {
        if !self.is_forbidden() {
            if failover == Failover::Forbidden {
                self.0.retry = Retry::Forbidden;
            }
            self.0.failover = failover;
        }
        self
    }

    /// Overrides what the failure is evidence about.
    pub fn with_scope(mut self, scope: Scope) -> Self {
        self.0.scope = scope;
        self
    }

    /// Overrides who has to change something.
    pub fn with_fault(mut self, fault: FaultSide) -> Self {
        self.0.fault = fault;
        self
    }

    /// Marks a failure that does not pass by itself.
    pub fn with_permanent(mut self, permanent: bool) -> Self {
        self.0.permanent = permanent;
        self
    }

    /// Asks for a fallback model rather than the same one again.
    pub fn with_wants_fallback(mut self) -> Self {
        self.0.wants_fallback = true;
        self
    }

    /// Marks a call that might have been made again later, had there been room for one more that waits.
    pub fn with_crowded(mut self) -> Self {
        self.0.crowded = true;
        self
    }

    /// Marks that content had reached the caller.
    pub fn with_delivered(mut self) -> Self {
        self.0.delivered = true;
        self
    }

    /// Marks that no content had reached the caller: an outer layer held it back.
    pub fn without_delivered(mut self) -> Self {
        self.0.delivered = false;
        self
    }

    /// Marks that what is known of the target includes this failure.
    pub fn with_recorded(mut self) -> Self {
        self.0.recorded = true;
        self
    }

    /// Marks that a circuit breaker refuses the same call from now on.
    pub fn with_opened_circuit(mut self) -> Self {
        self.0.opened_circuit = true;
        self
    }

    /// Sets how long the call has waited between its attempts.
    pub fn with_waited(mut self, waited: Duration) -> Self {
        self.0.waited = waited;
        self
    }

    /// Sets the reason of the earlier failure that caused a refusal of our own.
    pub fn with_because(mut self, because: Option<Reason>) -> Self {
        self.0.because = because;
        self
    }

    /// Sets how long to wait.
    pub fn with_retry_after(mut self, wait: Option<Duration>) -> Self {
        self.0.retry_after = wait;
        self
    }

    /// Sets the provider's status.
    pub fn with_status(mut self, status: StatusCode) -> Self {
        self.0.status = Some(status);
        self
    }

    /// Sets which of our time limits fired.
    pub fn with_time_limit(mut self, limit: TimeLimit) -> Self {
        self.0.limit = Some(limit);
        self
    }

    /// Sets the numbers of an overflow.
    pub fn with_window(mut self, window: Window) -> Self {
        self.0.window = Some(window);
        self
    }

    /// Sets the parameter that the provider refused.
    pub fn with_parameter(mut self, parameter: RefusedParameter) -> Self {
        self.0.parameter = Some(parameter);
        self
    }

    /// Sets what the failed call is known to have used.
    pub fn with_usage(mut self, usage: Usage) -> Self {
        self.0.usage = Some(usage);
        self
    }

    /// Sets the target that failed.
    pub fn with_target(mut self, target: Target) -> Self {
        self.0.target = Some(target);
        self
    }

    /// Sets the operator's message; bounded, secrets masked.
    pub fn with_message(mut self, message: impl AsRef<str>) -> Self {
        self.0.message = Cow::Owned(redact(message.as_ref()).into_string());
        self
    }

    /// Takes secrets that are known by value out of what the provider wrote, with `mask`: all of a text with a mask
    /// in the place of each, or the text itself. For the innermost layer: half a secret, where a message was cut,
    /// is not recognised any more.
    pub fn with_mask(mut self, mask: impl Fn(&[u8]) -> Cow<'_, [u8]>) -> Self {
        if let Some(upstream) = &mut self.0.upstream {
            let mut changed = false;
            if let Cow::Owned(body) = mask(&upstream.body) {
                upstream.body = body.into();
                changed = true;
            }
            for value in upstream.headers.values_mut() {
                if let Cow::Owned(masked) = mask(value.as_bytes()) {
                    *value = HeaderValue::from_bytes(&masked)
                        .unwrap_or_else(|_| HeaderValue::from_static(MASK));
                    changed = true;
                }
            }
            if changed {
                // Both are pieces of what was there before.
                self.0.message = Cow::Owned(redact(&upstream.message()).into_string());
                self.0.request_id = None;
            }
        }
        if let Cow::Owned(message) = mask(self.0.message.as_bytes()) {
            self.0.message = Cow::Owned(String::from_utf8_lossy(&message).into_owned());
        }
        self
    }

    /// Sets what decided the reason.
    pub fn with_evidence(mut self, evidence: impl Into<Cow<'static, str>>) -> Self {
        self.0.evidence = evidence.into();
        self
    }

    /// Sets the provider's id of the request.
    pub fn with_request_id(mut self, id: impl Into<Box<str>>) -> Self {
        self.0.request_id = Some(id.into());
        self
    }

    /// Sets how many times a provider was called.
    pub fn with_attempts(mut self, attempts: u32) -> Self {
        self.0.attempts = attempts;
        self
    }

    /// Sets the targets tried and skipped, oldest first.
    pub fn with_trail(mut self, trail: Vec<Attempt>) -> Self {
        self.0.trail = trail;
        self
    }

    /// Keeps the provider's answer.
    pub fn with_upstream(mut self, upstream: Upstream) -> Self {
        self.0.status = self.0.status.or(upstream.status);
        self.0.upstream = Some(Box::new(upstream));
        self
    }

    /// Keeps the error this failure was made from.
    pub fn with_source(mut self, source: impl Into<BoxError>) -> Self {
        self.0.source = Some(source.into());
        self
    }
}
