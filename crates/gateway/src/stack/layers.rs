//! The layers a configuration stands for.

use std::{fmt, time::Duration};

use steadfast::{
    BudgetPolicy, ChatRequest, Needs, Reason, RecoveryTable, RetryBudget, Stack,
    breaker::{BreakerPolicy, CircuitBreakerLayer},
    classify::ClassifyLayer,
    client::{LlmClient, transport::Transport},
    compact::{CompactionLayer, CompactionPolicy, SpendPolicy},
    failover::{
        Chain, ChooseChain, CooldownFailoverLayer, Downgrades, FailoverPolicy, ModelMap,
        TargetSpec, WhenExhausted,
    },
    guard::{GuardPolicy, SafetyGuardLayer},
    recover::{ContinuationLayer, ContinuationPolicy, ResumePolicy, StreamResumeLayer},
    retry::{RetryBackoffLayer, RetryPolicy},
    timeout::{DeadlineLayer, DeadlinePolicy, StallPolicy, StallTimeoutLayer},
};
use steadfast_core::{Backoff, Failover, Retry};

use super::{conversation, models::ModelLimits};
use crate::config::{
    self, Config, ConfigErrors, ProviderConfig, RecoveryPreset, Source, credential_name, native,
};

/// From how many tokens on a conversation takes the chain for large ones: three quarters of the
/// 200,000 that are the usual window, since the count is an estimate from below.
const LARGE_TOKENS: u64 = 150_000;

/// How conversations are compacted.
#[derive(Clone, Debug)]
pub(crate) struct Compactions {
    pub(crate) enabled: bool,
    pub(crate) policy: CompactionPolicy,
    pub(crate) spend: SpendPolicy,
    pub(crate) deferred: bool,
    /// The one provider that summarises, with its model.
    pub(crate) summariser: Option<TargetSpec>,
}

/// Every number a stack is made of.
#[derive(Clone, Debug)]
pub(crate) struct Policies {
    pub(crate) chain: Chain,
    pub(crate) named: Vec<(String, Chain)>,
    pub(crate) choose: Choose,
    pub(crate) failover: FailoverPolicy,
    pub(crate) retry: RetryPolicy,
    pub(crate) budget: Option<BudgetPolicy>,
    pub(crate) breaker: BreakerPolicy,
    pub(crate) stall: StallPolicy,
    pub(crate) deadline: DeadlinePolicy,
    pub(crate) guard: GuardPolicy,
    pub(crate) continuation: ContinuationPolicy,
    pub(crate) resume: ResumePolicy,
    pub(crate) compaction: Compactions,
    pub(crate) models: ModelLimits,
    /// Providers whose models go on with a last message of their own.
    pub(crate) prefill: Vec<String>,
    pub(crate) table: RecoveryTable,
}

impl Policies {
    /// What `config` stands for.
    ///
    /// # Errors
    ///
    /// When numbers contradict each other or a provider is missing.
    pub(crate) fn of(config: &Config, source: &Source) -> Result<Self, ConfigErrors> {
        let at = |key: &str, error: &dyn fmt::Display| {
            ConfigErrors::from(source.error(key, error.to_string()))
        };
        let names = if config.failover.chain.is_empty() {
            config.providers.iter().map(|provider| provider.name.clone()).collect()
        } else {
            config.failover.chain.clone()
        };
        let chain = chain(config, &names).map_err(|error| at("failover.chain", &error))?;
        let (named, choose) = Choose::of(config, &names, &at)?;
        let table = table(config);
        Ok(Self {
            chain,
            named,
            choose,
            failover: failover(config, &table),
            retry: retry(config).map_err(|error| at("retry", &error))?,
            budget: budget(config),
            breaker: breaker(config, &table).map_err(|error| at("breaker", &error))?,
            stall: stall(config).map_err(|error| at("timeout", &error))?,
            deadline: deadline(config).map_err(|error| at("timeout.pipeline_ms", &error))?,
            guard: conversation::guard(&config.guard, source)?,
            continuation: conversation::continuation(&config.continuation),
            resume: conversation::resume(&config.resume),
            compaction: Compactions {
                enabled: config.compaction.enabled,
                policy: conversation::compaction(&config.compaction)
                    .map_err(|error| at(&format!("compaction.{}", error.field()), &error))?,
                spend: conversation::spend(&config.compaction),
                deferred: config.compaction.deferred,
                summariser: summariser(config),
            },
            models: ModelLimits::of(config),
            prefill: config
                .providers
                .iter()
                .filter(|provider| provider.prefill)
                .map(|provider| provider.name.clone())
                .collect(),
            table,
        })
    }

    /// The layers with these numbers.
    ///
    /// # Errors
    ///
    /// When a layer refuses them.
    pub(crate) fn stack(
        &self,
        source: &Source,
        client: &LlmClient<Transport>,
    ) -> Result<Stack<Choose>, ConfigErrors> {
        let at = |key: &str, error: &dyn fmt::Display| {
            ConfigErrors::from(source.error(key, error.to_string()))
        };
        let mut failover = CooldownFailoverLayer::new(self.chain.clone())
            .policy(self.failover.clone())
            .choose(self.choose.clone());
        for (name, chain) in &self.named {
            failover = failover.named(name.as_str(), chain.clone());
        }
        let retry = RetryBackoffLayer::new(self.retry).map_err(|e| at("retry", &e))?;
        let guard = SafetyGuardLayer::new(self.guard.clone())
            .map_err(|e| at(&conversation::key(&e), &e))?;
        let models = self.models.clone();
        let continuation = ContinuationLayer::new(self.continuation.clone())
            .map_err(|e| at(&format!("continuation.{}", e.field()), &e))?
            .limits(move |_, target| models.of_target(target));
        let prefill = self.prefill.clone();
        let resume = StreamResumeLayer::new(self.resume.clone())
            .map_err(|e| at(&format!("resume.{}", e.field()), &e))?
            .prefill(move |target, _| {
                target.is_some_and(|target| prefill.iter().any(|name| name == target.provider()))
            });
        let stack = Stack::around(failover)
            .guard(guard)
            .continuation(continuation)
            .resume(resume)
            .compaction(self.compaction(source, client)?)
            .retry(retry)
            .breaker(CircuitBreakerLayer::new(self.breaker.clone()).map_err(|e| at("breaker", &e))?)
            .stall(StallTimeoutLayer::new(self.stall).map_err(|e| at("timeout", &e))?)
            .deadline(DeadlineLayer::new(self.deadline).map_err(|e| at("timeout", &e))?)
            .classify(ClassifyLayer::default().with_table(self.table.clone()));
        // One for retries, failovers and resumes together.
        Ok(match self.budget {
            None => stack.without_budget(),
            Some(policy) => stack.budget(RetryBudget::new(policy)),
        })
    }
}

impl Policies {
    fn compaction(
        &self,
        source: &Source,
        client: &LlmClient<Transport>,
    ) -> Result<CompactionLayer, ConfigErrors> {
        let at = |key: &str, error: &dyn fmt::Display| {
            ConfigErrors::from(source.error(key, error.to_string()))
        };
        let given = &self.compaction;
        if !given.enabled {
            return Ok(CompactionLayer::off());
        }
        let layer = match &given.summariser {
            None => CompactionLayer::rules_only(),
            Some(spec) => {
                // A stack of its own: what goes wrong with summaries is not held against chats.
                let chain = Chain::new([spec.clone()])
                    .map_err(|error| at("compaction.summariser", &error))?;
                let stack = Stack::new(chain)
                    .without_guard()
                    .without_continuation()
                    .without_resume()
                    .without_compaction();
                CompactionLayer::new(stack.boxed(client.clone()))
            }
        };
        let models = self.models.clone();
        Ok(layer
            .policy(given.policy.clone())
            .map_err(|error| at(&format!("compaction.{}", error.field()), &error))?
            .spend(given.spend)
            .deferred(given.deferred)
            .models(models.models())
            .targets(move |target| models.facts(target)))
    }
}

/// The provider that summarises, whatever model is asked for.
fn summariser(config: &Config) -> Option<TargetSpec> {
    let given = config.compaction.summariser.as_ref()?;
    let provider = config.providers.iter().find(|provider| provider.name == given.provider)?;
    let mut spec = spec(provider);
    spec.models = ModelMap::new([("*".to_owned(), given.model.clone())]);
    Some(spec)
}

/// Which chain a request takes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Choose {
    vision: bool,
    large: Option<u64>,
    /// Beginnings of model names, and the chain that begins with their vendor.
    vendors: Vec<(&'static str, String)>,
}

impl Choose {
    fn of(
        config: &Config,
        names: &[String],
        at: &dyn Fn(&str, &dyn fmt::Display) -> ConfigErrors,
    ) -> Result<(Vec<(String, Chain)>, Self), ConfigErrors> {
        let chains = &config.failover.chains;
        let mut named = Vec::new();
        let mut choose = Self::default();
        if !chains.vision.is_empty() {
            let chain =
                chain(config, &chains.vision).map_err(|e| at("failover.chains.vision", &e))?;
            named.push(("vision".to_owned(), chain));
            choose.vision = true;
        }
        if !chains.large.is_empty() {
            let chain =
                chain(config, &chains.large).map_err(|e| at("failover.chains.large", &e))?;
            named.push(("large".to_owned(), chain));
            choose.large = Some(chains.large_tokens.unwrap_or(LARGE_TOKENS));
        }
        if config.failover.own_vendor_first {
            for provider in config.providers.iter().filter(|p| names.contains(&p.name)) {
                let mut order = vec![provider.name.clone()];
                order.extend(names.iter().filter(|name| **name != provider.name).cloned());
                let chain = chain(config, &order).map_err(|e| at("failover.chain", &e))?;
                let name = format!("vendor:{}", provider.name);
                let own = native(provider.dialect).iter().map(|model| model.trim_end_matches('*'));
                choose.vendors.extend(own.map(|model| (model, name.clone())));
                named.push((name, chain));
            }
        }
        Ok((named, choose))
    }
}

impl ChooseChain<ChatRequest> for Choose {
    fn choose<'a>(&'a self, request: &'a ChatRequest, needs: &Needs) -> Option<&'a str> {
        if self.vision && needs.vision {
            return Some("vision");
        }
        if self.large.is_some_and(|large| needs.input_tokens >= large) {
            return Some("large");
        }
        self.vendors
            .iter()
            .find(|(beginning, _)| request.model.starts_with(beginning))
            .map(|(_, chain)| chain.as_str())
    }

    fn is_needed(&self) -> bool {
        self.vision || self.large.is_some() || !self.vendors.is_empty()
    }
}

fn chain(config: &Config, names: &[String]) -> Result<Chain, steadfast::failover::ChainError> {
    Chain::new(
        names
            .iter()
            .filter_map(|name| config.providers.iter().find(|provider| provider.name == *name))
            .map(spec),
    )
}

fn spec(provider: &ProviderConfig) -> TargetSpec {
    let mut spec = TargetSpec::new(provider.name.clone()).dialect(provider.dialect);
    spec.credentials = provider.credentials.iter().map(|c| credential_name(c).to_owned()).collect();
    spec.models = ModelMap::new(provider.models.iter().map(|(a, s)| (a.clone(), s.clone())));
    spec.downgrades = provider.downgrades.clone().into_iter().collect::<Downgrades>();
    spec.capabilities.vision = provider.vision;
    spec.capabilities.tools = provider.tools;
    spec.capabilities.window = provider.window;
    spec.capabilities.max_output = provider.max_output;
    spec.capabilities.unsupported.clone_from(&provider.unsupported);
    spec.capabilities.on_unsupported = provider.on_unsupported;
    spec
}

fn ms(value: Option<u64>, default: Duration) -> Duration {
    value.map_or(default, Duration::from_millis)
}

/// Zero switches a limit off.
fn optional_ms(value: Option<u64>, default: Option<Duration>) -> Option<Duration> {
    match value {
        None => default,
        Some(0) => None,
        Some(ms) => Some(Duration::from_millis(ms)),
    }
}

/// Names that are no reasons have been refused by the validation before.
fn table(config: &Config) -> RecoveryTable {
    let mut table = match config.recovery.preset {
        RecoveryPreset::Default => RecoveryTable::default(),
        RecoveryPreset::Codebuddy => RecoveryTable::codebuddy(),
        RecoveryPreset::Adr012 => RecoveryTable::adr012(),
    };
    for (reason, seconds) in &config.cooldown {
        if let Ok(reason) = reason.parse::<Reason>() {
            table = table.cooldown(reason, Duration::from_secs(*seconds));
        }
    }
    for (reason, given) in &config.recovery.reasons {
        if let Ok(reason) = reason.parse::<Reason>() {
            table = table.with(reason, |rule| {
                if let Some(retry) = given.retry {
                    rule.retry = if retry { Retry::Yes } else { Retry::No };
                }
                rule.failover = given.failover.unwrap_or(rule.failover);
                rule.scope = given.scope.unwrap_or(rule.scope);
                rule.permanent = given.permanent.unwrap_or(rule.permanent);
            });
        }
    }
    table
}

fn failover(config: &Config, table: &RecoveryTable) -> FailoverPolicy {
    let given = &config.failover;
    let mut policy = FailoverPolicy::default();
    policy.table = table.clone();
    if given.on_content_filter == Some(true) {
        policy.table =
            policy.table.with(Reason::ContentFilter, |rule| rule.failover = Failover::NextTarget);
    }
    policy.when_exhausted = match given.when_exhausted {
        None => policy.when_exhausted,
        Some(config::WhenExhausted::Fail) => WhenExhausted::Fail,
        Some(config::WhenExhausted::TrySoonest) => WhenExhausted::TrySoonest,
        Some(config::WhenExhausted::Wait) => {
            WhenExhausted::Wait(ms(given.wait_ms, Duration::from_secs(60)))
        }
    };
    policy.sticky = given.sticky_s.map_or(policy.sticky, Duration::from_secs);
    policy.hedge = optional_ms(given.hedge_ms, policy.hedge);
    policy.downgrade_on_overload =
        given.downgrade_on_overload.unwrap_or(policy.downgrade_on_overload);
    policy
}

fn retry(config: &Config) -> Result<RetryPolicy, Box<dyn std::error::Error>> {
    let given = &config.retry;
    let mut policy = RetryPolicy::transient();
    policy.retries = given.retries.unwrap_or(policy.retries);
    policy.overloaded_limit = given.overloaded_limit.unwrap_or(policy.overloaded_limit);
    policy.max_wait = ms(given.max_wait_ms, policy.max_wait);
    policy.failover_wait = policy.failover_wait.min(policy.max_wait);
    if given.base_ms.is_some() || given.cap_ms.is_some() {
        let base = ms(given.base_ms, policy.backoff.base());
        let cap = ms(given.cap_ms, policy.backoff.cap().max(base));
        policy.backoff = Backoff::new(base, cap)?;
    }
    policy.validate()?;
    Ok(policy)
}

fn budget(config: &Config) -> Option<BudgetPolicy> {
    match config.retry.budget {
        Some(0) => None,
        Some(capacity) => Some(BudgetPolicy { capacity, ..BudgetPolicy::default() }),
        None => Some(BudgetPolicy::default()),
    }
}

fn breaker(
    config: &Config,
    table: &RecoveryTable,
) -> Result<BreakerPolicy, steadfast::breaker::PolicyError> {
    let given = &config.breaker;
    let mut policy = BreakerPolicy { table: table.clone(), ..BreakerPolicy::default() };
    policy.consecutive = given.failures.or(policy.consecutive);
    policy.window = given.window_s.map_or(policy.window, Duration::from_secs);
    policy.failure_rate = given.failure_rate.or(policy.failure_rate);
    policy.min_calls = given.minimum_calls.unwrap_or(policy.min_calls);
    policy.observe = given.observe_only.unwrap_or(policy.observe);
    policy.validate()?;
    Ok(policy)
}

fn stall(config: &Config) -> Result<StallPolicy, steadfast::timeout::PolicyError> {
    let given = &config.timeout;
    let mut policy = StallPolicy::default();
    policy.stall = ms(given.stall_ms, policy.stall);
    policy.ceiling = given.ceiling.or(policy.ceiling);
    policy.attempt = optional_ms(given.attempt_ms, policy.attempt);
    policy.first_content = optional_ms(given.first_content_ms, policy.first_content);
    policy.validate()?;
    Ok(policy)
}

fn deadline(config: &Config) -> Result<DeadlinePolicy, steadfast::timeout::PolicyError> {
    let default = DeadlinePolicy::default();
    let policy = DeadlinePolicy { pipeline: ms(config.timeout.pipeline_ms, default.pipeline) };
    policy.validate()?;
    Ok(policy)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"
[server]
auth = "none"

[[providers]]
name = "anthropic"
dialect = "anthropic"
credentials = ["env:FIRST_KEY", "file:/run/secrets/second.key"]
models = { "claude-*" = "*", "*" = "claude-sonnet-4-5" }
window = 200000

[[providers]]
name = "openai"
dialect = "openai"
vision = false
unsupported = ["top_k"]

[failover]
chain = ["openai", "anthropic"]
chains = { vision = ["anthropic"], large = ["anthropic"], large_tokens = 90000 }
when_exhausted = "wait"
wait_ms = 5000
hedge_ms = 0
on_content_filter = true

[retry]
retries = 2
base_ms = 100
cap_ms = 50000
max_wait_ms = 10000
budget = 0

[breaker]
failures = 9

[timeout]
stall_ms = 5000
attempt_ms = 0
pipeline_ms = 90000

[cooldown]
rate_limit = 7
timeout = 0

[recovery]
preset = "adr012"

[recovery.reasons]
auth = { permanent = false }
unknown = { retry = true }
format = { failover = "next_target" }
server_error = { scope = "model" }
"#;

    fn client() -> LlmClient<Transport> {
        use steadfast::client::{Provider, Providers};
        let one = Provider::new("one", steadfast::Dialect::OpenAi).without_credential();
        LlmClient::with_service(Providers::new([one]).unwrap(), Transport::new())
    }

    fn policies(text: &str) -> Policies {
        let source = Source::text(text);
        let config = source.parse().unwrap();
        config.validate(&source).unwrap();
        let policies = Policies::of(&config, &source).unwrap();
        let _stack = policies.stack(&source, &client()).unwrap();
        policies
    }

    #[test]
    fn every_key_arrives_where_it_belongs() {
        let policies = policies(FILE);
        let order: Vec<_> = policies.chain.iter().map(|spec| spec.provider.as_str()).collect();
        assert_eq!(order, ["openai", "anthropic"], "the chain, not the file");
        let anthropic = &policies.chain[1];
        assert_eq!(anthropic.credentials, ["FIRST_KEY", "second"], "names, not secrets");
        assert_eq!(anthropic.models.sent(Some("gpt-4o")), Some("claude-sonnet-4-5"));
        assert_eq!(anthropic.models.sent(Some("claude-x")), Some("claude-x"));
        assert_eq!(anthropic.capabilities.window, Some(200_000));
        assert!(!policies.chain[0].capabilities.vision);
        assert_eq!(policies.failover.when_exhausted, WhenExhausted::Wait(Duration::from_secs(5)));
        assert_eq!(policies.failover.hedge, None);
        let filter = policies.failover.table.rule(Reason::ContentFilter);
        assert_eq!(filter.failover, Failover::NextTarget);
        assert_eq!(policies.retry.retries, 2);
        assert_eq!(policies.retry.backoff.cap(), Duration::from_secs(50));
        assert_eq!(policies.retry.max_wait, Duration::from_secs(10));
        assert!(policies.budget.is_none());
        assert_eq!(policies.breaker.consecutive, Some(9));
        assert_eq!(policies.stall.stall, Duration::from_secs(5));
        assert_eq!(policies.stall.attempt, None);
        assert_eq!(policies.deadline.pipeline, Duration::from_secs(90));
        let cooldown = |reason| policies.table.rule(reason).cooldown;
        assert_eq!(cooldown(Reason::RateLimit), Some(Duration::from_secs(7)));
        assert_eq!(cooldown(Reason::Timeout), None);
        assert_eq!(cooldown(Reason::Network), Reason::Network.rule().cooldown);
        let rule = |reason| policies.table.rule(reason);
        assert!(rule(Reason::Billing).permanent, "the preset's");
        assert_eq!(rule(Reason::Unknown).retry, Retry::Yes);
        assert_eq!(rule(Reason::Format).failover, Failover::NextTarget);
        assert_eq!(rule(Reason::ServerError).scope, steadfast_core::Scope::Model);
        assert!(!rule(Reason::Auth).permanent, "a cell outranks the preset");
    }

    #[test]
    fn without_keys_every_number_is_the_layers_own() {
        let policies =
            policies("[server]\nauth='none'\n[[providers]]\nname='a'\ndialect='openai'\n");
        assert_eq!(policies.retry, RetryPolicy::transient());
        assert_eq!(policies.breaker, BreakerPolicy::default());
        assert_eq!(policies.stall, StallPolicy::default());
        assert_eq!(policies.deadline, DeadlinePolicy::default());
        assert_eq!(policies.budget, Some(BudgetPolicy::default()));
        assert_eq!(policies.table, RecoveryTable::default());
    }

    #[tokio::test(start_paused = true)]
    async fn one_budget_is_for_retries_and_failovers_together() {
        use std::sync::atomic::{AtomicU32, Ordering};

        use tower::ServiceExt;

        // Two tokens of 14: a retry, and a change of target that leaves nothing for its retry.
        for (budget, attempts) in [(28, 3), (0, 4)] {
            let file = format!(
                "[server]\nauth='none'\n[[providers]]\nname='a'\ndialect='openai'\n\
                 [[providers]]\nname='b'\ndialect='openai'\n\
                 [failover]\nchain=['a','b']\n[retry]\nretries=1\nbudget={budget}\n"
            );
            let asked = std::sync::Arc::new(AtomicU32::new(0));
            let count = asked.clone();
            let dead = tower::service_fn(move |_: ChatRequest| {
                count.fetch_add(1, Ordering::Relaxed);
                let failure = steadfast_core::Failure::new(Reason::ServerError, "down");
                std::future::ready(Err::<steadfast_chat::ChatResponse, _>(failure))
            });
            let stack = policies(&file).stack(&Source::text(&file), &client()).unwrap();
            let failure = stack.boxed(dead).oneshot(ChatRequest::user("hi")).await.unwrap_err();
            assert_eq!(asked.load(Ordering::Relaxed), attempts, "{budget}: {failure}");
        }
    }

    #[test]
    fn a_request_takes_the_chain_it_needs() {
        let choose = policies(FILE).choose;
        let ask = ChatRequest::user("hi").with_model("gpt-4o");
        let mut needs = Needs::default();
        assert_eq!(choose.choose(&ask, &needs), None);
        needs.input_tokens = 90_000;
        assert_eq!(choose.choose(&ask, &needs), Some("large"));
        needs.vision = true;
        assert_eq!(choose.choose(&ask, &needs), Some("vision"));

        let own = policies(&FILE.replace("[failover]", "[failover]\nown_vendor_first = true"));
        assert_eq!(own.choose.choose(&ask, &Needs::default()), Some("vendor:openai"));
        let claude = ChatRequest::user("hi").with_model("claude-opus-5");
        assert_eq!(own.choose.choose(&claude, &Needs::default()), Some("vendor:anthropic"));
        let (_, chain) = own.named.iter().find(|(name, _)| name == "vendor:anthropic").unwrap();
        let order: Vec<_> = chain.iter().map(|spec| spec.provider.as_str()).collect();
        assert_eq!(order, ["anthropic", "openai"]);
    }

    #[test]
    fn contradictions_are_said_at_their_key() {
        let source = Source::text(
            "[server]\nauth='none'\n[[providers]]\nname='a'\ndialect='openai'\n\
             [timeout]\nstall_ms=1000\nfirst_content_ms=5000\n",
        );
        let config = source.parse().unwrap();
        let error = Policies::of(&config, &source).unwrap_err().to_string();
        assert!(error.contains(":6:1: timeout:"), "{error}");
    }
}
