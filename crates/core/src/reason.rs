//! Why a call failed, and what that means by default.

use std::{fmt, str::FromStr, time::Duration};

use http::StatusCode;

/// Why a call failed. Every layer, log, metric and configuration uses these reasons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Reason {
    /// The credential was refused.
    Auth,
    /// Unpaid, out of credit or over a spending limit, whatever status says so.
    Billing,
    /// Too many requests or tokens for now.
    RateLimit,
    /// The provider or model has no capacity.
    Overloaded,
    /// The provider had an internal error.
    ServerError,
    /// Nothing came in time: the provider's own timeout or one of ours.
    Timeout,
    /// The connection was refused, reset, or could not be made.
    Network,
    /// The model does not exist, is retired, or is not served here.
    ModelNotFound,
    /// The conversation does not fit the model's window.
    ContextOverflow,
    /// The answer stopped at the output limit.
    OutputTruncated,
    /// A provider's content policy refused the request or the answer.
    ContentFilter,
    /// The request is malformed for this provider.
    Format,
    /// The request is too large in bytes.
    PayloadTooLarge,
    /// The provider lacks the region, capability or parameter.
    Unsupported,
    /// The caller went away.
    Cancelled,
    /// The safety guard stopped the task. No layer may retry this.
    Safety,
    /// Our circuit breaker refused the call.
    CircuitOpen,
    /// Our cooldown refused the call.
    Cooling,
    /// Every target was tried or skipped.
    Exhausted,
    /// Our retry budget or rate limit refused the call.
    Budget,
    /// A tenant's or a key's spend cap refused the call. No layer may retry this.
    SpendCap,
    /// Nothing above fits.
    Unknown,
}

/// Whether the same request may be sent to the same target again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Retry {
    /// Worth sending again after a wait.
    Yes,
    /// Sending it again unchanged fails again.
    No,
    /// Must not be sent again by any layer; later rules can not change that.
    Forbidden,
}

/// Where a failed call may go next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Failover {
    /// Another target may do better.
    NextTarget,
    /// Another credential of the same provider first, then another target.
    NextCredential,
    /// Another model of the same provider first, then another target.
    NextModel,
    /// Only a target with a larger window helps.
    LargerWindow,
    /// Another target would fail the same way.
    Never,
    /// Must not go anywhere else; later rules can not change that.
    Forbidden,
}

/// What a failure is evidence about, and so what cools down after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Scope {
    /// This request alone; the target is fine.
    Request,
    /// The agent's task.
    Task,
    /// One model with one credential of the provider.
    ModelCredential,
    /// One model of the provider.
    Model,
    /// One credential of the provider.
    Credential,
    /// The whole provider.
    Provider,
    /// Nothing outside this process: one of our own refusals.
    Local,
}

/// Who has to change something for the call to succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum FaultSide {
    /// The provider, or the network to it, or the operator's account there.
    Provider,
    /// The caller's request.
    Caller,
    /// The model: it wrote what nobody can use. The target is fine, and another answer may be better.
    Model,
    /// This process: a limit, breaker or guard of our own.
    Local,
}

/// What a [`Reason`] means until something more specific is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecoveryRule {
    /// Whether the same target may be called again.
    pub retry: Retry,
    /// Where else the call may go.
    pub failover: Failover,
    /// What cools down.
    pub scope: Scope,
    /// Who has to change something.
    pub fault: FaultSide,
    /// The cooldown of the scope when the provider gave no hint. `None`: none.
    pub cooldown: Option<Duration>,
    /// The failure does not pass by itself: the cooldown is long, and doubles up to a day with each
    /// failed probe.
    pub permanent: bool,
}

impl Reason {
    /// Every reason, in table order.
    pub const ALL: [Reason; 22] = [
        Reason::Auth,
        Reason::Billing,
        Reason::RateLimit,
        Reason::Overloaded,
        Reason::ServerError,
        Reason::Timeout,
        Reason::Network,
        Reason::ModelNotFound,
        Reason::ContextOverflow,
        Reason::OutputTruncated,
        Reason::ContentFilter,
        Reason::Format,
        Reason::PayloadTooLarge,
        Reason::Unsupported,
        Reason::Cancelled,
        Reason::Safety,
        Reason::CircuitOpen,
        Reason::Cooling,
        Reason::Exhausted,
        Reason::Budget,
        Reason::SpendCap,
        Reason::Unknown,
    ];

    /// The name used in logs, metrics, config and JSON, such as `rate_limit`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Reason::Auth => "auth",
            Reason::Billing => "billing",
            Reason::RateLimit => "rate_limit",
            Reason::Overloaded => "overloaded",
            Reason::ServerError => "server_error",
            Reason::Timeout => "timeout",
            Reason::Network => "network",
            Reason::ModelNotFound => "model_not_found",
            Reason::ContextOverflow => "context_overflow",
            Reason::OutputTruncated => "output_truncated",
            Reason::ContentFilter => "content_filter",
            Reason::Format => "format",
            Reason::PayloadTooLarge => "payload_too_large",
            Reason::Unsupported => "unsupported",
            Reason::Cancelled => "cancelled",
            Reason::Safety => "safety",
            Reason::CircuitOpen => "circuit_open",
            Reason::Cooling => "cooling",
            Reason::Exhausted => "exhausted",
            Reason::Budget => "budget",
            Reason::SpendCap => "spend_cap",
            Reason::Unknown => "unknown",
        }
    }

    /// What this reason means by default.
    pub const fn rule(self) -> RecoveryRule {
        use Failover as F;
        use FaultSide::{Caller, Local, Provider};
        use Retry::{Forbidden, No, Yes};
        use Scope as S;

        const fn rule(
            retry: Retry,
            failover: Failover,
            scope: Scope,
            fault: FaultSide,
            cooldown_secs: u64,
        ) -> RecoveryRule {
            let cooldown = match cooldown_secs {
                0 => None,
                secs => Some(Duration::from_secs(secs)),
            };
            RecoveryRule { retry, failover, scope, fault, cooldown, permanent: false }
        }

        match self {
            // A key is replaced by a person, which takes minutes.
            Reason::Auth => rule(No, F::NextCredential, S::Credential, Provider, 600),
            // A bill is paid by a person, which takes longer.
            Reason::Billing => rule(No, F::NextCredential, S::Credential, Provider, 1_800),
            // Rate windows are a minute wide at every large provider.
            Reason::RateLimit => rule(Yes, F::NextTarget, S::ModelCredential, Provider, 60),
            Reason::Overloaded => rule(Yes, F::NextTarget, S::Model, Provider, 120),
            Reason::ServerError => rule(Yes, F::NextTarget, S::Provider, Provider, 60),
            Reason::Timeout | Reason::Network => {
                rule(Yes, F::NextTarget, S::Provider, Provider, 30)
            }
            Reason::ModelNotFound => rule(No, F::NextModel, S::Model, Provider, 3_600),
            Reason::ContextOverflow => rule(No, F::LargerWindow, S::Request, Caller, 0),
            Reason::OutputTruncated
            | Reason::ContentFilter
            | Reason::Format
            | Reason::PayloadTooLarge => rule(No, F::Never, S::Request, Caller, 0),
            Reason::Unsupported => rule(No, F::NextTarget, S::Request, Caller, 0),
            Reason::Cancelled => rule(No, F::Never, S::Request, Caller, 0),
            Reason::Safety => rule(Forbidden, F::Forbidden, S::Task, Local, 0),
            Reason::CircuitOpen | Reason::Cooling | Reason::Exhausted | Reason::Budget => {
                rule(No, F::NextTarget, S::Local, Local, 0)
            }
            // Every target costs the same account.
            Reason::SpendCap => rule(Forbidden, F::Forbidden, S::Local, Local, 0),
            Reason::Unknown => rule(No, F::NextTarget, S::Provider, Provider, 30),
        }
    }

    /// The reason for a status when nothing else is known, or `None` when the status is not an
    /// error.
    pub fn from_status(status: StatusCode) -> Option<Reason> {
        Some(match status.as_u16() {
            100..=399 => return None,
            400 | 422 => Reason::Format,
            401 | 403 => Reason::Auth,
            402 => Reason::Billing,
            404 => Reason::ModelNotFound,
            408 | 504 | 524 => Reason::Timeout,
            413 => Reason::PayloadTooLarge,
            429 => Reason::RateLimit,
            // Google and Ollama: the caller cancelled.
            499 => Reason::Cancelled,
            // Groq's flex tier: no capacity.
            498 | 503 | 529 => Reason::Overloaded,
            501 | 505 => Reason::Unsupported,
            // Conflicts clear, and a 5xx that nobody knows is an error of the server.
            409 | 500.. => Reason::ServerError,
            _ => Reason::Unknown,
        })
    }

    /// One of our own refusals: the call did not reach a provider.
    pub const fn is_refusal(self) -> bool {
        matches!(
            self,
            Reason::CircuitOpen
                | Reason::Cooling
                | Reason::Exhausted
                | Reason::Budget
                | Reason::SpendCap
        )
    }

    /// A lack of capacity: the target works, but can not serve the call now.
    pub const fn is_throttling(self) -> bool {
        matches!(self, Reason::RateLimit | Reason::Overloaded)
    }

    /// The HTTP status a server answers with when this failure ends a call and the provider gave
    /// none of its own.
    pub const fn http_status(self) -> StatusCode {
        match self {
            Reason::Auth => StatusCode::UNAUTHORIZED,
            // A spent cap too: agents ask again after a 429, whatever its headers.
            Reason::Billing | Reason::SpendCap => StatusCode::PAYMENT_REQUIRED,
            Reason::RateLimit | Reason::Budget => StatusCode::TOO_MANY_REQUESTS,
            Reason::Overloaded
            | Reason::CircuitOpen
            | Reason::Cooling
            | Reason::Exhausted => StatusCode::SERVICE_UNAVAILABLE,
            Reason::Timeout => StatusCode::GATEWAY_TIMEOUT,
            Reason::ServerError | Reason::Network | Reason::Unknown => StatusCode::BAD_GATEWAY,
            Reason::ModelNotFound => StatusCode::NOT_FOUND,
            Reason::PayloadTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Reason::ContextOverflow
            | Reason::OutputTruncated
            | Reason::ContentFilter
            | Reason::Format
            | Reason::Unsupported
            // Of the 4xx the one that no agent asks again after, and none takes for a question of its login.
            | Reason::Safety => StatusCode::BAD_REQUEST,
            // nginx's status for a client that closed the connection; not a registered one.
            Reason::Cancelled => match StatusCode::from_u16(499) {
                Ok(status) => status,
                Err(_) => StatusCode::BAD_REQUEST,
            },
        }
    }

    /// A fixed text for the end user, without any part of the provider's error.
    pub const fn user_message(self) -> &'static str {
        match self {
            Reason::Auth => {
                "The model provider refused our credentials. An operator has to renew them."
            }
            Reason::Billing => {
                "The account at the model provider is out of credit or over its limit."
            }
            Reason::RateLimit => {
                "The model provider is limiting requests. Please try again in a moment."
            }
            Reason::Overloaded => "The model provider is overloaded. Please try again in a moment.",
            Reason::ServerError => "The model provider had an internal error. Please try again.",
            Reason::Timeout => "The model did not answer in time. Please try again.",
            Reason::Network => "The model provider could not be reached. Please try again.",
            Reason::ModelNotFound => "The requested model is not available.",
            Reason::ContextOverflow => "The conversation is too long for the model.",
            Reason::OutputTruncated => "The answer was cut off at the output limit.",
            Reason::ContentFilter => "The model provider's content policy stopped this request.",
            Reason::Format => "The request was not valid for the model provider.",
            Reason::PayloadTooLarge => "The request is too large.",
            Reason::Unsupported => "The model provider does not support what was asked for.",
            Reason::Cancelled => "The request was cancelled.",
            Reason::Safety => {
                "The task was stopped by a safety limit. Please review the work so far."
            }
            Reason::CircuitOpen | Reason::Cooling => {
                "The model provider is resting after repeated failures. Please try again shortly."
            }
            Reason::Exhausted => "No model provider could answer. Please try again shortly.",
            Reason::Budget => {
                "The limit for model calls is used up for now. Please try again later."
            }
            Reason::SpendCap => {
                "The spending limit for model calls is used up for now. Please try again later."
            }
            Reason::Unknown => "The model call failed. Please try again.",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A name that is no [`Reason`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no reason; one of auth, billing, rate_limit, overloaded, server_error, timeout, network, model_not_found, context_overflow, output_truncated, content_filter, format, payload_too_large, unsupported, cancelled, safety, circuit_open, cooling, exhausted, budget, spend_cap, unknown"
)]
pub struct ParseReasonError(String);

impl FromStr for Reason {
    type Err = ParseReasonError;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Reason::ALL
            .into_iter()
            .find(|reason| reason.as_str() == name)
            .ok_or_else(|| ParseReasonError(name.chars().take(64).collect()))
    }
}

/// The [`RecoveryRule`] of each [`Reason`]: the default table, or one that a preset or the
/// operator changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveryTable {
    rules: [RecoveryRule; Reason::ALL.len()],
}

impl Default for RecoveryTable {
    fn default() -> Self {
        Self { rules: Reason::ALL.map(Reason::rule) }
    }
}

impl RecoveryTable {
    /// The table of [`Reason::rule`].
    pub fn new() -> Self {
        Self::default()
    }

    /// The rule of `reason`.
    pub fn rule(&self, reason: Reason) -> &RecoveryRule {
        // `ALL` lists the reasons in declaration order, so the discriminant is the index; a test
        // checks that.
        &self.rules[reason as usize]
    }

    /// Changes the rule of `reason`. Those of [`Reason::Safety`] and [`Reason::SpendCap`] can not be
    /// changed.
    #[must_use]
    pub fn with_rule(mut self, reason: Reason, change: impl FnOnce(&mut RecoveryRule)) -> Self {
        if !matches!(reason, Reason::Safety | Reason::SpendCap) {
            change(&mut self.rules[reason as usize]);
        }
        self
    }

    /// Sets the cooldown of `reason`; zero means none.
    #[must_use]
    pub fn with_cooldown(self, reason: Reason, cooldown: Duration) -> Self {
        self.with_rule(reason, |rule| rule.cooldown = (!cooldown.is_zero()).then_some(cooldown))
    }
}

/// The first cooldown after a permanent failure: an hour, about how soon a person reacts to an
/// alarm.
pub const PERMANENT_COOLDOWN: Duration = Duration::from_secs(3_600);

/// The longest cooldown after permanent failures: a day, so that a repair is noticed within one.
pub const PERMANENT_COOLDOWN_CAP: Duration = Duration::from_secs(24 * 3_600);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_index_is_the_discriminant() {
        for (index, reason) in Reason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, index, "{reason}");
            assert_eq!(reason.as_str().parse(), Ok(reason));
            #[cfg(feature = "serde")]
            assert_eq!(serde_json::to_value(reason).unwrap(), reason.as_str());
            assert_eq!(RecoveryTable::default().rule(reason), &reason.rule());
        }
    }

    #[test]
    fn what_is_final_can_not_be_softened() {
        for reason in [Reason::Safety, Reason::SpendCap] {
            let table = RecoveryTable::default().with_rule(reason, |rule| rule.retry = Retry::Yes);
            assert_eq!(table.rule(reason).retry, Retry::Forbidden);
        }
    }

    #[test]
    fn only_error_statuses_have_a_reason() {
        assert_eq!(Reason::from_status(StatusCode::OK), None);
        assert_eq!(Reason::from_status(StatusCode::NOT_MODIFIED), None);
        for status in 400..=599 {
            assert!(Reason::from_status(StatusCode::from_u16(status).unwrap()).is_some());
        }
    }
}
