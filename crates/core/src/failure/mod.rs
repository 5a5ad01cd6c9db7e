//! The one error of every service in a stack.

mod attempt;
mod change;
mod convert;

use std::{borrow::Cow, error::Error, time::Duration};

use http::StatusCode;

use crate::{
    Dialect, Failover, FaultSide, Reason, Retry, Scope, Target, TimeLimit, Upstream, Usage,
    redact::redact,
};

pub use self::{
    attempt::Attempt,
    convert::{IntoBoxError, IntoFailure},
};

/// A boxed error, the same type as `tower::BoxError`.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// How many links of a `source()` chain are followed, since a chain can be a cycle.
pub const MAX_CAUSES: usize = 5;

/// Why a call failed and what may be done about it: the error type of every service in a stack.
///
/// One pointer wide, so that a `Result` around it is small. It keeps the error it was made from as
/// [`source`](Error::source), and shows no secret: messages pass through [`redact`].
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
    fault: FaultSide,
    permanent: bool,
    wants_fallback: bool,
    crowded: bool,
    delivered: bool,
    recorded: bool,
    opened_circuit: bool,
    attempts: u32,
    waited: Duration,
    retry_after: Option<Duration>,
    status: Option<StatusCode>,
    limit: Option<TimeLimit>,
    window: Option<Window>,
    parameter: Option<RefusedParameter>,
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

/// A parameter of the request that a provider does not take, or not with this value: one that an answer can do
/// without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedParameter {
    /// What OpenAI's dialect calls it, in whatever dialect the provider speaks.
    pub name: &'static str,
    /// The most that it may be, where it was too large and the provider stated that.
    pub most: Option<u64>,
}

impl Failure {
    /// A failure for `reason`, with that reason's default rule.
    ///
    /// `message` is for operators; it is bounded and credentials in it are masked.
    pub fn new(reason: Reason, message: impl AsRef<str>) -> Self {
        Self::from_message(reason, Cow::Owned(redact(message.as_ref()).into_string()))
    }

    fn from_message(reason: Reason, message: Cow<'static, str>) -> Self {
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
            crowded: false,
            delivered: false,
            recorded: false,
            opened_circuit: false,
            attempts: 1,
            waited: Duration::ZERO,
            retry_after: None,
            status: None,
            limit: None,
            window: None,
            parameter: None,
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

    /// A failure of a provider that answered `upstream`, classified by the status alone. An outer
    /// classifier reads the rest.
    pub fn from_upstream(upstream: Upstream) -> Self {
        let reason = upstream.status.and_then(Reason::from_status).unwrap_or(Reason::Unknown);
        let status = upstream.status;
        let mut failure = Self::new(reason, upstream.message()).with_evidence("status");
        if failure.0.message.is_empty() {
            failure.0.message = Cow::Owned(upstream.default_message());
        }
        failure.0.status = status;
        failure.0.upstream = Some(Box::new(upstream));
        failure
    }

    /// Our own refusal before a provider was called.
    pub fn refused(reason: Reason, message: impl AsRef<str>) -> Self {
        let mut failure = Self::new(reason, message);
        failure.0.attempts = 0;
        failure
    }

    /// Our own refusal before a provider was called, with a constant message: not searched for
    /// secrets, for layers that refuse thousands of calls a second.
    pub fn refused_fixed(reason: Reason, message: &'static str) -> Self {
        let mut failure = Self::from_message(reason, Cow::Borrowed(message));
        failure.0.attempts = 0;
        failure
    }

    /// Why the call failed.
    pub fn reason(&self) -> Reason {
        self.0.reason
    }

    /// Whether the same target may be called again.
    pub fn retry(&self) -> Retry {
        self.0.retry
    }

    /// Where else the call may go.
    pub fn failover(&self) -> Failover {
        self.0.failover
    }

    /// What the failure is evidence about.
    pub fn scope(&self) -> Scope {
        self.0.scope
    }

    /// Who has to change something.
    pub fn fault(&self) -> FaultSide {
        self.0.fault
    }

    /// It does not pass by itself: the cooldown is long and grows with each failed probe.
    pub fn is_permanent(&self) -> bool {
        self.0.permanent
    }

    /// The layer that gave up asks for a fallback model rather than the same one again.
    pub fn wants_fallback(&self) -> bool {
        self.0.wants_fallback
    }

    /// Too many calls waited already for this one to wait too: to ask again later is left to the caller.
    pub fn is_crowded(&self) -> bool {
        self.0.crowded
    }

    /// Content had reached the caller when it failed: the call can not be made again unnoticed.
    pub fn is_delivered(&self) -> bool {
        self.0.delivered
    }

    /// What is known of the target includes this failure already.
    pub fn is_recorded(&self) -> bool {
        self.0.recorded
    }

    /// A circuit breaker is open since this failure, or was before: the same call would be refused there.
    pub fn opened_circuit(&self) -> bool {
        self.0.opened_circuit
    }

    /// How long the call has waited between its attempts, in the layer that returned this.
    pub fn waited(&self) -> Duration {
        self.0.waited
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

    /// The parameter that the provider refused, for [`Reason::Format`] and [`Reason::Unsupported`].
    pub fn parameter(&self) -> Option<RefusedParameter> {
        self.0.parameter
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

    /// What happened, for the end user: a fixed text.
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

    /// How many times a provider was called before this failure, this one included; 0 for a
    /// refusal of our own.
    pub fn attempts(&self) -> u32 {
        self.0.attempts
    }

    /// The targets tried and skipped, oldest first; empty unless several were.
    pub fn trail(&self) -> &[Attempt] {
        &self.0.trail
    }

    /// The provider's answer, unchanged.
    pub fn upstream(&self) -> Option<&Upstream> {
        self.0.upstream.as_deref()
    }

    /// The dialect in which the provider answered.
    pub fn dialect(&self) -> Option<Dialect> {
        self.0.upstream.as_ref().and_then(|upstream| upstream.dialect)
    }

    /// The reason for which every target of the [trail](Self::trail) failed or was skipped, when it
    /// is the same for all: all of them rate limited, for example.
    pub fn common_reason(&self) -> Option<Reason> {
        let (first, rest) = self.0.trail.split_first()?;
        rest.iter().all(|attempt| attempt.reason == first.reason).then_some(first.reason)
    }

    /// For a refusal of our own: the reason of the target's failure that caused it.
    pub fn because(&self) -> Option<Reason> {
        self.0.because
    }

    /// The reason to report to a caller. For a refusal of our own it is the one that caused it, and
    /// when every target failed for the same reason it is that one: a caller whom all targets limit
    /// gets `rate_limit`. But a refused credential or an unpaid bill of the operator is reported as
    /// [`Reason::Exhausted`], unless the [fault](Self::fault) is the caller's.
    pub fn outward_reason(&self) -> Reason {
        let own = self.0.reason;
        let root = match own.is_refusal() {
            true => self.common_reason().or(self.0.because).unwrap_or(own),
            false => own,
        };
        match root {
            Reason::Auth | Reason::Billing if self.0.fault != FaultSide::Caller => match own {
                Reason::Auth | Reason::Billing => Reason::Exhausted,
                refusal => refusal,
            },
            root => root,
        }
    }

    /// The status a server should answer the caller with: the provider's own for the caller's
    /// faults, else that of the [reported reason](Self::outward_reason).
    pub fn http_status(&self) -> StatusCode {
        match self.0.status {
            Some(status) if self.0.fault == FaultSide::Caller && status.is_client_error() => status,
            _ => self.outward_reason().http_status(),
        }
    }

    /// The failure of a lease that was dropped by a panic of the inner service.
    pub(crate) fn panicked() -> Self {
        Self::new(Reason::Unknown, "the service panicked while it handled the call")
            .with_evidence("panic")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MAX_MESSAGE, RecoveryTable};

    #[derive(Debug, thiserror::Error)]
    #[error("outer")]
    struct Outer(#[source] BoxError);

    #[test]
    fn one_pointer_wide() {
        assert_eq!(size_of::<Failure>(), size_of::<usize>());
        assert_eq!(size_of::<Result<(), Failure>>(), size_of::<usize>());
    }

    #[test]
    fn is_unboxed_unchanged() {
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
    fn a_known_secret_is_masked_before_anything_is_cut() {
        fn mask(text: &[u8]) -> Cow<'_, [u8]> {
            match std::str::from_utf8(text) {
                Ok(text) if text.contains("open sesame") => {
                    Cow::Owned(text.replace("open sesame", "***").into_bytes())
                }
                _ => Cow::Borrowed(text),
            }
        }
        let filled = "x ".repeat(MAX_MESSAGE / 2 - 2);
        let mut headers = http::HeaderMap::new();
        headers.insert("x-request-id", http::HeaderValue::from_static("id open sesame"));
        let body = format!("{filled}open sesame, it says");
        let upstream = Upstream::response(StatusCode::UNAUTHORIZED, headers, body);
        let failure = Failure::from_upstream(upstream).with_request_id("id open").with_mask(mask);
        assert!(failure.message().contains("x ***"), "{}", failure.message());
        let upstream = failure.upstream().unwrap();
        assert_eq!(upstream.headers["x-request-id"], "id ***");
        assert_eq!(upstream.body, format!("{filled}***, it says"));
        assert_eq!(failure.request_id(), None);
        let own = Failure::new(Reason::Network, "open sesame").with_mask(mask);
        assert_eq!(own.message(), "***");
        let other = Failure::from_upstream(Upstream::event("close")).with_request_id("id");
        let other = other.with_mask(mask);
        assert_eq!((other.message(), other.request_id()), ("close", Some("id")));
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
    fn forbidden_can_not_be_overridden() {
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
    fn an_exhausted_chain_has_the_status_that_all_targets_share() {
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
    fn a_refused_key_is_the_callers_fault_only_when_marked_so() {
        for reason in [Reason::Auth, Reason::Billing] {
            let failure = Failure::new(reason, "no").with_status(reason.http_status());
            assert_eq!(failure.http_status(), 503, "{reason}");
            assert_eq!(failure.outward_reason(), Reason::Exhausted);
            let caller = failure.with_fault(FaultSide::Caller);
            assert_eq!(caller.http_status(), reason.http_status());
            assert_eq!(caller.outward_reason(), reason);
        }
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
