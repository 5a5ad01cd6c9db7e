//! What an error was judged to be.

use std::{borrow::Cow, time::Duration};

use steadfast_core::{
    Failover, Failure, FaultSide, Reason, RecoveryTable, RefusedParameter, Retry, Scope, Window,
};

/// What an error means and what may be done about it.
///
/// A user's own classifier returns one, or just a [`Reason`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Verdict {
    /// Why the call failed.
    pub reason: Reason,
    /// Whether the unchanged request is worth sending to the same target again within a minute.
    /// `None`: as the table says for the reason.
    pub retry: Option<Retry>,
    /// Where else it may go. `None`: as the table says.
    pub failover: Option<Failover>,
    /// What it says something about. `None`: as the table says.
    pub scope: Option<Scope>,
    /// Who has to change something. `None`: as the table says.
    pub fault: Option<FaultSide>,
    /// It does not clear by itself.
    pub permanent: bool,
    /// How long the provider asked to wait; kept even where a retry is not worth it.
    pub retry_after: Option<Duration>,
    /// The numbers stated by an overflow.
    pub window: Option<Window>,
    /// The parameter of the request that is refused, where an answer can do without it.
    pub parameter: Option<RefusedParameter>,
    /// The innermost message; empty when there is none. Not yet bounded or masked: a
    /// [`Failure`] made of it is.
    pub message: String,
    /// The provider's id of the request.
    pub request_id: Option<Box<str>>,
    /// What decided: `code:insufficient_quota`, `status:503`, `pattern:prompt is too long`,
    /// `header:x-amzn-errortype`, `transport:reset`, `stop:max_tokens`, `empty answer`.
    pub evidence: Cow<'static, str>,
    /// The answer is whole; only its stop reason was judged.
    pub(crate) stop: bool,
}

impl From<Reason> for Verdict {
    /// A user's own opinion.
    fn from(reason: Reason) -> Self {
        Self::new(reason, "classifier")
    }
}

impl Verdict {
    /// A verdict for `reason`, decided by `evidence`.
    pub fn new(reason: Reason, evidence: impl Into<Cow<'static, str>>) -> Self {
        Self {
            reason,
            retry: None,
            failover: None,
            scope: None,
            fault: None,
            permanent: false,
            retry_after: None,
            window: None,
            parameter: None,
            message: String::new(),
            request_id: None,
            evidence: evidence.into(),
            stop: false,
        }
    }

    /// Overrides whether the same target may be asked again.
    #[must_use]
    pub fn with_retry(mut self, retry: Retry) -> Self {
        self.retry = Some(retry);
        self
    }

    /// Overrides where else the call may go.
    #[must_use]
    pub fn with_failover(mut self, failover: Failover) -> Self {
        self.failover = Some(failover);
        self
    }

    /// Sets how long to wait.
    #[must_use]
    pub fn with_retry_after(mut self, wait: Option<Duration>) -> Self {
        self.retry_after = wait;
        self
    }

    /// Whether the answer is whole and only its stop reason was judged (cut off, filtered): an
    /// HTTP layer hands such answers on.
    pub fn is_stop(&self) -> bool {
        self.stop
    }

    /// Whether the same target may be asked again, by `table` where the error did not say.
    pub fn retry(&self, table: &RecoveryTable) -> Retry {
        self.retry.unwrap_or(table.rule(self.reason).retry)
    }

    /// Where else the call may go, by `table` where the error did not say.
    pub fn failover(&self, table: &RecoveryTable) -> Failover {
        self.failover.unwrap_or(table.rule(self.reason).failover)
    }

    /// What it says something about, by `table` where the error did not say.
    pub fn scope(&self, table: &RecoveryTable) -> Scope {
        self.scope.unwrap_or(table.rule(self.reason).scope)
    }

    /// The failure this is, by `table` where the error did not say.
    pub fn into_failure(self, table: &RecoveryTable) -> Failure {
        let failure = Failure::new(self.reason, &self.message);
        self.apply(failure, table)
    }

    /// Judges `failure` anew. What the verdict does not know (target, usage, source, provider's
    /// answer) is kept; so is a message when the verdict has none.
    pub fn apply(self, failure: Failure, table: &RecoveryTable) -> Failure {
        let mut failure = failure.with_reason(self.reason).with_table(table);
        if let Some(retry) = self.retry {
            failure = failure.with_retry(retry);
        }
        if let Some(failover) = self.failover {
            failure = failure.with_failover(failover);
        }
        if let Some(scope) = self.scope {
            failure = failure.with_scope(scope);
        }
        if let Some(fault) = self.fault {
            failure = failure.with_fault(fault);
        }
        if self.permanent {
            failure = failure.with_permanent(true);
        }
        if self.retry_after.is_some() {
            failure = failure.with_retry_after(self.retry_after);
        }
        if let Some(window) = self.window {
            failure = failure.with_window(window);
        }
        if let Some(parameter) = self.parameter {
            failure = failure.with_parameter(parameter);
        }
        // Control characters alone say nothing.
        if self.message.contains(|c: char| !(c.is_whitespace() || c.is_control())) {
            failure = failure.with_message(&self.message);
        }
        if let Some(id) = self.request_id {
            failure = failure.with_request_id(id);
        }
        failure.with_evidence(self.evidence)
    }
}
