//! Keep LLM calls running when providers, networks and models do not.
//!
//! LLM calls fail in ways that HTTP clients do not know: a 429 that is really an unpaid bill, a
//! stream that dies in the middle of a sentence after a 200, a hang, a model that is gone.
//! Steadfast answers each of these with one [`tower::Layer`](tower_layer::Layer), in a crate of
//! its own, stacked around an HTTP LLM client or around your own service.
//!
//! | feature | crate | layer | answers |
//! |---|---|---|---|

#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    feature = "classify",
    doc = "| `classify` | [`classify`] | [`ClassifyLayer`](classify::ClassifyLayer) | what does this error mean? |"
)]
#![cfg_attr(
    feature = "retry",
    doc = "| `retry` | [`retry`] | [`RetryBackoffLayer`](retry::RetryBackoffLayer) | the same target again, later |"
)]
#![cfg_attr(
    feature = "breaker",
    doc = "| `breaker` | [`breaker`] | [`CircuitBreakerLayer`](breaker::CircuitBreakerLayer) | stop asking a target that keeps failing |"
)]
#![cfg_attr(
    feature = "failover",
    doc = "| `failover` | [`failover`] | [`CooldownFailoverLayer`](failover::CooldownFailoverLayer) | another target while this one cools down |"
)]
#![cfg_attr(
    feature = "timeout",
    doc = "| `timeout` | [`timeout`] | [`StallTimeoutLayer`](timeout::StallTimeoutLayer), [`DeadlineLayer`](timeout::DeadlineLayer) | hangs end |"
)]
#![cfg_attr(
    feature = "health",
    doc = "| `health` | [`health`] | [`ProviderHealthLayer`](health::ProviderHealthLayer) | a provider that is ill for all callers, asked after the others |"
)]
#![cfg_attr(
    feature = "guard",
    doc = "| `guard` | [`guard`] | [`SafetyGuardLayer`](guard::SafetyGuardLayer) | an agent that goes in circles, or too far |"
)]
#![cfg_attr(
    feature = "compact",
    doc = "| `compact` | [`compact`] | [`CompactionLayer`](compact::CompactionLayer) | conversations that outgrow their model's window |"
)]
#![cfg_attr(
    feature = "recover",
    doc = "| `recover` | [`recover`] | [`ContinuationLayer`](recover::ContinuationLayer), [`StreamResumeLayer`](recover::StreamResumeLayer), [`ThinkingMemoryLayer`](recover::ThinkingMemoryLayer) | answers that were cut off, streams that broke, thinking that is bound to its prefix |"
)]
#![cfg_attr(
    feature = "escalate",
    doc = "| `escalate` | [`escalate`] | [`EscalationLayer`](escalate::EscalationLayer) | when all has failed, ask a person |"
)]
#![cfg_attr(
    feature = "client",
    doc = "| `client` | [`client`] | [`LlmClient`](client::LlmClient) | three wire dialects, any to any; https by `tls`, a feature of its own |"
)]
#![cfg_attr(feature = "stack", doc = "| `stack` | | [`Stack`] | all of them, in the right order |")]
#![cfg_attr(
    feature = "limit",
    doc = "| `limit` | [`limit`] | [`RateLimitLayer`](limit::RateLimitLayer), [`SpendLimitLayer`](limit::SpendLimitLayer) | 429s that need not be caused, and what tenants may spend |"
)]
#![cfg_attr(
    feature = "tool",
    doc = "| `tool` | [`tool`] | [`ToolTimeoutLayer`](tool::ToolTimeoutLayer), [`ToolBreakerLayer`](tool::ToolBreakerLayer), [`ToolPolicyLayer`](tool::ToolPolicyLayer) | tools that hang, fail or are called again and again |"
)]
#![cfg_attr(
    feature = "session",
    doc = "| `session` | [`session`] | [`SessionLayer`](session::SessionLayer) | conversations in files that survive a crash |"
)]
#![cfg_attr(
    feature = "supervise",
    doc = "| `supervise` | [`supervise`] | [`Actors`](supervise::Actors), [`WatchdogLayer`](supervise::WatchdogLayer) | agents that throw, hang, or were running when the process ended |"
)]
#![cfg_attr(
    feature = "deliver",
    doc = "| `deliver` | [`deliver`] | [`DeadLetterLayer`](deliver::DeadLetterLayer), [`RouteFallbackLayer`](deliver::RouteFallbackLayer) | replies and announcements that could not be delivered |"
)]
#![cfg_attr(
    feature = "sim",
    doc = "| `sim` | [`sim`] | [`SimProvider`](sim::SimProvider) | providers that misbehave, for tests |"
)]
#![cfg_attr(
    feature = "otel",
    doc = "| `otel` | [`otel`] | [`OtelLayer`](otel::OtelLayer) | traces and metrics, by OpenTelemetry |"
)]
#![cfg_attr(
    feature = "metrics",
    doc = "| `metrics` | [`metrics`](mod@metrics) | [`CallMetricsLayer`](metrics::CallMetricsLayer) | how often, how long, how many attempts |"
)]
//!
//! Every layer speaks [`Failure`], says what it did in the [`RecoveryLog`] of the answer, and
//! follows an answer to its *end*: first content shows that the provider can be reached, and a stream
//! that breaks after it counts against the provider that served it, and is never a clean end.
//!
//! With the feature `exact-tokens` the compaction counts the tokens of OpenAI's models exactly, by tables
//! of 47 MB; without it they are estimated, and learned from reported usage.
//!
//! # Order
//!
//! Outermost first: deadline, spend limit and escalation (both off until they are set), guard, continuation,
//! resume, failover, health, compaction, retry, rate limit, breaker, stall, spend meter, classify, client. `Stack` has all of them.
//! Leave out what you do not need; keep the order of what remains. A few orders that look as good
//! and are not:
//!
//! * a timeout *outside* the breaker: the hang it ends is a cancellation to the breaker, which
//!   never trips;
//! * retry *outside* failover: nothing is retried in place, and no hint is waited for;
//! * classify *outside* retry: a 429 that is an unpaid bill is retried ten times;
//! * a deadline *inside* retry: each attempt gets the whole of it.
//!
//! # When it does not compile
//!
//! The compiler names what is missing (`.at_once()` for a plain value as reply, `map_err` for an error of your own,
//! [`WithContext`] for a request of your own) where a service is *required*, and not where a method is called on
//! it: "the method `oneshot` exists, but its trait bounds were not satisfied" names nothing. Then pass the
//! service to a function that requires one, for as long as it takes:
//!
//! ```
//! fn check<Request, S: tower::Service<Request>>(_: &S) {}
//! # let service = tower::service_fn(async |_: http::Request<()>| Ok::<_, steadfast::Failure>(()));
//! check::<http::Request<()>, _>(&service);
//! ```

#[cfg(feature = "stack")]
mod embed_stack;
#[cfg(all(feature = "stack", feature = "shared"))]
mod fleet;
#[cfg(feature = "metrics")]
pub mod metrics;
#[cfg(feature = "stack")]
mod policies;
#[cfg(feature = "stack")]
mod preset;
#[cfg(feature = "stack")]
mod stack;

#[cfg(feature = "breaker")]
pub use steadfast_breaker as breaker;
pub use steadfast_chat::*;
#[cfg(feature = "classify")]
pub use steadfast_classify as classify;
#[cfg(feature = "client")]
pub use steadfast_client as client;
#[cfg(any(feature = "aws", feature = "google"))]
pub use steadfast_cloud as cloud;
#[cfg(feature = "compact")]
pub use steadfast_compact as compact;
pub use steadfast_core::*;
#[cfg(feature = "deliver")]
pub use steadfast_deliver as deliver;
#[cfg(feature = "escalate")]
pub use steadfast_escalate as escalate;
#[cfg(feature = "failover")]
pub use steadfast_failover as failover;
#[cfg(feature = "guard")]
pub use steadfast_guard as guard;
#[cfg(feature = "health")]
pub use steadfast_health as health;
#[cfg(feature = "limit")]
pub use steadfast_limit as limit;
#[cfg(feature = "otel")]
pub use steadfast_otel as otel;
#[cfg(feature = "recover")]
pub use steadfast_recover as recover;
#[cfg(feature = "redis")]
pub use steadfast_redis as redis;
#[cfg(feature = "retry")]
pub use steadfast_retry as retry;
#[cfg(feature = "session")]
pub use steadfast_session as session;
#[cfg(feature = "sim")]
pub use steadfast_sim as sim;
#[cfg(feature = "supervise")]
pub use steadfast_supervise as supervise;
#[cfg(feature = "timeout")]
pub use steadfast_timeout as timeout;
#[cfg(feature = "tool")]
pub use steadfast_tool as tool;

#[cfg(feature = "stack")]
pub use self::embed_stack::{EmbedService, EmbedStack, EmbedStacked};
#[cfg(all(feature = "stack", feature = "client"))]
pub use self::stack::UnknownProvider;
#[cfg(feature = "stack")]
pub use self::stack::{ChatService, Handles, Stack, Stacked};
#[cfg(feature = "stack")]
pub use self::{
    policies::{Policies, PoliciesError},
    preset::{ParsePresetError, Preset},
};

/// The example of the README, kept compiling.
#[cfg(all(doctest, feature = "stack", feature = "client"))]
#[doc = include_str!("../../../README.md")]
struct Readme;
