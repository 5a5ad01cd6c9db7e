//! What a configuration comes to: every layer in order, every number, and where it came from.

use std::{fmt, time::Duration};

use serde::Serialize;
use steadfast::failover::WhenExhausted;

use super::Policies;
use crate::config::{self, Config, ConfigErrors, Source};

/// A resolved configuration, to be read.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The layers, outermost first, and their numbers.
    pub lines: Vec<Line>,
    /// The most often one call can ask a provider: every target, every retry.
    pub attempts_a_call: u64,
    /// The most calls one request can come to: every stream breaks as often as it may be resumed,
    /// and every answer is cut off as often as it may be continued.
    pub worst_calls: u64,
    /// The most often one request can ask a provider.
    pub worst_attempts: u64,
    /// The longest one request can take, in milliseconds.
    pub worst_ms: u64,
}

/// One number.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    /// The layer.
    pub layer: &'static str,
    /// The key in the file.
    pub key: String,
    /// Its value.
    pub value: String,
    /// `file` or `default`.
    pub from: &'static str,
}

impl Report {
    /// What `config` comes to.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn of(config: &Config, source: &Source) -> Result<Self, ConfigErrors> {
        config.validate(source)?;
        let policies = Policies::of(config, source)?;
        let mut lines = Lines { source, lines: Vec::new() };
        lines.server(config);
        lines.layers(config, &policies);
        let retries = u64::from(policies.retry.retries);
        // Each resume and each continuation is a call of its own.
        let (continuation, resume) = (&policies.continuation, &policies.resume);
        let pieces =
            1 + u64::from(continuation.continuations) + u64::from(continuation.escalate_to > 0);
        let calls = pieces.saturating_mul(1 + u64::from(resume.resumes));
        let candidates: u64 = policies
            .chain
            .iter()
            .map(|spec| {
                let credentials = spec.credentials.len().max(1) as u64;
                let downgrades = spec.downgrades.iter().map(|(_, list)| list.len()).max();
                credentials * (1 + downgrades.unwrap_or(0) as u64)
            })
            .sum();
        let attempts = candidates * (1 + retries);
        Ok(Self {
            lines: lines.lines,
            attempts_a_call: attempts,
            worst_calls: calls,
            worst_attempts: attempts.saturating_mul(calls),
            worst_ms: u64::try_from(policies.deadline.pipeline.as_millis()).unwrap_or(u64::MAX),
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut layer = "";
        let width = self.lines.iter().map(|line| line.key.len()).max().unwrap_or(0);
        let values = self.lines.iter().map(|line| line.value.len().min(48)).max().unwrap_or(0);
        for line in &self.lines {
            if line.layer != layer {
                layer = line.layer;
                writeln!(f, "{layer}")?;
            }
            writeln!(f, "  {:width$}  {:values$}  {}", line.key, line.value, line.from)?;
        }
        writeln!(f)?;
        writeln!(
            f,
            "one request asks providers at most {} times ({} for a call, and {} calls when all of its \
             streams break\nand all of its answers are cut off) and is over after at most {}",
            self.worst_attempts,
            self.attempts_a_call,
            self.worst_calls,
            show(Duration::from_millis(self.worst_ms)),
        )
    }
}

struct Lines<'a> {
    source: &'a Source,
    lines: Vec<Line>,
}

impl Lines<'_> {
    fn add(&mut self, layer: &'static str, key: &str, value: impl fmt::Display) {
        let from = if self.source.has(key) { "file" } else { "default" };
        self.lines.push(Line { layer, key: key.to_owned(), value: value.to_string(), from });
    }

    fn list(&mut self, layer: &'static str, key: &str, items: &[String]) {
        let all = items.join(", ");
        self.add(layer, key, if all.is_empty() { "none" } else { &all });
    }

    fn count(&mut self, layer: &'static str, key: &str, value: Option<impl fmt::Display>) {
        self.add(layer, key, value.map_or_else(|| "off".to_owned(), |value| value.to_string()));
    }

    fn time(&mut self, layer: &'static str, key: &str, value: Option<Duration>) {
        self.add(layer, key, value.map_or_else(|| "off".to_owned(), show));
    }

    fn server(&mut self, config: &Config) {
        let server = &config.server;
        self.add("server", "server.listen", server.listen);
        self.add("server", "server.auth", format!("{:?}", server.auth).to_lowercase());
        self.add("server", "tenants", config.tenants.len());
        self.add("server", "server.body_limit", format_args!("{} bytes", server.body_limit));
        self.add("server", "server.body_timeout_s", format_args!("{} s", server.body_timeout_s));
        self.add("server", "server.keepalive_s", format_args!("{} s", server.keepalive_s));
        self.add("server", "server.shutdown_s", format_args!("{} s", server.shutdown_s));
        self.list("server", "server.forward_headers", &server.forward_headers);
        let admin = server.admin_key.as_ref().map_or("loopback only", |_| "with its key");
        self.add("server", "server.admin_key", admin);
    }

    fn guard(&mut self, config: &Config, policies: &Policies) {
        let (layer, policy) = ("guard", &policies.guard);
        self.add(layer, "guard.enabled", config.guard.enabled);
        if !config.guard.enabled {
            return;
        }
        self.add(layer, "guard.stop_as", format!("{:?}", policy.stop_as).to_lowercase());
        let limits = &policy.limits;
        self.count(layer, "guard.events", limits.events);
        self.count(layer, "guard.calls", limits.calls);
        self.time(layer, "guard.time_s", limits.time);
        self.count(layer, "guard.per_tool", limits.per_tool);
        self.count(layer, "guard.edits_per_file", limits.edits_per_file);
        let stated = policy
            .tools
            .iter()
            .filter_map(|tool| tool.limit.map(|limit| format!("{} {limit}", tool.name)));
        self.list(layer, "guard.tools", &stated.collect::<Vec<_>>());
        let rules = &policy.rules;
        for (key, strikes) in [
            ("guard.loops.same_result", rules.same_result),
            ("guard.loops.same_error", rules.same_error),
            ("guard.loops.cycle", rules.cycle),
            ("guard.loops.same_answer", rules.same_answer),
        ] {
            self.add(layer, key, config::Rule(strikes));
        }
        self.count(layer, "guard.loops.repeated_text", rules.repeated_text);
        self.add(layer, "guard.loops.poll_factor", rules.poll_factor);
    }

    fn compaction(&mut self, config: &Config, policies: &Policies) {
        let (layer, given) = ("compaction", &policies.compaction);
        self.add(layer, "compaction.enabled", given.enabled);
        if !given.enabled {
            return;
        }
        let summariser = config.compaction.summariser.as_ref();
        let summariser = summariser.map(|one| format!("{}/{}", one.provider, one.model));
        self.add(layer, "compaction.summariser", summariser.as_deref().unwrap_or("none"));
        let policy = &given.policy;
        self.add(layer, "compaction.warn_at", policy.warn_at);
        self.add(layer, "compaction.compact_at", policy.compact_at);
        self.add(layer, "compaction.target", policy.target);
        self.add(layer, "compaction.keep_recent", policy.keep_recent);
        self.add(layer, "compaction.deferred", given.deferred);
        let tokens = |tokens: u64| Some(tokens).filter(|tokens| *tokens > 0);
        self.count(layer, "compaction.spend_hour", tokens(given.spend.hour));
        self.count(layer, "compaction.spend_day", tokens(given.spend.day));
    }

    fn recover(&mut self, config: &Config, policies: &Policies) {
        let (layer, policy) = ("continuation", &policies.continuation);
        self.add(layer, "continuation.enabled", config.continuation.enabled);
        if config.continuation.enabled {
            self.add(layer, "continuation.continuations", policy.continuations);
            let raised = Some(policy.escalate_to).filter(|tokens| *tokens > 0);
            self.count(layer, "continuation.escalate_to", raised);
            self.add(layer, "continuation.least", policy.least);
            self.add(layer, "continuation.withhold", policy.withhold);
        }
        let layer = "resume";
        self.add(layer, "resume.enabled", config.resume.enabled);
        if config.resume.enabled {
            self.add(layer, "resume.resumes", policies.resume.resumes);
        }
    }

    fn layers(&mut self, config: &Config, policies: &Policies) {
        let Policies { failover, retry, breaker, stall, deadline, budget, table, .. } = policies;
        self.time("deadline", "timeout.pipeline_ms", Some(deadline.pipeline));
        self.guard(config, policies);
        self.recover(config, policies);

        let layer = "failover";
        let chain: Vec<_> = policies.chain.iter().map(|spec| spec.provider.as_str()).collect();
        self.add(layer, "failover.chain", chain.join(" -> "));
        for (name, chain) in &policies.named {
            let order: Vec<_> = chain.iter().map(|spec| spec.provider.as_str()).collect();
            let key = format!("failover.chains.{name}");
            self.add(layer, &key, order.join(" -> "));
        }
        let exhausted = match failover.when_exhausted {
            WhenExhausted::Fail => "fail".to_owned(),
            WhenExhausted::Wait(most) => format!("wait, at most {}", show(most)),
            _ => "try_soonest".to_owned(),
        };
        self.add(layer, "failover.when_exhausted", exhausted);
        self.time(layer, "failover.sticky_s", Some(failover.sticky));
        self.time(layer, "failover.hedge_ms", failover.hedge);
        self.add(layer, "failover.downgrade_on_overload", failover.downgrade_on_overload);
        let filter = failover.table.rule(steadfast::Reason::ContentFilter).failover;
        self.add(layer, "failover.on_content_filter", filter == steadfast::Failover::NextTarget);
        self.add(layer, "failover.own_vendor_first", config.failover.own_vendor_first);
        for reason in steadfast::Reason::ALL {
            if let Some(cooldown) = table.rule(reason).cooldown {
                self.time(layer, &format!("cooldown.{reason}"), Some(cooldown));
            }
        }

        let preset = format!("{:?}", config.recovery.preset).to_lowercase();
        self.add(layer, "recovery.preset", preset);
        for name in config.recovery.reasons.keys() {
            if let Ok(reason) = name.parse::<steadfast::Reason>() {
                let rule = table.rule(reason);
                let value = format!("{:?}, {:?}, {:?}", rule.retry, rule.failover, rule.scope);
                self.add(layer, &format!("recovery.reasons.{reason}"), value);
            }
        }

        self.compaction(config, policies);

        let layer = "retry";
        self.add(layer, "retry.retries", retry.retries);
        self.time(layer, "retry.base_ms", Some(retry.backoff.base()));
        self.time(layer, "retry.cap_ms", Some(retry.backoff.cap()));
        self.time(layer, "retry.max_wait_ms", Some(retry.max_wait));
        self.add(layer, "retry.overloaded_limit", retry.overloaded_limit);
        let tokens = budget.map_or_else(|| "off".to_owned(), |b| format!("{} tokens", b.capacity));
        self.add(layer, "retry.budget", tokens);

        let layer = "breaker";
        self.count(layer, "breaker.failures", breaker.consecutive);
        self.count(layer, "breaker.failure_rate", breaker.failure_rate);
        self.time(layer, "breaker.window_s", Some(breaker.window));
        self.add(layer, "breaker.minimum_calls", breaker.min_calls);
        self.add(layer, "breaker.observe_only", breaker.observe);

        let layer = "stall";
        self.time(layer, "timeout.stall_ms", Some(stall.stall));
        self.time(layer, "timeout.ceiling", stall.makespan());
        self.time(layer, "timeout.attempt_ms", stall.attempt);
        self.time(layer, "timeout.first_content_ms", stall.first_content);

        for (index, provider) in config.providers.iter().enumerate() {
            let at = |key: &str| format!("providers[{index}].{key}");
            self.add("client", &at("name"), &provider.name);
            self.add("client", &at("dialect"), provider.dialect);
            let url = provider.base_url.as_deref().unwrap_or_else(|| {
                steadfast::client::dialect::codec(provider.dialect).facts().base_url
            });
            self.add("client", &at("base_url"), url);
            // The references, never what they refer to.
            let credentials = provider.credentials.join(", ");
            let credentials = if credentials.is_empty() { "none" } else { &credentials };
            self.add("client", &at("credentials"), credentials);
            let pairs = |(asked, sent): (&String, &String)| format!("{asked} -> {sent}");
            self.list(
                "client",
                &at("models"),
                &provider.models.iter().map(pairs).collect::<Vec<_>>(),
            );
            for (model, fallbacks) in &provider.downgrades {
                let key = at(&format!("downgrades.{model}"));
                self.list("client", &key, fallbacks);
            }
            let tokens =
                |n: Option<u64>| n.map_or_else(|| "unknown".to_owned(), |n| format!("{n} tokens"));
            self.add("client", &at("window"), tokens(provider.window));
            self.add("client", &at("max_output"), tokens(provider.max_output));
            self.add("client", &at("prefill"), provider.prefill);
            self.add("client", &at("vision"), provider.vision);
            self.add("client", &at("tools"), provider.tools);
            self.list("client", &at("unsupported"), &provider.unsupported);
        }
    }
}

fn show(duration: Duration) -> String {
    match duration.as_millis() {
        0 => "off".to_owned(),
        ms if ms % 60_000 == 0 => format!("{} min", ms / 60_000),
        ms if ms % 1_000 == 0 => format!("{} s", ms / 1_000),
        ms => format!("{ms} ms"),
    }
}
