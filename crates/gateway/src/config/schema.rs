//! The keys of the configuration file.
//!
//! What is set of a layer is the layer's own policy: its fields are the keys, with their defaults,
//! their checks and their documentation. Here stands what belongs to the gateway alone.
//! `docs/gateway.md`, `steadfast check` and its `--schema` are made from these types.

use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf, time::Duration};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};
use steadfast::{
    BudgetPolicy, Preset,
    breaker::BreakerPolicy,
    classify::ClassifyPolicy,
    compact::{CompactionPolicy, SpendPolicy, SummaryPolicy},
    escalate::EscalationPolicy,
    failover::FailoverPolicy,
    guard::GuardPolicy,
    health::HealthPolicy,
    limit::RatePolicy,
    recover::{ContinuationPolicy, ResumePolicy},
    retry::RetryPolicy,
    timeout::{DeadlinePolicy, StallPolicy},
};
use steadfast_core::{
    CapSharing, Dialect, Failover, OnUnsupported, Reason, RecoveryTable, Retry, Scope,
    config::Seconds,
};

use super::{Link, RouteConfig, SpendLimitConfig, validate::key_name};

/// The whole file.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
#[non_exhaustive]
pub struct Config {
    /// The system whose numbers every section starts from: `codebuddy`, `claude-code`, `adr-012`, `comis` or
    /// `guppy`, see [presets.md](presets.md). What the file sets itself goes before. Without one the
    /// defaults hold, which are none of these.
    pub preset: Option<Preset>,
    /// Where and for whom it serves.
    pub server: ServerConfig,
    /// What is written to standard error.
    pub log: LogConfig,
    /// Who may use it, with `auth = "keys"`.
    pub tenants: Vec<TenantConfig>,
    /// The providers it can ask.
    pub providers: Vec<ProviderConfig>,
    /// Names that stand for models, such as `fast = "gpt-5.4-mini"`: replaced before routes and `models` are
    /// applied, so that answers name the model itself.
    pub aliases: BTreeMap<String, String>,
    /// Requests that go by a chain and limits of their own, by model, tenant or agent: the first route in the
    /// file that takes a request has it, and those that none takes go by the rest of the file. What is known
    /// of targets (cooldowns, breakers), tasks, conversations and the budget is one for all routes.
    pub routes: BTreeMap<String, RouteConfig>,
    /// In which order they are asked, and what happens when one fails.
    pub failover: FailoverConfig,
    /// When a provider is degraded, seen across all callers: then it is asked after the others, and nothing is
    /// summarised there. It recovers by calls that succeed: [health.md](health.md).
    pub health: Switch<HealthPolicy>,
    /// How often the same provider is asked again.
    pub retry: RetryConfig,
    /// The rates at which a target is asked: those that it states in the headers of its answers, and those that
    /// are set. Calls beyond them wait for their turn, tenants in turn, or move on: [limit.md](limit.md).
    pub rate_limit: RatePolicy,
    /// How calls that ask a dead target again take turns: one breaker for each provider, model and credential. With
    /// `dead = 0` it refuses calls by its own rules, and only then do keys but `dead`, `turn_ms`, `observe_only` and
    /// `keys` change anything.
    pub breaker: BreakerPolicy,
    /// How long anything may take.
    pub timeout: TimeoutConfig,
    /// What each tenant and each of its keys may spend in any hour, day and 30 days, in tokens and in money; 0 is
    /// no cap. Callers without a tenant share one account. `/admin/spend` shows the accounts: [limit.md](limit.md).
    pub spend_limit: SpendLimitConfig,
    /// Holds requests that every target has failed for a person, who decides by
    /// [`/admin/escalations`](#held-requests): [escalate.md](escalate.md).
    pub escalation: EscalationConfig,
    /// What is remembered of responses that callers of OpenAI's Responses API may name in their next request, so that
    /// a conversation can go on at another provider than the one that keeps it: [gateway.md](#state).
    pub responses: ResponsesConfig,
    /// What several gateways know together: [fleet.md](fleet.md).
    pub state: StateConfig,
    /// What operators can see of single requests: [observe.md](observe.md).
    pub observe: ObserveConfig,
    /// Traces and metrics by OpenTelemetry: [observe.md](observe.md#opentelemetry).
    pub otel: OtelConfig,
    /// Ends tasks of agents that go in circles, and those that use too much: [guard.md](guard.md). A task
    /// is what `x-steadfast-task` names, over all its turns and conversations; without it what
    /// `x-steadfast-session` names, or the request's own history, since the user last spoke. Only a task
    /// that is named has limits by default (`[guard.named]`); a limit that is set here is for everybody.
    pub guard: Switch<GuardPolicy>,
    /// Goes on with answers that were cut off by an output limit the caller did not set, or beyond one
    /// when the request has the header `x-steadfast-continue: 1`: [recover.md](recover.md).
    pub continuation: Switch<ContinuationPolicy>,
    /// Goes on with streams that break after their first content: [recover.md](recover.md).
    pub resume: Switch<ResumePolicy>,
    /// Keeps conversations inside their model's window: [compaction.md](compaction.md). Shares are of
    /// the window, which is the provider's `window`, else what is publicly known of the model, else
    /// what the provider says when a conversation does not fit.
    pub compaction: Switch<CompactionConfig>,
    /// What an error means, where the operator knows better than the built-in tables.
    pub classify: ClassifyPolicy,
    /// How long at most what failed cools down when the provider named no time, in seconds by reason: `auth`,
    /// `billing`, `rate_limit`, `overloaded`, `server_error`, `timeout`, `network`, `model_not_found`,
    /// `unknown`, and those that by default do not. What cools down is as much as the failure speaks
    /// for: a credential, a model, or the provider.
    pub cooldown: BTreeMap<Reason, u64>,
    /// What each reason means, where the operator knows better. What the safety guard stops is not for
    /// a table to allow.
    pub recovery: RecoveryConfig,
}

/// `[server]`
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct ServerConfig {
    /// The address to listen on; no TLS, put a proxy in front for that.
    #[schemars(with = "String")]
    pub listen: SocketAddr,
    /// Whether callers need a key.
    pub auth: Auth,
    /// The key for `/admin/*`: `env:NAME`, `file:PATH` or `sha256:HEX` of it. Without one, callers from
    /// a loopback address may; behind a proxy on the same machine that is everybody, so set one.
    pub admin_key: Option<String>,
    /// The largest request body, in bytes. 32 MiB, which is what the largest providers take.
    pub body_limit: usize,
    /// How long a caller may take to send a request; then 408. 60 s, which is 32 MiB at 5 Mbit/s.
    #[serde(rename = "body_timeout_s", with = "Seconds")]
    pub body_timeout: Duration,
    /// How long a request may stop on its way; then 408. 30 s: a network that loses packets recovers within
    /// seconds.
    #[serde(rename = "body_progress_s", with = "Seconds")]
    pub body_progress: Duration,
    /// How long a caller may take not a byte of an answer: then the call is cancelled and the connection, or
    /// the stream of HTTP/2, is reset. 60 s, as common proxies have it. Past the call's deadline it is a
    /// second.
    #[serde(rename = "send_timeout_s", with = "Seconds")]
    pub send_timeout: Duration,
    /// How long a connection is kept without a request. 75 s, as nginx has it; with HTTP/2 a
    /// GOAWAY comes first.
    #[serde(rename = "idle_timeout_s", with = "Seconds")]
    pub idle_timeout: Duration,
    /// How old a connection may become, give or take a tenth; then it is closed at its next pause, so that
    /// callers find gateways that came later. Off by default.
    #[serde(rename = "max_connection_age_s", with = "Seconds")]
    pub max_connection_age: Option<Duration>,
    /// How many connections callers may have, 10,000. Beyond it requests are answered 503 with `retry-after`,
    /// those for health, metrics and `/admin` excepted; beyond an eighth more, callers wait at the door.
    pub max_connections: usize,
    /// How many requests may be in flight, 4,096: some 160 MB, their bodies apart. Beyond it they are
    /// answered 503 with `retry-after`. Where there are tenants none takes more than three times what it leaves
    /// to the others.
    pub max_in_flight: usize,
    /// The memory for bodies in flight, in MiB. Default half of what the process may use: the least of what its
    /// control group, its limits and the machine allow. A body is charged four times its bytes, as they come,
    /// until its answer has ended. One that could never fit is answered 413; one that does not fit now waits up
    /// to a second and is then answered 503 with `retry-after`. An eighth is for bodies of up to 256 KiB alone.
    /// Tenants share it as they share `max_in_flight`.
    pub memory_mib: Option<u64>,
    /// How long a shutdown waits for answers in progress. 30 s, the usual grace of an orchestrator.
    #[serde(rename = "shutdown_s", with = "Seconds")]
    pub shutdown: Duration,
    /// Where cooldowns, open breakers and what was spent are kept over a restart, such as `/var/lib/steadfast/state.json`; one file for
    /// one gateway. Off by default: see [Restart](#restart).
    pub state_file: Option<PathBuf>,
    /// How long a stream that has started may be silent before a comment keeps it open. 15 s, below the
    /// minute after which common proxies cut.
    #[serde(rename = "keepalive_s", with = "Seconds")]
    pub keepalive: Duration,
    /// How long a caller who streams may hear nothing before the first content; then the status 200 is sent
    /// and a sign of life, and from then on a failure is an error event. 20 s, below the 30 s after which
    /// impatient proxies and people give up, and longer than a healthy model takes to begin.
    #[serde(rename = "early_keepalive_s", with = "steadfast_core::config::Seconds")]
    pub early_keepalive: Option<Duration>,
    /// Further headers of callers that go on to providers of the same dialect; every `anthropic-*`,
    /// `openai-beta` and `x-goog-*` goes anyway. Credentials and headers of the connection are refused here. Think twice about headers that choose an account
    /// (`openai-organization`): a wrong one has your key refused, and the provider cools down for
    /// everybody.
    pub forward_headers: Vec<String>,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 8080)),
            auth: Auth::default(),
            admin_key: None,
            body_limit: 32 * 1024 * 1024,
            body_timeout: Duration::from_secs(60),
            body_progress: Duration::from_secs(30),
            send_timeout: Duration::from_secs(60),
            idle_timeout: Duration::from_secs(75),
            max_connection_age: None,
            max_connections: 10_000,
            max_in_flight: 4_096,
            memory_mib: None,
            shutdown: Duration::from_secs(30),
            state_file: None,
            keepalive: Duration::from_secs(15),
            forward_headers: Vec::new(),
            early_keepalive: Some(Duration::from_secs(20)),
        }
    }
}

/// `[log]`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct LogConfig {
    /// Whether libraries may log at `debug` and `trace` when `RUST_LOG` asks for it. Those that speak HTTP show headers and
    /// parts of messages there, so by default only the gateway and its layers log at these levels. Secrets are masked in
    /// any case.
    pub libraries: bool,
}

/// Whether callers need a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Auth {
    /// They need a tenant's.
    #[default]
    Keys,
    /// They do not, and `listen` has to be a loopback address; requests for another host name or from
    /// a page of another host are refused, so that no web page can spend your money.
    None,
}

/// `[[tenants]]`
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct TenantConfig {
    /// The tenant's name, for logs, sessions and budgets.
    pub name: String,
    /// Its keys: `sha256:HEX` of the key, `env:NAME` or `file:PATH`. A key itself does not stand in the
    /// file.
    pub keys: Vec<String>,
}

impl TenantConfig {
    /// The names of its keys, as spending, logs and metrics have them.
    pub(crate) fn key_names(&self) -> impl Iterator<Item = String> {
        self.keys.iter().map(|key| key_name(&self.name, key))
    }
}

/// `[[providers]]`
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ProviderConfig {
    /// What chains, logs and headers call it.
    pub name: String,
    /// What it speaks: chat completions, messages, generateContent or responses.
    pub dialect: Dialect,
    /// Who serves its models. What is particular to a cloud stands in [clouds.md](clouds.md).
    #[serde(default)]
    pub kind: ProviderKind,
    /// With `kind = "azure"`: the version of the older API, such as `2024-10-21`, which has deployments in the address.
    /// Without it the newer one is asked, which has none.
    pub api_version: Option<String>,
    /// With `kind = "vertex"`: the project.
    pub project: Option<String>,
    /// With `kind = "vertex"`: the location, such as `us-east5`, `eu` or `global`.
    pub location: Option<String>,
    /// With `kind = "bedrock"`: the region, such as `eu-central-1`.
    pub region: Option<String>,
    /// What it speaks besides, at the same address: a caller of that dialect is answered by it as it is. OpenAI itself
    /// speaks `openai` and `responses`; few compatible servers do.
    pub also: Option<Dialect>,
    /// Where it is, as in the vendor's own SDK: OpenAI's ends in `/v1`, Anthropic's and Gemini's is the
    /// host. Without it the vendor's own, or that of the project's location or the region. With `kind = "azure"` it is
    /// the resource's endpoint, such as `https://my-resource.openai.azure.com`, and has to be given.
    pub base_url: Option<String>,
    /// Its keys in the order they are used: `env:NAME` or `file:PATH`; those of a cloud that expire and are renewed:
    /// `aws:default`, `aws:profile/NAME`, `google:default`, `google:PATH` of a service account's file. Their names (the
    /// variable, the file's stem, the profile) are seen in headers, logs and metrics. None: it wants no key.
    #[serde(default)]
    pub credentials: Vec<String>,
    /// Asked for → sent. A key that ends with `*` stands for every beginning, `*` alone for all others;
    /// the value `*` sends the model as it was asked for, which is also what happens without a map. Embeddings go
    /// by the keys without `*` alone: [embeddings.md](embeddings.md).
    #[serde(default)]
    pub models: BTreeMap<String, String>,
    /// Its share of the calls, beside equals of a chain; 0: only when the others can not.
    #[serde(default = "one")]
    pub weight: u32,
    /// Models to try instead, best first, by the model sent: `{ "large" = ["small"] }`.
    #[serde(default)]
    pub downgrades: BTreeMap<String, Vec<String>>,
    /// Whether it reads images.
    #[serde(default = "yes")]
    pub vision: bool,
    /// Whether it calls tools.
    #[serde(default = "yes")]
    pub tools: bool,
    /// Its window, in tokens; a request that does not fit skips it.
    pub window: Option<u64>,
    /// The most it writes, in tokens; a request that asks for more is given this.
    pub max_output: Option<u64>,
    /// Whether its models go on with a last message of their own. Without it a stream that broke is
    /// resumed by asking for the last text to be repeated, which works everywhere.
    #[serde(default)]
    pub prefill: bool,
    /// Parameters it does not take, by their names in OpenAI's dialect: `max_tokens`, `temperature`,
    /// `top_p`, `top_k`, `stop`, `seed`, `presence_penalty`, `frequency_penalty`, `tool_choice`,
    /// `parallel_tool_calls`, `reasoning_effort`, `response_format`, `user`, `n`.
    #[serde(default)]
    pub unsupported: Vec<String>,
    /// What becomes of those, and of images it does not read.
    #[serde(default)]
    pub on_unsupported: OnUnsupported,
    /// Headers to send with every request. Where a name speaks of a key, a token, a secret, a password, a cookie or of
    /// authorization, the value is masked wherever it would be seen.
    #[serde(default, serialize_with = "names_only")]
    pub headers: BTreeMap<String, String>,
    /// Whether it is sent the `traceparent` of an attempt; without it `otel.propagate` says so.
    pub propagate: Option<bool>,
}

impl ProviderConfig {
    /// A provider with nothing but a name and a dialect.
    pub fn new(name: impl Into<String>, dialect: Dialect) -> Self {
        Self {
            name: name.into(),
            dialect,
            kind: ProviderKind::default(),
            api_version: None,
            project: None,
            location: None,
            region: None,
            also: None,
            base_url: None,
            credentials: Vec::new(),
            models: BTreeMap::new(),
            weight: 1,
            downgrades: BTreeMap::new(),
            vision: true,
            tools: true,
            window: None,
            max_output: None,
            prefill: false,
            unsupported: Vec::new(),
            on_unsupported: OnUnsupported::default(),
            headers: BTreeMap::new(),
            propagate: None,
        }
    }
}

/// Who serves the models of a provider.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum ProviderKind {
    /// The vendor of its dialect, or a server that is compatible with it.
    #[default]
    Vendor,
    /// Azure: OpenAI's models in their two dialects, and Anthropic's.
    Azure,
    /// Google Cloud's Vertex AI: Google's models, Anthropic's, and others in OpenAI's two dialects.
    Vertex,
    /// Amazon Bedrock: Anthropic's models, and others in OpenAI's two dialects.
    Bedrock,
}

fn yes() -> bool {
    true
}

fn one() -> u32 {
    1
}

/// The values of headers may be secrets.
fn names_only<S: Serializer>(
    headers: &BTreeMap<String, String>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(headers.keys().map(|name| (name, "***")))
}

/// `[failover]`
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
#[non_exhaustive]
pub struct FailoverConfig {
    /// The providers in the order they are asked: `["a", "b"]`. Several that are equal stand in a list of
    /// their own, `[["a", "b"], "c"]`, and share the calls by `balance` and their `weight`. Without it, the
    /// order in which they stand in the file.
    pub chain: Vec<Link>,
    /// Chains for requests that need something.
    pub chains: ChainsConfig,
    /// Whether a model's own vendor is asked first, by the model's name; of several providers of one
    /// dialect the first in the file. Without a file it is.
    pub own_vendor_first: bool,
    /// Whether one provider's refusal by content policy is taken to the next.
    pub on_content_filter: bool,
    /// Models to try instead, best first, by the model sent, at every provider that has no `downgrades` of
    /// its own; `*` is for all others. With the preset `claude-code` and none here it is the model in the
    /// environment variable `FALLBACK_MODEL_ID`.
    pub downgrades: BTreeMap<String, Vec<String>>,
    #[allow(missing_docs, reason = "its fields are the keys, with documentation of their own")]
    #[serde(flatten)]
    pub policy: FailoverPolicy,
}

/// `[failover.chains]`
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct ChainsConfig {
    /// The chain for requests with images.
    pub vision: Vec<Link>,
    /// The chain for long conversations.
    pub large: Vec<Link>,
    /// From how many tokens on, estimated from below, a conversation is long. Three quarters of the
    /// 200,000 that are the usual window.
    pub large_tokens: u64,
}

impl Default for ChainsConfig {
    fn default() -> Self {
        Self { vision: Vec::new(), large: Vec::new(), large_tokens: 150_000 }
    }
}

/// `[retry]`
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
#[non_exhaustive]
#[allow(missing_docs, reason = "their fields are the keys, with documentation of their own")]
pub struct RetryConfig {
    #[serde(flatten)]
    pub policy: RetryPolicy,
    #[serde(flatten)]
    pub budget: BudgetPolicy,
}

/// `[timeout]`
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
#[non_exhaustive]
#[allow(missing_docs, reason = "their fields are the keys, with documentation of their own")]
pub struct TimeoutConfig {
    #[serde(flatten)]
    pub deadline: DeadlinePolicy,
    #[serde(flatten)]
    pub stall: StallPolicy,
}

/// `[responses]`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct ResponsesConfig {
    /// How much may be remembered of what responses say, in MiB, over all tenants: who holds most loses the oldest
    /// first. 0 remembers nothing of it, and conversations stay with their provider.
    pub memory_mib: usize,
    /// Of how many responses, items and conversations it is known who keeps them, some 200 bytes each.
    pub ids: usize,
    /// How long anything is remembered. A day; OpenAI keeps responses for 30.
    #[serde(rename = "keep_s", with = "Seconds")]
    pub keep: Duration,
}

impl Default for ResponsesConfig {
    fn default() -> Self {
        Self { memory_mib: 64, ids: 131_072, keep: Duration::from_secs(24 * 3_600) }
    }
}

impl ResponsesConfig {
    /// How much may be remembered, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.memory_mib.saturating_mul(1024 * 1024)
    }
}

/// `[state]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct StateConfig {
    /// The Valkey or Redis (7.0 and newer) by which gateways share what they know, such as `redis://host:6379`, `rediss://` for
    /// TLS, `redis-sentinel://host:26379,host:26379/NAME` or `redis-cluster://host:6379`; `env:NAME` or `file:PATH` where there is a
    /// password in it. Without one this gateway knows what it has seen itself. No call waits for it, and while it is away each
    /// gateway goes on by itself.
    pub url: Option<String>,
    /// The file with the certificates, in PEM, by one of which that of the store is signed. By default those that browsers know.
    pub ca: Option<PathBuf>,
    /// What the names of all its keys begin with.
    pub prefix: String,
    /// Which gateways belong together. One whose `prefix` is another fleet's shares nothing, and says so.
    pub fleet: String,
    /// What becomes of calls under a [spend cap](#spend_limit), which holds for all gateways together, while the store has granted
    /// nothing for them: see [fleet.md](fleet.md#caps-on-what-is-spent).
    pub caps: CapSharing,
}

impl Default for StateConfig {
    fn default() -> Self {
        Self {
            url: None,
            ca: None,
            prefix: "steadfast".to_owned(),
            fleet: "default".to_owned(),
            caps: CapSharing::default(),
        }
    }
}

/// `[observe]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct ObserveConfig {
    /// Of how many requests it is remembered what became of them, for `/admin/requests` and `steadfast why`: those that
    /// failed or needed recovery take up to three quarters. No prompts, no answers. 10,000: an hour of a busy day. 0 remembers none.
    pub requests: usize,
    /// How much that may take, in MiB: most take 1 KiB, those with many steps 10.
    pub requests_mib: usize,
    /// The folder in which a service of `steadfast-deliver` keeps its dead letters, to show them without their texts on the
    /// [dashboard](observe.md#dashboard).
    pub letters: Option<PathBuf>,
    /// The folder in which an agent keeps its conversations with `steadfast-session`, to list them there. They are only read.
    pub sessions: Option<PathBuf>,
    /// The folder in which `steadfast-supervise` keeps its registry of runs, to list those there that have not ended, and the
    /// newest that have.
    pub runs: Option<PathBuf>,
}

impl Default for ObserveConfig {
    fn default() -> Self {
        Self { requests: 10_000, requests_mib: 64, letters: None, sessions: None, runs: None }
    }
}

impl ObserveConfig {
    /// How much requests may take, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.requests_mib.saturating_mul(1024 * 1024)
    }
}

/// `[otel]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct OtelConfig {
    /// The collector, such as `http://localhost:4317`, in place of `OTEL_EXPORTER_OTLP_ENDPOINT` and those of traces and metrics. With
    /// neither nothing is traced. All else is set by OpenTelemetry's own variables.
    pub endpoint: Option<String>,
    /// `grpc` or `http/protobuf`, in place of `OTEL_EXPORTER_OTLP_PROTOCOL`. With neither it is `http/protobuf`, and at the port
    /// 4317 `grpc`.
    pub protocol: Option<String>,
    /// Whether providers are sent the `traceparent` of an attempt, so that a trace goes on in a server of your own. Off by
    /// default: the ids are nobody else's business. A provider's own `propagate` goes before.
    pub propagate: bool,
}

/// `[escalation]`
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
#[non_exhaustive]
pub struct EscalationConfig {
    /// Whether anything is held. Off by default: where nobody decides, callers would wait for nothing. What is
    /// held is never more than a quarter of `server.max_in_flight`, and of the memory for bodies.
    pub enabled: bool,
    /// The address that gets one POST with JSON for each request that is held; `env:NAME` or `file:PATH` where
    /// the address itself is a secret. It is sent beside the call, three times at most, 10 s each, and has no
    /// secrets in it. Without one, operators ask the endpoint.
    pub webhook: Option<String>,
    #[allow(missing_docs, reason = "its fields are the keys, with documentation of their own")]
    #[serde(flatten)]
    pub policy: EscalationPolicy,
}

/// A layer that can be left out.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
#[non_exhaustive]
pub struct Switch<P: Default> {
    /// Whether it is done at all.
    pub enabled: bool,
    #[allow(missing_docs, reason = "its fields are the keys, with documentation of their own")]
    #[serde(flatten)]
    pub policy: P,
}

impl<P: Default> Default for Switch<P> {
    fn default() -> Self {
        Self { enabled: true, policy: P::default() }
    }
}

/// `[compaction]`
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
#[non_exhaustive]
pub struct CompactionConfig {
    /// Who summarises. Without one older messages become markers and lists of facts, which costs
    /// nothing.
    pub summariser: Option<SummariserConfig>,
    /// Whether it is done in the background, for the next turn.
    pub deferred: bool,
    #[allow(missing_docs, reason = "its fields are the keys, with documentation of their own")]
    #[serde(flatten)]
    pub policy: CompactionPolicy,
    #[allow(missing_docs, reason = "its fields are the keys, with documentation of their own")]
    #[serde(flatten)]
    pub spend: SpendPolicy,
}

/// `[compaction.summariser]`
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct SummariserConfig {
    /// One of the providers.
    pub provider: String,
    /// The model it is asked for: a small one will do.
    pub model: String,
    #[allow(missing_docs, reason = "its fields are the keys, with documentation of their own")]
    #[serde(flatten)]
    pub policy: SummaryPolicy,
}

/// `[recovery]`
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct RecoveryConfig {
    /// Cells of the table to change, by reason.
    pub reasons: BTreeMap<Reason, RuleConfig>,
}

/// `[recovery.reasons.REASON]`: the cells to change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct RuleConfig {
    /// Whether the same target may be asked again.
    pub retry: Option<bool>,
    /// Where else the call may go.
    pub failover: Option<Failover>,
    /// What cools down.
    pub scope: Option<Scope>,
    /// Whether it does not pass by itself: cools down for an hour, doubling up to a day.
    pub permanent: Option<bool>,
}

impl Config {
    /// What each reason means.
    pub fn table(&self) -> RecoveryTable {
        let mut table = RecoveryTable::default();
        for (reason, seconds) in &self.cooldown {
            table = table.with_cooldown(*reason, Duration::from_secs(*seconds));
        }
        for (reason, given) in &self.recovery.reasons {
            table = table.with_rule(*reason, |rule| {
                if let Some(retry) = given.retry {
                    rule.retry = if retry { Retry::Yes } else { Retry::No };
                }
                rule.failover = given.failover.unwrap_or(rule.failover);
                rule.scope = given.scope.unwrap_or(rule.scope);
                rule.permanent = given.permanent.unwrap_or(rule.permanent);
            });
        }
        table
    }

    /// The providers in the order they are asked.
    pub fn chain(&self) -> Vec<Link> {
        if self.failover.chain.is_empty() {
            self.providers.iter().map(|provider| provider.name.as_str().into()).collect()
        } else {
            self.failover.chain.clone()
        }
    }

    /// The routes in the order of the file.
    pub fn routes(&self) -> Vec<(&str, &RouteConfig)> {
        let mut routes: Vec<_> =
            self.routes.iter().map(|(name, route)| (name.as_str(), route)).collect();
        routes.sort_by_key(|(_, route)| route.position);
        routes
    }

    /// What follows other keys where it is not `set` itself.
    pub(super) fn follow(&mut self, set: impl Fn(&str) -> bool) {
        let retry = &mut self.retry.policy;
        if !set("retry.failover_wait_ms") {
            retry.failover_wait = retry.failover_wait.min(retry.max_wait);
        }
        let compaction = &mut self.compaction.policy.policy;
        if !set("compaction.least_target") {
            compaction.least_target = compaction.least_target.min(compaction.target);
        }
        let GuardPolicy { limits, named, .. } = &mut self.guard.policy;
        let follows =
            |key: &str| set(&format!("guard.{key}")) && !set(&format!("guard.named.{key}"));
        if follows("events") {
            named.events = limits.events;
        }
        if follows("calls") {
            named.calls = limits.calls;
        }
        if follows("time_s") {
            named.time = limits.time;
        }
        if follows("per_tool") {
            named.per_tool = limits.per_tool;
        }
        if follows("edits_per_file") {
            named.edits_per_file = limits.edits_per_file;
        }
    }
}
