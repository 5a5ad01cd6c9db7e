//! The layers a configuration stands for.

use std::{fmt, sync::Arc};

use steadfast::{
    BudgetPolicy, ChatRequest, ChatService, Needs, Reason, RetryBudget, SpendLedger, Stack,
    breaker::{BreakerPolicy, CircuitBreakerLayer},
    classify::ClassifyLayer,
    compact::CompactionLayer,
    failover::{
        Chain, ChooseChain, CooldownFailoverLayer, Downgrades, FailoverPolicy, ModelMap, TargetSpec,
    },
    guard::SafetyGuardLayer,
    health::ProviderHealthLayer,
    limit::{RateLimitLayer, SpendLimitLayer},
    recover::{ContinuationLayer, StreamResumeLayer},
    retry::RetryBackoffLayer,
    timeout::{DeadlineLayer, StallTimeoutLayer},
};
use steadfast_core::Failover;

use super::models::ModelLimits;
use crate::{
    admission::Limits,
    config::{
        Config, ConfigErrors, Link, ProviderConfig, ServerConfig, Source, credential_name, native,
    },
    secrets::Secrets,
};

/// The layers of `config`; what is summarised is summarised by `summaries`.
///
/// # Errors
///
/// When its numbers contradict each other or a provider is missing.
pub(super) fn stack(
    config: &Config,
    source: &Source,
    models: &ModelLimits,
    summaries: Option<&ChatService>,
    spend: &SpendLimitLayer,
    secrets: &Arc<Secrets>,
) -> Result<Stack<Choose>, ConfigErrors> {
    let at = |key: &str, error: &dyn fmt::Display| {
        ConfigErrors::from(source.error(key, error.to_string()))
    };
    let (guard, continuation, resume) = (&config.guard, &config.continuation, &config.resume);
    let (retry, timeout) = (&config.retry, &config.timeout);
    let table = config.table();
    let models = models.clone();

    let breaker = BreakerPolicy { table: table.clone(), ..config.breaker.clone() };
    let stack = Stack::around(failover(config, &at)?)
        .with_compaction(compaction(config, &models, summaries, &at)?)
        .with_retry(RetryBackoffLayer::new(retry.policy).map_err(|e| at("retry", &e))?)
        .with_rate_limit(RateLimitLayer::new(config.rate_limit).map_err(|e| at("rate_limit", &e))?)
        .with_spend_limit(spend.clone())
        .with_breaker(CircuitBreakerLayer::new(breaker).map_err(|e| at("breaker", &e))?)
        .with_stall(StallTimeoutLayer::new(timeout.stall).map_err(|e| at("timeout", &e))?)
        .with_deadline(DeadlineLayer::new(timeout.deadline).map_err(|e| at("timeout", &e))?)
        .with_classify(classify(secrets).with_table(table).with_policy(config.classify.clone()));
    let stack = if config.health.enabled {
        let health = ProviderHealthLayer::new(config.health.policy);
        stack.with_health(health.map_err(|e| at("health", &e))?)
    } else {
        stack.without_health()
    };
    let stack = if guard.enabled {
        let guard = SafetyGuardLayer::new(guard.policy.clone());
        stack.with_guard(guard.map_err(|e| at("guard", &e))?)
    } else {
        stack.without_guard()
    };
    let stack = if continuation.enabled {
        let layer = ContinuationLayer::new(continuation.policy.clone());
        let layer = layer.map_err(|e| at("continuation", &e))?;
        stack.with_continuation(layer.with_limits(move |_, target| models.of_target(target)))
    } else {
        stack.without_continuation()
    };
    let stack = if resume.enabled {
        let providers = config.providers.iter().filter(|provider| provider.prefill);
        let prefill: Vec<String> = providers.map(|provider| provider.name.clone()).collect();
        let layer = StreamResumeLayer::new(resume.policy.clone()).map_err(|e| at("resume", &e))?;
        stack.with_resume(layer.with_prefill(move |target, _| {
            target.is_some_and(|target| prefill.iter().any(|name| name == target.provider()))
        }))
    } else {
        stack.without_resume()
    };
    // One for retries, failovers and resumes together.
    Ok(match retry.budget.capacity {
        0 => stack.without_budget(),
        _ => stack.with_budget(RetryBudget::new(waiting_within(retry.budget, &config.server))),
    })
}

/// What callers may spend by `config`, in `ledger` where there is one already.
///
/// # Errors
///
/// When its numbers contradict each other.
pub(super) fn spend_limit(
    config: &Config,
    source: &Source,
    ledger: Option<SpendLedger>,
) -> Result<SpendLimitLayer, ConfigErrors> {
    let given = &config.spend_limit;
    let layer = SpendLimitLayer::new(given.policy)
        .map_err(|error| source.error("spend_limit", error.to_string()))?
        .with_prices(given.prices());
    let caps = given.caps();
    let layer = if caps.is_empty() {
        layer
    } else {
        layer.with_caps(move |account| caps.get(account).copied())
    };
    Ok(match ledger {
        Some(ledger) => layer.with_ledger(ledger),
        None => layer,
    })
}

/// `budget` with calls that wait held to a quarter of the requests in flight, and of the memory for them.
fn waiting_within(mut budget: BudgetPolicy, server: &ServerConfig) -> BudgetPolicy {
    let quarter = u32::try_from(server.max_in_flight / 4).unwrap_or(u32::MAX).max(1);
    budget.max_waiting = budget.max_waiting.min(quarter);
    budget.max_waiting_bytes = Limits::of(server, 0).memory_of_waiting();
    budget
}

/// Says at which key of the file an error is.
type At<'a> = &'a dyn Fn(&str, &dyn fmt::Display) -> ConfigErrors;

/// Which chain requests of `config` take.
///
/// # Errors
///
/// When a chain of it is none.
pub(super) fn choose(config: &Config, source: &Source) -> Result<Choose, ConfigErrors> {
    let at = |key: &str, error: &dyn fmt::Display| {
        ConfigErrors::from(source.error(key, error.to_string()))
    };
    Choose::of(config, &config.chain(), &at).map(|(_, choose)| choose)
}

fn failover(config: &Config, at: At<'_>) -> Result<CooldownFailoverLayer<Choose>, ConfigErrors> {
    let names = config.chain();
    let chain = chain(config, &names).map_err(|error| at("failover.chain", &error))?;
    let (named, choose) = Choose::of(config, &names, at)?;
    let mut layer =
        CooldownFailoverLayer::new(chain).with_policy(failover_policy(config)).with_chooser(choose);
    for (name, chain) in named {
        layer = layer.with_chain(name, chain);
    }
    Ok(layer)
}

fn failover_policy(config: &Config) -> FailoverPolicy {
    let mut policy = config.failover.policy.clone();
    policy.table = config.table();
    if config.failover.on_content_filter {
        policy.table = policy
            .table
            .with_rule(Reason::ContentFilter, |rule| rule.failover = Failover::NextTarget);
    }
    policy
}

fn compaction(
    config: &Config,
    models: &ModelLimits,
    summaries: Option<&ChatService>,
    at: At<'_>,
) -> Result<CompactionLayer, ConfigErrors> {
    let given = &config.compaction.policy;
    if !config.compaction.enabled {
        return Ok(CompactionLayer::off());
    }
    let layer = match summaries {
        None => CompactionLayer::rules_only(),
        Some(service) => CompactionLayer::new(service.clone()),
    };
    let layer = match &given.summariser {
        Some(summariser) => layer.with_summaries_from(summariser.provider.as_str()),
        None => layer,
    };
    let facts = models.clone();
    let summaries = given.summariser.as_ref().map(|one| one.policy).unwrap_or_default();
    Ok(layer
        .with_policy(given.policy.clone())
        .map_err(|error| at("compaction", &error))?
        .with_summaries(summaries)
        .map_err(|error| at("compaction.summariser", &error))?
        .with_spend(given.spend)
        .with_deferred(given.deferred)
        .with_models(models.models())
        .with_counter(models.counter())
        .with_targets(move |target| facts.facts(target)))
}

/// The stack of the provider that summarises, whatever model is asked for. It is one of its own: what goes
/// wrong with summaries is not held against chats.
///
/// # Errors
///
/// When the provider can be no chain.
pub(super) fn summariser(
    config: &Config,
    source: &Source,
    spend: &SpendLimitLayer,
    secrets: &Arc<Secrets>,
) -> Result<Option<Stack>, ConfigErrors> {
    let Some(given) = &config.compaction.policy.summariser else { return Ok(None) };
    let provider = config.providers.iter().find(|provider| provider.name == given.provider);
    let Some(provider) = provider else { return Ok(None) };
    let mut spec = spec(config, provider);
    spec.models = ModelMap::new([("*".to_owned(), given.model.clone())]);
    let chain = Chain::new([spec])
        .map_err(|error| source.error("compaction.summariser", error.to_string()))?;
    let stack = Stack::new(chain).with_classify(classify(secrets));
    // Summaries have their caps from the calls that need them; here each attempt is priced and charged.
    let stack = stack.with_spend_limit(spend.clone());
    let stack = stack.without_guard().without_continuation();
    Ok(Some(stack.without_resume().without_compaction()))
}

/// What a provider wrote is read without `secrets`, so that no layer above cuts one in two.
fn classify(secrets: &Arc<Secrets>) -> ClassifyLayer {
    let secrets = secrets.clone();
    ClassifyLayer::default().with_mask(move |text| secrets.mask(text))
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
        links: &[Link],
        at: At<'_>,
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
            choose.large = Some(chains.large_tokens);
        }
        if config.failover.own_vendor_first {
            for provider in config.providers.iter() {
                if !links.iter().any(|link| link.names().contains(&provider.name)) {
                    continue;
                }
                let own = Link::One(provider.name.clone());
                let others = links.iter().filter_map(|link| link.without(&provider.name));
                let order: Vec<_> = std::iter::once(own).chain(others).collect();
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

/// The chain of the providers of these `links`.
pub(super) fn chain(
    config: &Config,
    links: &[Link],
) -> Result<Chain, steadfast::failover::ChainError> {
    let provider = |name: &String| config.providers.iter().find(|one| one.name == *name);
    let link = |link: &Link| {
        let specs =
            link.names().iter().filter_map(provider).map(|one| spec(config, one)).enumerate();
        specs.map(|(n, spec)| if n == 0 { spec } else { spec.as_equal() }).collect::<Vec<_>>()
    };
    Chain::new(links.iter().flat_map(link))
}

pub(super) fn spec(config: &Config, provider: &ProviderConfig) -> TargetSpec {
    let mut spec = TargetSpec::new(provider.name.clone()).with_dialect(provider.dialect);
    spec.also = provider.also;
    spec.credentials = provider.credentials.iter().map(|c| credential_name(c).to_owned()).collect();
    spec.models = ModelMap::new(provider.models.iter().map(|(a, s)| (a.clone(), s.clone())));
    spec.weight = provider.weight;
    let downgrades = match provider.downgrades.is_empty() {
        true => &config.failover.downgrades,
        false => &provider.downgrades,
    };
    spec.downgrades = downgrades.clone().into_iter().collect::<Downgrades>();
    spec.capabilities.vision = provider.vision;
    spec.capabilities.tools = provider.tools;
    spec.capabilities.window = provider.window;
    spec.capabilities.max_output = provider.max_output;
    spec.capabilities.unsupported.clone_from(&provider.unsupported);
    spec.capabilities.on_unsupported = provider.on_unsupported;
    spec
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

[recovery.reasons]
billing = { permanent = true }
unknown = { retry = true }
format = { failover = "next_target" }
server_error = { scope = "model" }
"#;

    fn no_secrets() -> Arc<Secrets> {
        Arc::new(Secrets::of([""; 0]))
    }

    fn limits(config: &Config) -> ModelLimits {
        ModelLimits::of(config, std::sync::Arc::default())
    }

    fn spend(config: &Config) -> SpendLimitLayer {
        spend_limit(config, &Source::text(""), None).unwrap()
    }

    fn config(text: &str) -> Config {
        let source = Source::text(text);
        let config = source.parse().unwrap();
        config.validate(&source).unwrap();
        let _stack =
            stack(&config, &source, &limits(&config), None, &spend(&config), &no_secrets())
                .unwrap();
        config
    }

    #[test]
    fn every_key_arrives_where_it_belongs() {
        use std::time::Duration;

        use steadfast::failover::WhenExhausted;
        use steadfast_core::Retry;

        let config = config(FILE);
        let chain = chain(&config, &config.chain()).unwrap();
        let order: Vec<_> = chain.iter().map(|spec| spec.provider.as_str()).collect();
        assert_eq!(order, ["openai", "anthropic"], "the chain, not the file");
        let anthropic = &chain[1];
        assert_eq!(anthropic.credentials, ["FIRST_KEY", "second"], "names, not secrets");
        assert_eq!(anthropic.models.sent(Some("gpt-4o")), Some("claude-sonnet-4-5"));
        assert_eq!(anthropic.models.sent(Some("claude-x")), Some("claude-x"));
        assert_eq!(anthropic.capabilities.window, Some(200_000));
        assert!(!chain[0].capabilities.vision);
        let failover = failover_policy(&config);
        assert_eq!(failover.when_exhausted, WhenExhausted::Wait(Duration::from_secs(5)));
        assert_eq!(failover.hedge, None);
        assert_eq!(failover.table.rule(Reason::ContentFilter).failover, Failover::NextTarget);
        let (retry, timeout) = (&config.retry, &config.timeout);
        assert_eq!(retry.policy.retries, 2);
        assert_eq!(retry.policy.backoff.base(), Duration::from_millis(100));
        assert_eq!(retry.policy.backoff.cap(), Duration::from_secs(50));
        assert_eq!(retry.policy.max_wait, Duration::from_secs(10));
        assert_eq!(retry.policy.failover_wait, Duration::from_secs(1));
        assert_eq!(retry.budget.capacity, 0);
        assert_eq!(config.breaker.consecutive, Some(9));
        assert_eq!(timeout.stall.stall, Duration::from_secs(5));
        assert_eq!(timeout.stall.attempt, None);
        assert_eq!(timeout.deadline.pipeline, Duration::from_secs(90));
        let table = config.table();
        let cooldown = |reason| table.rule(reason).cooldown;
        assert_eq!(cooldown(Reason::RateLimit), Some(Duration::from_secs(7)));
        assert_eq!(cooldown(Reason::Timeout), None);
        assert_eq!(cooldown(Reason::Network), Reason::Network.rule().cooldown);
        let rule = |reason| table.rule(reason);
        assert!(rule(Reason::Billing).permanent && !rule(Reason::Auth).permanent);
        assert_eq!(rule(Reason::Unknown).retry, Retry::Yes);
        assert_eq!(rule(Reason::Format).failover, Failover::NextTarget);
        assert_eq!(rule(Reason::ServerError).scope, steadfast_core::Scope::Model);
    }

    #[test]
    fn the_guards_keys_arrive_too() {
        use std::time::Duration;

        use steadfast::guard::{Kind, Strikes};

        let text = "[server]\nauth='none'\n[[providers]]\nname='a'\ndialect='openai'\n\
             [guard]\nevents = 0\ntime_s = 5\ntasks = 7\npath_fields = ['document', 'path']\n\
             tools = [{ name = 'Bash', aliases = ['ship'], kind = 'mutating', limit = 1 }]\n\
             [guard.loops]\nsame_result = []\ncycle = [4, 6]\nrepeated_text = 0\n";
        let policy = config(text).guard.policy;
        assert_eq!((policy.limits.events, policy.limits.calls), (None, None));
        assert_eq!((policy.named.events, policy.named.calls), (None, Some(400)));
        assert_eq!(policy.limits.time, Some(Duration::from_secs(5)));
        assert_eq!(policy.tasks.capacity, 7);
        assert_eq!(policy.path_fields.iter().filter(|name| *name == "path").count(), 1);
        assert_eq!(policy.path_fields.last().unwrap(), "document", "after the built-in ones");
        let named = |name| policy.tools.iter().find(|tool| tool.is_called(name)).unwrap();
        assert_eq!((named("bash").kind, named("ship").limit), (Kind::Mutating, Some(1)));
        assert_eq!(named("shell").limit, None, "the built-in numbers are for named tasks");
        let rules = &policy.rules;
        assert_eq!((rules.same_result, rules.cycle), (None, Some(Strikes::new(4, 6))));
        assert_eq!((rules.repeated_text, rules.same_error), (None, Some(Strikes::new(2, 4))));
    }

    #[test]
    fn without_keys_every_number_is_the_layers_own() {
        let config = config("[server]\nauth='none'\n[[providers]]\nname='a'\ndialect='openai'\n");
        assert_eq!(config.retry.policy, steadfast::retry::RetryPolicy::in_stack());
        assert_eq!(config.breaker, BreakerPolicy::default());
        assert_eq!(config.timeout.stall, steadfast::timeout::StallPolicy::default());
        assert_eq!(config.timeout.deadline, steadfast::timeout::DeadlinePolicy::default());
        assert_eq!(config.retry.budget, steadfast::BudgetPolicy::default());
        assert_eq!(config.guard.policy, steadfast::guard::GuardPolicy::default());
        assert_eq!(
            config.compaction.policy.policy,
            steadfast::compact::CompactionPolicy::default()
        );
        assert_eq!(config.table(), steadfast::RecoveryTable::default());
    }

    #[test]
    fn one_key_of_the_retries_leaves_the_others_as_they_are() {
        let retry = |keys: &str| {
            let text = format!(
                "[server]\nauth='none'\n[[providers]]\nname='a'\ndialect='openai'\n[retry]\n{keys}\n"
            );
            let backoff = config(&text).retry.policy.backoff;
            (backoff.base().as_millis(), backoff.cap().as_millis())
        };
        assert_eq!(retry("retries = 3"), (500, 10_000));
        assert_eq!(retry("base_ms = 20_000"), (20_000, 20_000));
        assert_eq!(retry("cap_ms = 32_000"), (500, 32_000));
    }

    #[tokio::test(start_paused = true)]
    async fn one_budget_is_for_retries_and_failovers_together() {
        use std::sync::atomic::{AtomicU32, Ordering};

        use tower::ServiceExt;

        // A first attempt and two retries of each target are free; two more cost 14 tokens each. Without a
        // budget a call has ten attempts.
        for (budget, attempts) in [(28, 8), (0, 10)] {
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
            let config = config(&file);
            let (source, limits, spend) = (Source::text(&file), limits(&config), spend(&config));
            let stack = stack(&config, &source, &limits, None, &spend, &no_secrets()).unwrap();
            let failure = stack.boxed(dead).oneshot(ChatRequest::user("hi")).await.unwrap_err();
            assert_eq!(asked.load(Ordering::Relaxed), attempts, "{budget}: {failure}");
        }
    }

    #[test]
    fn a_request_takes_the_chain_it_needs() {
        let chains = |text: &str| {
            let config = config(text);
            let at =
                |key: &str, error: &dyn fmt::Display| -> ConfigErrors { panic!("{key}: {error}") };
            Choose::of(&config, &config.chain(), &at).unwrap()
        };
        let choose = chains(FILE).1;
        let ask = ChatRequest::user("hi").with_model("gpt-4o");
        let mut needs = Needs::default();
        assert_eq!(choose.choose(&ask, &needs), None);
        needs.input_tokens = 90_000;
        assert_eq!(choose.choose(&ask, &needs), Some("large"));
        needs.vision = true;
        assert_eq!(choose.choose(&ask, &needs), Some("vision"));

        let (named, own) =
            chains(&FILE.replace("[failover]", "[failover]\nown_vendor_first = true"));
        assert_eq!(own.choose(&ask, &Needs::default()), Some("vendor:openai"));
        let claude = ChatRequest::user("hi").with_model("claude-opus-5");
        assert_eq!(own.choose(&claude, &Needs::default()), Some("vendor:anthropic"));
        let (_, chain) = named.iter().find(|(name, _)| name == "vendor:anthropic").unwrap();
        let order: Vec<_> = chain.iter().map(|spec| spec.provider.as_str()).collect();
        assert_eq!(order, ["anthropic", "openai"]);
    }
}
