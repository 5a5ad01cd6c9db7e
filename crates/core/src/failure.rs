//! The one error of every service in a stack.

use std::{borrow::Cow, error::Error, fmt, time::Duration};

use http::StatusCode;

use crate::{
    Dialect, Failover, Fault, Reason, RecoveryTable, Retry, Scope, Target, TimeLimit, Upstream,
    Usage, redact::redact,
};

/// A boxed error, the same type as `tower::BoxError`.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// How many links of a `source()` chain are followed: errors that wrap deeper than this exist,
/// and some of them are cycles.
pub const MAX_CAUSES: usize = 5;

/// Why a call failed and what may be done about it: the error type of every service in a stack.
///
/// One pointer wide, so that a `Result` around it costs nothing on success. It keeps the error it
/// was made of as [`source`](Error::source), and never shows a secret: messages pass through
/// [`redact`].
///
/// ```
/// use steadfast_core::{Failure, Reason, Retry};
///
/// let failure = Failure::new(Reason::RateLimit, "30,000 tokens a minute are used up");
/// assert_eq!(failure.retry(), Retry::Yes);
/// assert_eq!(failure.to_string(), "rate_limit: 30,000 tokens a minute are used up");
/// ```
#[must_use]
pub struct Failure(Box<Inner>);

struct Inner {
    reason: Reason,
    because: Option<Reason>,
    retry: Retry,
    failover: Failover,
    scope: Scope,
    fault: Fault,
    permanent: bool,
    wants_fallback: bool,
    delivered: bool,
    attempts: u32,
    retry_after: Option<Duration>,
    status: Option<StatusCode>,
    limit: Option<TimeLimit>,
    window: Option<Window>,
    usage: Option<Usage>,
    target: Option<Target>,
    message: Cow<'static, str>,
    evidence: Cow<'static, str>,
    request_id: Option<Box<str>>,
    trail: Vec<Attempt>,
    upstream: Option<Box<Upstream>>,
    source: Option<BoxError>,
}

/// The numbers a provider stated when a conversation did not fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// The limit, in tokens.
    pub limit: Option<u64>,
    /// What the request would have needed, in tokens.
    pub requested: Option<u64>,
}

/// One target that was tried or skipped on the way to a failure.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Attempt {
    /// Where it went.
    pub target: Option<Target>,
    /// Why it did not answer.
    pub reason: Reason,
    /// The status it answered with.
    pub status: Option<StatusCode>,
    /// Skipped without being asked: cooling, or not able to serve this request.
    pub skipped: bool,
    /// The bounded message that came back.
    pub message: Box<str>,
}

impl Attempt {
    /// What `failure` says about the attempt it ended.
    pub fn from_failure(failure: &Failure) -> Self {
        Self {
            target: failure.0.target.clone(),
            reason: failure.0.because.unwrap_or(failure.0.reason),
            status: failure.0.status,
            // It was not asked.
            skipped: failure.0.because.is_some(),
            message: failure.message().into(),
        }
    }

    /// A target that was passed over.
    pub fn skipped(target: Target, reason: Reason, message: impl AsRef<str>) -> Self {
        Self {
            target: Some(target),
            reason,
            status: None,
            skipped: true,
            message: redact(message.as_ref()),
        }
    }
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.target {
            Some(target) => write!(f, "{target}: ")?,
            None => f.write_str("call: ")?,
        }
        if self.skipped {
            f.write_str("skipped, ")?;
        }
        self.reason.fmt(f)?;
        if let Some(status) = self.status {
            write!(f, " ({})", status.as_u16())?;
        }
        Ok(())
    }
}

impl Failure {
    /// A failure for `reason`, with that reason's default verdict.
    ///
    /// `message` is for operators; it is bounded and credentials in it are masked.
    pub fn new(reason: Reason, message: impl AsRef<str>) -> Self {
        Self::made(reason, Cow::Owned(redact(message.as_ref()).into_string()))
    }

    fn made(reason: Reason, message: Cow<'static, str>) -> Self {
        let rule = reason.rule();
        Self(Box::new(Inner {
            reason,
            because: None,
            retry: rule.retry,
            failover: rule.failover,
            scope: rule.scope,
            fault: rule.fault,
            permanent: rule.permanent,
            wants_fallback: false,
            delivered: false,
            attempts: 1,
            retry_after: None,
            status: None,
            limit: None,
            window: None,
            usage: None,
            target: None,
            message,
            evidence: Cow::Borrowed(""),
            request_id: None,
            trail: Vec::new(),
            upstream: None,
            source: None,
        }))
    }

    /// A failure of a provider that answered `upstream`, judged by the status alone. A classifier
    /// further out reads the rest.
    pub fn from_upstream(upstream: Upstream) -> Self {
        let reason = upstream.status.and_then(Reason::from_status).unwrap_or(Reason::Unknown);
        let text = String::from_utf8_lossy(&upstream.body[..upstream.body.len().min(4_096)]);
        let status = upstream.status;
        let mut failure = Self::new(reason, text).with_evidence("status");
        failure.0.status = status;
        failure.0.upstream = Some(Box::new(upstream));
        failure
    }

    /// Our own refusal before a provider was asked.
    pub fn refused(reason: Reason, message: impl AsRef<str>) -> Self {
        let mut failure = Self::new(reason, message);
        failure.0.attempts = 0;
        failure
    }

    /// Our own refusal before a provider was asked, in words known beforehand: made without
    /// looking through them for secrets, for layers that refuse thousands of calls a second.
    pub fn refused_fixed(reason: Reason, message: &'static str) -> Self {
        let mut failure = Self::made(reason, Cow::Borrowed(message));
        failure.0.attempts = 0;
        failure
    }

    /// Why the call failed.
    pub fn reason(&self) -> Reason {
        self.0.reason
    }

    /// Whether the same target may be asked again.
    pub fn retry(&self) -> Retry {
        self.0.retry
    }

    /// Where else the call may go.
    pub fn failover(&self) -> Failover {
        self.0.failover
    }

    /// What the failure says something about.
    pub fn scope(&self) -> Scope {
        self.0.scope
    }

    /// Who has to change something.
    pub fn fault(&self) -> Fault {
        self.0.fault
    }

    /// It does not pass by itself: cool down long, and re-probe ever more rarely.
    pub fn is_permanent(&self) -> bool {
        self.0.permanent
    }

    /// The layer that gave up asks for a fallback model rather than the same one again.
    pub fn wants_fallback(&self) -> bool {
        self.0.wants_fallback
    }

    /// Content had reached the caller when it failed: the call can not be made again unnoticed.
    pub fn is_delivered(&self) -> bool {
        self.0.delivered
    }

    /// How long the provider, or our own limit, asked to wait.
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after
    }

    /// The HTTP status the provider answered with.
    pub fn status(&self) -> Option<StatusCode> {
        self.0.status
    }

    /// Which time limit fired, for [`Reason::Timeout`] of our own.
    pub fn time_limit(&self) -> Option<TimeLimit> {
        self.0.limit
    }

    /// The numbers the provider stated, for [`Reason::ContextOverflow`].
    pub fn window(&self) -> Option<Window> {
        self.0.window
    }

    /// What the failed call is known to have used.
    pub fn usage(&self) -> Option<&Usage> {
        self.0.usage.as_ref()
    }

    /// The target that failed.
    pub fn target(&self) -> Option<&Target> {
        self.0.target.as_ref()
    }

    /// What happened, for operators: one line, bounded, secrets masked.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// What happened, for the person at the far end: a fixed text.
    pub fn user_message(&self) -> &'static str {
        self.0.reason.user_message()
    }

    /// What decided the reason, such as `code:insufficient_quota` or `status:503`.
    pub fn evidence(&self) -> &str {
        &self.0.evidence
    }

    /// The provider's id of the request.
    pub fn request_id(&self) -> Option<&str> {
        self.0.request_id.as_deref()
    }

    /// How many times a provider was asked before this failure, this one included; 0 for a
    /// refusal of our own.
    pub fn attempts(&self) -> u32 {
        self.0.attempts
    }

    /// The targets tried and skipped, oldest first; empty unless several were.
    pub fn trail(&self) -> &[Attempt] {
        &self.0.trail
    }

    /// The provider's answer as it came.
    pub fn upstream(&self) -> Option<&Upstream> {
        self.0.upstream.as_deref()
    }

    /// The dialect in which the provider answered.
    pub fn dialect(&self) -> Option<Dialect> {
        self.0.upstream.as_ref().and_then(|upstream| upstream.dialect)
    }

    /// The one reason for which every target of the [trail](Self::trail) failed or was skipped,
    /// when there is only one: all of them rate limited, say.
    pub fn common_reason(&self) -> Option<Reason> {
        let (first, rest) = self.0.trail.split_first()?;
        rest.iter().all(|attempt| attempt.reason == first.reason).then_some(first.reason)
    }

    /// For a refusal of our own: the failure of the target that it goes back to.
    pub fn because(&self) -> Option<Reason> {
        self.0.because
    }

    /// The reason to tell a caller. For a refusal of our own it is the one that it goes back to, and
    /// when every target failed for the same one it is that one: so a caller whom all of them limit
    /// is told so. But a refused credential or an unpaid bill of the operator is never the
    /// caller's.
    pub fn outward_reason(&self) -> Reason {
        let own = self.0.reason;
        if !own.is_refusal() {
            return own;
        }
        match self.common_reason().or(self.0.because) {
            None | Some(Reason::Auth | Reason::Billing) => own,
            Some(root) => root,
        }
    }

    /// The status a server should answer the caller with: the provider's own for the caller's
    /// faults, else that of the [reason to tell](Self::outward_reason).
    pub fn http_status(&self) -> StatusCode {
        match self.0.status {
            Some(status) if self.0.fault == Fault::Caller && status.is_client_error() => status,
            _ => self.outward_reason().http_status(),
        }
    }

    /// Judges anew: sets the reason and that reason's default verdict. A *forbidden* verdict
    /// stays: nothing softens [`Reason::Safety`].
    pub fn with_reason(self, reason: Reason) -> Self {
        self.with_rule(reason, &reason.rule())
    }

    /// Judges anew by the operator's own table.
    pub fn with_table(self, table: &RecoveryTable) -> Self {
        let reason = self.0.reason;
        self.with_rule(reason, table.rule(reason))
    }

    fn with_rule(mut self, reason: Reason, rule: &crate::Rule) -> Self {
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

    /// Overrides whether the same target may be asked again. *Forbidden* can be set but never
    /// taken back.
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

    /// Overrides what the failure says something about.
    pub fn with_scope(mut self, scope: Scope) -> Self {
        self.0.scope = scope;
        self
    }

    /// Overrides who has to change something.
    pub fn with_fault(mut self, fault: Fault) -> Self {
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

    /// Notes that content had reached the caller.
    pub fn with_delivered(mut self) -> Self {
        self.0.delivered = true;
        self
    }

    /// Sets the failure that a refusal of our own goes back to.
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

    /// Sets how many times a provider was asked.
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

    /// Keeps the error this failure was made of.
    pub fn with_source(mut self, source: impl Into<BoxError>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// What a settled lease is told when the service under it panicked.
    pub(crate) fn panicked() -> Self {
        Self::new(Reason::Unknown, "the service panicked while it handled the call")
            .with_evidence("panic")
    }

    /// The first failure in the `source()` chain of `error`, itself included; at most
    /// [`MAX_CAUSES`] links are followed, so a cycle ends.
    pub fn find<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Failure> {
        let mut cause = Some(error);
        for _ in 0..=MAX_CAUSES {
            let error = cause?;
            if let Some(failure) = error.downcast_ref() {
                return Some(failure);
            }
            cause = error.source();
        }
        None
    }

    /// The same verdict without what can not be copied: source and provider's answer.
    fn verdict(&self) -> Self {
        let inner = &*self.0;
        Self(Box::new(Inner {
            message: inner.message.clone(),
            evidence: inner.evidence.clone(),
            request_id: inner.request_id.clone(),
            target: inner.target.clone(),
            usage: inner.usage,
            trail: inner.trail.clone(),
            upstream: inner.upstream.clone(),
            source: None,
            ..*inner
        }))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.reason.fmt(f)?;
        if let Some(status) = self.0.status {
            write!(f, " ({})", status.as_u16())?;
        }
        if let Some(target) = &self.0.target {
            write!(f, " at {target}")?;
        }
        if !self.0.message.is_empty() {
            write!(f, ": {}", self.0.message)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &*self.0;
        let mut out = f.debug_struct("Failure");
        out.field("reason", &inner.reason)
            .field("retry", &inner.retry)
            .field("failover", &inner.failover)
            .field("scope", &inner.scope)
            .field("status", &inner.status)
            .field("target", &inner.target)
            .field("message", &inner.message)
            .field("evidence", &inner.evidence)
            .field("attempts", &inner.attempts);
        if let Some(wait) = inner.retry_after {
            out.field("retry_after", &wait);
        }
        if !inner.trail.is_empty() {
            out.field("trail", &inner.trail);
        }
        if let Some(source) = &inner.source {
            out.field("source", source);
        }
        out.finish_non_exhaustive()
    }
}

impl Error for Failure {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source.as_deref().map(|source| source as &(dyn Error + 'static))
    }
}

impl From<BoxError> for Failure {
    /// Takes the failure out of the box, or finds one in its causes; anything else becomes
    /// [`Reason::Unknown`] with the box as its source. So tower's own layers, which box their
    /// errors, mix in.
    fn from(error: BoxError) -> Self {
        let error = match error.downcast::<Failure>() {
            Ok(failure) => return *failure,
            Err(error) => error,
        };
        match Failure::find(&*error) {
            Some(found) => found.verdict().with_source(error),
            None => Failure::new(Reason::Unknown, error.to_string())
                .with_evidence("error")
                .with_source(error),
        }
    }
}

impl From<std::convert::Infallible> for Failure {
    fn from(never: std::convert::Infallible) -> Self {
        match never {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("outer")]
    struct Outer(#[source] BoxError);

    #[test]
    fn one_pointer_wide() {
        assert_eq!(size_of::<Failure>(), size_of::<usize>());
        assert_eq!(size_of::<Result<(), Failure>>(), size_of::<usize>());
    }

    #[test]
    fn comes_out_of_a_box_as_it_went_in() {
        let boxed: BoxError = Failure::new(Reason::Billing, "no credit").into();
        assert_eq!(Failure::from(boxed).reason(), Reason::Billing);
    }

    #[test]
    fn is_found_behind_other_errors_and_keeps_them_as_source() {
        let inner = Failure::new(Reason::RateLimit, "slow down")
            .with_retry_after(Some(Duration::from_secs(7)));
        let boxed: BoxError = Box::new(Outer(Box::new(Outer(inner.into()))));
        let failure = Failure::from(boxed);
        assert_eq!(failure.reason(), Reason::RateLimit);
        assert_eq!(failure.retry_after(), Some(Duration::from_secs(7)));
        assert_eq!(failure.source().unwrap().to_string(), "outer");
    }

    #[test]
    fn a_chain_too_deep_is_unknown_not_endless() {
        let mut error: BoxError = Failure::new(Reason::Auth, "x").into();
        for _ in 0..=MAX_CAUSES {
            error = Box::new(Outer(error));
        }
        assert_eq!(Failure::from(error).reason(), Reason::Unknown);
    }

    #[test]
    fn forbidden_outranks_every_later_opinion() {
        let failure = Failure::new(Reason::Safety, "loop")
            .with_retry(Retry::Yes)
            .with_failover(Failover::NextTarget)
            .with_reason(Reason::ServerError)
            .with_table(&RecoveryTable::default());
        assert_eq!(failure.reason(), Reason::Safety);
        assert_eq!(failure.retry(), Retry::Forbidden);
        assert_eq!(failure.failover(), Failover::Forbidden);

        let boxed: BoxError = Box::new(Outer(failure.into()));
        let found = Failure::from(boxed).with_retry(Retry::Yes);
        assert_eq!(found.retry(), Retry::Forbidden);
    }

    #[test]
    fn an_exhausted_chain_answers_with_the_status_its_targets_agree_on() {
        let exhausted = |reasons: &[Reason]| {
            let trail = reasons
                .iter()
                .map(|reason| Attempt::skipped(Target::new("p"), *reason, ""))
                .collect();
            Failure::new(Reason::Exhausted, "").with_trail(trail).http_status().as_u16()
        };
        assert_eq!(exhausted(&[Reason::RateLimit, Reason::RateLimit]), 429);
        assert_eq!(exhausted(&[Reason::RateLimit, Reason::Timeout]), 503);
        assert_eq!(exhausted(&[Reason::Auth, Reason::Auth]), 503);
        assert_eq!(exhausted(&[]), 503);
    }

    #[test]
    fn shows_no_secret() {
        let failure = Failure::new(Reason::Auth, "key sk-aaaaaaaaaaaaaaaaaaaaaaaa refused")
            .with_upstream(Upstream::response(
                StatusCode::UNAUTHORIZED,
                http::HeaderMap::new(),
                "sk-bbbbbbbbbbbbbbbbbbbbbbbb",
            ));
        let shown = format!("{failure} {failure:?} {:?}", failure.upstream());
        assert!(!shown.contains("aaaa") && !shown.contains("bbbb"), "{shown}");
    }
}
