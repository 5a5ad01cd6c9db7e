//! The keys of the configuration file and their defaults.
//!
//! A number that is `None` here is the layer's own default, which is documented there and printed
//! by `steadfast check`: it stands in one place.

use std::{collections::BTreeMap, net::SocketAddr};

use serde::Deserialize;
use steadfast_core::{Dialect, Failover, OnUnsupported, Scope};

use super::{CompactionConfig, ContinuationConfig, GuardConfig, ResumeConfig};

/// The whole file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct Config {
    /// Where and for whom it serves.
    pub server: ServerConfig,
    /// Who may use it, when `server.auth = "keys"`.
    pub tenants: Vec<TenantConfig>,
    /// The providers it can ask.
    pub providers: Vec<ProviderConfig>,
    /// In which order, and what happens when one fails.
    pub failover: FailoverConfig,
    /// How often the same provider is asked again.
    pub retry: RetryConfig,
    /// When it is not asked at all.
    pub breaker: BreakerConfig,
    /// How long anything may take.
    pub timeout: TimeoutConfig,
    /// How much a task of an agent may have, and when it goes in circles.
    pub guard: GuardConfig,
    /// What becomes of answers that the output limit cut off.
    pub continuation: ContinuationConfig,
    /// What becomes of streams that break.
    pub resume: ResumeConfig,
    /// What becomes of conversations that outgrow their model's window.
    pub compaction: CompactionConfig,
    /// How long a provider rests after a failure, in seconds by reason.
    pub cooldown: CooldownConfig,
    /// What each reason means.
    pub recovery: RecoveryConfig,
}

/// `[server]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct ServerConfig {
    /// The address to listen on.
    pub listen: SocketAddr,
    /// Whether callers need a key.
    pub auth: Auth,
    /// The largest request body, in bytes: 32 MiB, which is what the largest providers take.
    pub body_limit: usize,
    /// How long a caller may take to send a request, in seconds: 60, which is 32 MiB at 5 Mbit/s.
    pub body_timeout_s: u64,
    /// How long a graceful shutdown waits for open streams, in seconds: 30, the usual grace of an
    /// orchestrator.
    pub shutdown_s: u64,
    /// How long a stream may be silent before a comment keeps it open, in seconds: 15, below the
    /// minute after which common proxies cut.
    pub keepalive_s: u64,
    /// Headers of callers that are passed on to providers of the same dialect: `anthropic-beta`,
    /// which says nothing of an account. One that does, such as `openai-organization`, lets a caller
    /// have the operator's key refused, and the provider rest for everybody.
    pub forward_headers: Vec<String>,
    /// The key for `/admin/*`: `env:NAME`, `file:PATH`, or `sha256:HEX` of it. Without it these
    /// are served on loopback addresses only.
    pub admin_key: Option<String>,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 8080)),
            auth: Auth::default(),
            body_limit: 32 * 1024 * 1024,
            body_timeout_s: 60,
            shutdown_s: 30,
            keepalive_s: 15,
            forward_headers: vec!["anthropic-beta".to_owned()],
            admin_key: None,
        }
    }
}

/// Whether callers need a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Auth {
    /// They do: one of a tenant's.
    #[default]
    Keys,
    /// They do not. Only on a loopback address.
    None,
}

/// `[[tenants]]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct TenantConfig {
    /// The tenant's name, for logs, sessions and budgets.
    pub name: String,
    /// Its keys: `sha256:HEX`, `env:NAME` or `file:PATH`.
    pub keys: Vec<String>,
}

/// `[[providers]]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ProviderConfig {
    /// The name chains and logs use.
    pub name: String,
    /// What it speaks.
    pub dialect: Dialect,
    /// Where it is, as in the vendor's own SDK. Without it the vendor's own address.
    pub base_url: Option<String>,
    /// Its keys, tried in order: `env:NAME` or `file:PATH`. None: it wants no key.
    #[serde(default)]
    pub credentials: Vec<String>,
    /// Which model to send for the one asked for; `*` stands for all others.
    #[serde(default)]
    pub models: BTreeMap<String, String>,
    /// Models of the same provider to fall back to, by the model sent.
    #[serde(default)]
    pub downgrades: BTreeMap<String, Vec<String>>,
    /// Whether it reads images.
    #[serde(default = "yes")]
    pub vision: bool,
    /// Whether it calls tools.
    #[serde(default = "yes")]
    pub tools: bool,
    /// Its window, in tokens.
    pub window: Option<u64>,
    /// The most it writes, in tokens.
    pub max_output: Option<u64>,
    /// Whether its models go on with a last message of their own. Without it a stream that broke is
    /// resumed by asking for the last words to be repeated, which works everywhere.
    #[serde(default)]
    pub prefill: bool,
    /// Parameters it does not take.
    #[serde(default)]
    pub unsupported: Vec<String>,
    /// What to do with those: `drop` them or `refuse` the provider.
    #[serde(default)]
    pub on_unsupported: OnUnsupported,
    /// Headers to send with every request.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
}

impl ProviderConfig {
    /// A provider with nothing but a name and a dialect.
    pub fn new(name: impl Into<String>, dialect: Dialect) -> Self {
        Self {
            name: name.into(),
            dialect,
            base_url: None,
            credentials: Vec::new(),
            models: BTreeMap::new(),
            downgrades: BTreeMap::new(),
            vision: true,
            tools: true,
            window: None,
            max_output: None,
            prefill: false,
            unsupported: Vec::new(),
            on_unsupported: OnUnsupported::default(),
            headers: BTreeMap::new(),
        }
    }
}

fn yes() -> bool {
    true
}

/// `[failover]`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct FailoverConfig {
    /// Providers in the order they are asked. Without it, the order they stand in the file.
    pub chain: Vec<String>,
    /// Chains for requests that need something.
    pub chains: ChainsConfig,
    /// What happens when every provider is resting: `fail`, `wait` or `try_soonest`.
    pub when_exhausted: Option<WhenExhausted>,
    /// How long `wait` waits at most, in milliseconds.
    pub wait_ms: Option<u64>,
    /// How long a conversation stays with the provider it was moved to, in seconds.
    pub sticky_s: Option<u64>,
    /// After how long without content a second provider is asked as well, in milliseconds. 0: never.
    pub hedge_ms: Option<u64>,
    /// Whether an overloaded model is replaced by a smaller one of the same provider first.
    pub downgrade_on_overload: Option<bool>,
    /// Whether a refusal by one provider's content policy is taken to the next.
    pub on_content_filter: Option<bool>,
    /// Whether a vendor is asked first for its own models, by their names, whatever the order of
    /// the chain. True for providers found from the environment.
    pub own_vendor_first: bool,
}

/// `[failover.chains]`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct ChainsConfig {
    /// For requests with images.
    pub vision: Vec<String>,
    /// For conversations above `large_tokens`.
    pub large: Vec<String>,
    /// From how many tokens on a conversation is large.
    pub large_tokens: Option<u64>,
}

/// What happens when every provider is resting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum WhenExhausted {
    /// The call fails and says when to come back.
    Fail,
    /// The call waits for the first to come back.
    Wait,
    /// The one that comes back first is asked all the same.
    TrySoonest,
}

/// `[retry]`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct RetryConfig {
    /// Retries after the first attempt.
    pub retries: Option<u32>,
    /// The first wait, in milliseconds.
    pub base_ms: Option<u64>,
    /// The longest wait of our own choosing, in milliseconds.
    pub cap_ms: Option<u64>,
    /// The longest wait a provider may ask for, in milliseconds.
    pub max_wait_ms: Option<u64>,
    /// Overloads in a row after which another model is asked for.
    pub overloaded_limit: Option<u32>,
    /// Tokens in the bucket that all retries draw from. 0: no limit.
    pub budget: Option<u32>,
}

/// `[breaker]`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct BreakerConfig {
    /// Hard failures in a row that open it.
    pub failures: Option<u32>,
    /// The window failure rates are taken over, in seconds.
    pub window_s: Option<u64>,
    /// The failure rate that opens it, 0 to 1.
    pub failure_rate: Option<f64>,
    /// Calls in the window below which a rate says nothing.
    pub minimum_calls: Option<u32>,
    /// Only watch and report.
    pub observe_only: Option<bool>,
}

/// `[timeout]`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct TimeoutConfig {
    /// The longest time without content, in milliseconds.
    pub stall_ms: Option<u64>,
    /// The longest whole answer, as a multiple of the stall limit.
    pub ceiling: Option<u32>,
    /// The longest a retry or fallback may take to begin its answer, in milliseconds. 0: off.
    pub attempt_ms: Option<u64>,
    /// The longest time to the first content, in milliseconds. 0: off.
    pub first_content_ms: Option<u64>,
    /// The longest a request may take with everything that is done for it, in milliseconds.
    pub pipeline_ms: Option<u64>,
}

/// `[recovery]`: what each reason means, where the operator knows better.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct RecoveryConfig {
    /// The table to begin with.
    pub preset: RecoveryPreset,
    /// Cells of the table, by reason.
    pub reasons: BTreeMap<String, RuleConfig>,
}

/// A table of what reasons mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum RecoveryPreset {
    /// The library's own.
    #[default]
    Default,
    /// Eight reasons: [`RecoveryTable::codebuddy`](steadfast_core::RecoveryTable::codebuddy).
    Codebuddy,
    /// Seven, three of them permanent: [`RecoveryTable::adr012`](steadfast_core::RecoveryTable::adr012).
    Adr012,
}

/// `[recovery.reasons.REASON]`: the cells to change.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct RuleConfig {
    /// Whether the same target may be asked again.
    pub retry: Option<bool>,
    /// Where else the call may go: `next_target`, `next_credential`, `next_model`,
    /// `larger_window` or `never`.
    pub failover: Option<Failover>,
    /// What rests: `request`, `model_credential`, `model`, `credential` or `provider`.
    pub scope: Option<Scope>,
    /// Whether it does not pass by itself: rests an hour, doubling up to a day.
    pub permanent: Option<bool>,
}

/// `[cooldown]`: seconds by reason; 0 means none.
pub type CooldownConfig = BTreeMap<String, u64>;
