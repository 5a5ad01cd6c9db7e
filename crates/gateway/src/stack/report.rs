//! What a configuration comes to: every layer in order, every number, and where it came from.

use std::{fmt, time::Duration};

use serde::Serialize;
use serde_json::Value;
use steadfast::{client::dialect::codec, failover::WhenExhausted, guard::ToolSpec};
use steadfast_core::Reason;
use toml::de::{DeTable, DeValue};

use super::{
    layers,
    worst::{self, Cost, Worst},
};
use crate::config::{Config, ConfigErrors, Source, preset_keys};

/// The layers, outermost first, and the keys that set them: sections or single keys.
const LAYERS: [(&str, &[&str]); 19] = [
    ("preset", &["preset"]),
    ("server", &["server", "tenants"]),
    ("log", &["log"]),
    ("routes", &["aliases", "routes"]),
    ("deadline", &["timeout.pipeline_ms"]),
    ("spend_limit", &["spend_limit"]),
    ("escalation", &["escalation"]),
    ("guard", &["guard"]),
    ("continuation", &["continuation"]),
    ("resume", &["resume"]),
    ("failover", &["failover", "cooldown", "recovery"]),
    ("health", &["health"]),
    ("compaction", &["compaction"]),
    ("retry", &["retry"]),
    ("rate_limit", &["rate_limit"]),
    ("breaker", &["breaker"]),
    ("stall", &["timeout"]),
    ("classify", &["classify"]),
    ("client", &["providers"]),
];

/// How many of a list that nobody set are shown.
const MANY: usize = 4;

/// A resolved configuration, to be read.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The layers, outermost first, and their numbers.
    pub lines: Vec<Line>,
    /// The routes in the order in which they are tried; the numbers below are those of the worst.
    pub routes: Vec<String>,
    /// What each kind of failure costs a call at most at one provider, besides the provider's own time.
    pub worst: Vec<Worst>,
    /// What is set and changes nothing, and why.
    pub without_effect: Vec<String>,
    /// The most often one call can ask a provider.
    pub attempts_a_call: u64,
    /// The most calls one request can come to: every stream breaks as often as it may be resumed,
    /// and every answer is cut off as often as it may be continued.
    pub worst_calls: u64,
    /// The most often one request can ask a provider.
    pub worst_attempts: u64,
    /// The longest one request can take, in milliseconds.
    pub worst_ms: u64,
    /// How long a caller who streams may hear nothing before the status is sent, in milliseconds; from then on a
    /// failure is an event. `None`: until there is content.
    pub early_keepalive_ms: Option<u64>,
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
    /// `file`, `preset`, `environment` or `default`.
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
        let mut report = Self::worst(config, source)?;
        report.lines = lines(config, source);
        for (name, _) in config.routes() {
            let own = Self::worst(&source.route(config, name)?, source)?;
            report.routes.push(name.to_owned());
            report.attempts_a_call = report.attempts_a_call.max(own.attempts_a_call);
            report.worst_calls = report.worst_calls.max(own.worst_calls);
            report.worst_attempts = report.worst_attempts.max(own.worst_attempts);
            report.worst_ms = report.worst_ms.max(own.worst_ms);
        }
        Ok(report)
    }

    /// What one request can come to at worst.
    fn worst(config: &Config, source: &Source) -> Result<Self, ConfigErrors> {
        let chain = layers::chain(config, &config.chain())
            .map_err(|error| source.error("failover.chain", error.to_string()))?;
        // Each resume and each continuation is a call of its own.
        let (continuation, resume) = (&config.continuation, &config.resume);
        let policy = Some(&continuation.policy).filter(|_| continuation.enabled);
        let pieces = 1 + policy.map_or(0, |policy| {
            u64::from(policy.continuations) + u64::from(policy.escalate_to > 0)
        });
        let resumes = Some(&resume.policy).filter(|_| resume.enabled);
        let calls = pieces.saturating_mul(1 + resumes.map_or(0, |policy| policy.resumes.into()));
        let candidates: u64 = chain
            .iter()
            .map(|spec| {
                let credentials = spec.credentials.len().max(1) as u64;
                let downgrades = spec.downgrades.iter().map(|(_, list)| list.len()).max();
                credentials * (1 + downgrades.unwrap_or(0) as u64)
            })
            .sum();
        let attempts = attempts(config, candidates);
        let pipeline = config.timeout.deadline.pipeline.as_millis();
        Ok(Self {
            lines: Vec::new(),
            routes: Vec::new(),
            worst: worst::of(&config.retry.policy, &config.failover.policy),
            without_effect: without_effect(config, source),
            attempts_a_call: attempts,
            worst_calls: calls,
            worst_attempts: attempts.saturating_mul(calls),
            worst_ms: u64::try_from(pipeline).unwrap_or(u64::MAX),
            early_keepalive_ms: config.server.early_keepalive.map(steadfast_core::time::millis),
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
        let width = self.worst.iter().map(|row| row.came.len()).max().unwrap_or(0);
        writeln!(
            f,
            "\n{:width$}  {:18}  alone",
            "what a failure adds at most", "another can answer"
        )?;
        for Worst { came, with_spare, alone } in &self.worst {
            writeln!(f, "{came:width$}  {with_spare:18}  {alone}")?;
        }
        for note in &self.without_effect {
            writeln!(f, "\nnote: {note}")?;
        }
        writeln!(f)?;
        if !self.routes.is_empty() {
            let routes = self.routes.join(", ");
            writeln!(f, "a request takes the first of these routes that is for it: {routes}")?;
        }
        writeln!(
            f,
            "one request asks providers at most {} times ({} for a call, and {} calls when all of its \
             streams break\nand all of its answers are cut off) and is over after at most {}",
            self.worst_attempts,
            self.attempts_a_call,
            self.worst_calls,
            show(Duration::from_millis(self.worst_ms)),
        )?;
        match self.early_keepalive_ms {
            Some(early) => writeln!(
                f,
                "a caller who streams hears something after {} at most, and pays for it: a failure after that is an \
                 event\nof a stream that began with 200, no status (`server.early_keepalive_s`)",
                show(Duration::from_millis(early)),
            ),
            None => writeln!(
                f,
                "a caller who streams hears nothing until there is content: each failure before has its status, and \
                 what\nwaits less than all retries take gives up before (`server.early_keepalive_s`)",
            ),
        }
    }
}

/// The most often one call can ask its `candidates`.
fn attempts(config: &Config, candidates: u64) -> u64 {
    let (retry, failover) = (&config.retry.policy, &config.failover.policy);
    let worst = worst::of(retry, failover);
    let most = |cost: fn(&Worst) -> Cost| worst.iter().map(|row| cost(row).attempts.into()).max();
    let at_one: u64 = most(|row| row.with_spare).unwrap_or(1);
    let alone: u64 = most(|row| row.alone).unwrap_or(1);
    // The others are refused for good, and the last one is alone.
    let last_alone = candidates - 1 + alone;
    if candidates == 1 || failover.when_exhausted == WhenExhausted::Fail {
        return last_alone.max(candidates * at_one);
    }
    // A round is not begun after so many attempts, and may end with more.
    let rounds = u64::from(failover.attempts.saturating_sub(1)) + at_one;
    last_alone.max(rounds).max(candidates * at_one)
}

/// Keys of the file that change nothing, and why.
fn without_effect(config: &Config, source: &Source) -> Vec<String> {
    const WITH_DEAD: [&str; 4] = ["dead", "turn_ms", "observe_only", "keys"];
    let table = source.table();
    let breaker = table.as_ref().and_then(|table| table.get("breaker"));
    let Some(DeValue::Table(breaker)) = breaker.map(toml::Spanned::get_ref) else {
        return Vec::new();
    };
    if config.breaker.dead.is_none() {
        return Vec::new();
    }
    let keys = breaker.keys().map(|key| &**key.get_ref());
    keys.filter(|key| !WITH_DEAD.contains(key))
        .map(|key| {
            format!(
                "breaker.{key} changes nothing while breaker.dead is set: failover decides who is \
                 asked; with breaker.dead = 0 the breaker refuses by its own rules"
            )
        })
        .collect()
}

/// Every key of `config` with what is in force, by layer.
fn lines(config: &Config, source: &Source) -> Vec<Line> {
    let set = source.table().map(DeValue::Table);
    let preset = config.preset.map(preset_keys).unwrap_or_default();
    let preset = DeTable::parse(&preset).ok().map(|table| DeValue::Table(table.into_inner()));
    let mut all = Vec::new();
    // It has been read, so that it can be written.
    let effective = serde_json::to_value(effective(config)).unwrap_or_default();
    collect("", &effective, [set.as_ref(), preset.as_ref()], &mut all);
    let mut lines = Vec::new();
    for (layer, keys) in LAYERS {
        for key in keys {
            let belongs = |line: &mut Line| {
                line.key
                    .strip_prefix(key)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
            };
            lines.extend(all.extract_if(.., belongs).map(|line| Line { layer, ..line }));
        }
    }
    lines
}

/// `config` with what it leaves to others: the order of the file, vendors' addresses, the table of
/// reasons.
fn effective(config: &Config) -> Config {
    let mut config = config.clone();
    config.failover.chain = config.chain();
    for provider in &mut config.providers {
        let default = || codec(provider.dialect).facts().base_url.to_owned();
        provider.base_url.get_or_insert_with(default);
    }
    let table = config.table();
    let cooldowns = Reason::ALL
        .into_iter()
        .filter_map(|reason| Some((reason, table.rule(reason).cooldown?.as_secs())));
    config.cooldown.extend(cooldowns);
    // Those that have a limit of their own.
    config.guard.policy.tools.retain(|tool| tool.limit.is_some());
    config
}

/// What the file sets, and what the preset does.
type Set<'a, 'i> = [Option<&'a DeValue<'i>>; 2];

/// A line for each value in `value`; `set` is what the file and the preset say there.
fn collect(key: &str, value: &Value, set: Set<'_, '_>, lines: &mut Vec<Line>) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            // Nothing else of what is switched off is in force.
            let off = fields.get("enabled") == Some(&Value::Bool(false));
            for (name, value) in fields.iter().filter(|(name, _)| !off || *name == "enabled") {
                let set = set.map(|set| set?.get(name).map(toml::Spanned::get_ref));
                let dot = if key.is_empty() { "" } else { "." };
                collect(&format!("{key}{dot}{name}"), value, set, lines);
            }
        }
        Value::Array(items) if items.iter().any(Value::is_object) && key != "guard.tools" => {
            for (index, value) in items.iter().enumerate() {
                let set = set.map(|set| set?.get(index).map(toml::Spanned::get_ref));
                collect(&format!("{key}[{index}]"), value, set, lines);
            }
        }
        value => {
            let from = match set {
                [Some(_), _] => "file",
                [None, Some(_)] => "preset",
                // There are none by default: it is the fallback model of `claude-code`.
                [None, None] if key.starts_with("failover.downgrades.") => "environment",
                [None, None] => "default",
            };
            let value = match value.as_array() {
                Some(all) if all.len() > MANY && from == "default" && key != "guard.tools" => {
                    let some = text(key, &all[..MANY].into());
                    format!("{some}, ... ({})", all.len())
                }
                _ => text(key, value),
            };
            lines.push(Line { layer: "", key: key.to_owned(), value, from });
        }
    }
}

/// A value as a person reads it, by the unit that its key ends with.
fn text(key: &str, value: &Value) -> String {
    let number = value.as_f64();
    match value {
        Value::Null if key.ends_with(".window") || key.ends_with(".max_output") => "unknown".into(),
        Value::Null if key.ends_with(".admin_key") => "loopback only".into(),
        Value::Null => "none".into(),
        Value::Number(_) if number == Some(0.0) => "off".into(),
        Value::Number(_) if key.ends_with("_ms") => time(number.map(|ms| ms / 1_000.0)),
        Value::Number(rate) if key.ends_with("_per_s") => rate.to_string(),
        Value::Number(_) if key.ends_with("_s") || key.starts_with("cooldown.") => time(number),
        Value::String(text) if text.starts_with("sha256:") => "sha256:***".into(),
        Value::String(text) => text.clone(),
        Value::Array(items) if !items.is_empty() => {
            let items = items.iter().map(|item| match serde_json::from_value(item.clone()) {
                Ok(ToolSpec { name, limit: Some(limit), .. }) => format!("{name} {limit}"),
                // Equal ones at one position of a chain.
                _ => text(key, item).replace(", ", if item.is_array() { " | " } else { ", " }),
            });
            items.collect::<Vec<_>>().join(", ")
        }
        Value::Array(_) | Value::Object(_) => "none".into(),
        other => other.to_string(),
    }
}

fn time(seconds: Option<f64>) -> String {
    let duration = Duration::try_from_secs_f64(seconds.unwrap_or_default());
    duration.map_or_else(|_| "for ever".to_owned(), show)
}

fn show(duration: Duration) -> String {
    match duration.as_millis() {
        0 => "off".to_owned(),
        ms if ms % 3_600_000 == 0 => format!("{} h", ms / 3_600_000),
        ms if ms % 60_000 == 0 => format!("{} min", ms / 60_000),
        ms if ms % 1_000 == 0 => format!("{} s", ms / 1_000),
        ms => format!("{ms} ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(text: &str) -> Report {
        let text =
            format!("[server]\nauth='none'\n[[providers]]\nname='a'\ndialect='openai'\n{text}");
        let source = Source::text(text);
        Report::of(&source.parse().unwrap(), &source).unwrap()
    }

    #[test]
    fn keys_of_the_breaker_that_change_nothing_are_named() {
        let notes = report("[breaker]\nfailures = 3\nturn_ms = 500\n").without_effect;
        assert_eq!(notes.len(), 1);
        assert!(notes[0].starts_with("breaker.failures changes nothing while breaker.dead"));
        assert!(report("[breaker]\nfailures = 3\ndead = 0\n").without_effect.is_empty());
        assert!(report("").without_effect.is_empty());
        assert_eq!(report("[breaker]\nprobes = 3\nwindow_s = 5\n").without_effect.len(), 2);
    }

    #[test]
    fn attempts_of_a_call_are_counted_by_rounds_or_alone() {
        let second = "[[providers]]\nname='b'\ndialect='openai'\n";
        assert_eq!(report("").attempts_a_call, 11, "ten retries");
        assert_eq!(report(second).attempts_a_call, 12, "ten in rounds, the last with two retries");
        let fail = format!("{second}[failover]\nwhen_exhausted='fail'\n[retry]\nretries=1\n");
        assert_eq!(report(&fail).attempts_a_call, 4);
    }
}
