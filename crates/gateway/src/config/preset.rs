//! The keys that a preset sets.

use std::time::Duration;

use serde_json::{Map, Value};
use steadfast::{Policies, Preset};
use steadfast_core::{Failover, Reason, RecoveryTable, Retry};

use super::{Config, RuleConfig, Switch};

/// The variable with the model that stands in for an overloaded one, in the preset `claude-code`.
const FALLBACK_MODEL: &str = "FALLBACK_MODEL_ID";

/// The keys in which `preset` differs from the defaults, as a file would have them.
pub(crate) fn keys(preset: Preset) -> String {
    let value = |config: &Config| serde_json::to_value(config).unwrap_or_default();
    let (default, of) = (value(&Config::default()), value(&Config::of(&preset.policies())));
    let differs = difference(&default, &of).unwrap_or_else(|| Value::Object(Map::new()));
    toml::to_string(&differs).unwrap_or_default()
}

/// What differs in `value`; what is not set there stands in no file.
fn difference(default: &Value, value: &Value) -> Option<Value> {
    match (default, value) {
        (_, Value::Null) => None,
        (default, value) if default == value => None,
        (default, Value::Object(fields)) => {
            let fields = fields.iter().filter_map(|(name, value)| {
                let default = default.get(name).unwrap_or(&Value::Null);
                Some((name.clone(), difference(default, value)?))
            });
            Some(Value::Object(fields.collect()))
        }
        (_, value) => Some(value.clone()),
    }
}

impl Config {
    /// These policies as a configuration without providers.
    pub fn of(policies: &Policies) -> Self {
        let mut config = Self::default();
        config.failover.policy = policies.failover.clone();
        config.health = switch(policies.health.as_ref());
        config.retry.policy = policies.retry;
        (config.rate_limit, config.spend_limit.policy) =
            (policies.rate_limit, policies.spend_limit);
        config.retry.budget = policies.budget;
        config.breaker = policies.breaker.clone();
        config.timeout.deadline = policies.deadline;
        config.timeout.stall = policies.stall;
        config.guard = switch(policies.guard.as_ref());
        config.continuation = switch(policies.continuation.as_ref());
        config.resume = switch(policies.resume.as_ref());
        config.compaction.enabled = policies.compaction.is_some();
        let compaction = &mut config.compaction.policy;
        compaction.policy = policies.compaction.clone().unwrap_or_default();
        (compaction.spend, compaction.deferred) = (policies.spend, policies.deferred);
        config.classify = policies.classify.clone();
        config.set_table(&policies.failover.table);
        config
    }

    fn set_table(&mut self, table: &RecoveryTable) {
        for reason in Reason::ALL {
            let (rule, standard) = (table.rule(reason), reason.rule());
            if rule.cooldown != standard.cooldown {
                let cooldown = rule.cooldown.unwrap_or(Duration::ZERO);
                self.cooldown.insert(reason, cooldown.as_secs());
            }
            let own = RuleConfig {
                retry: (rule.retry != standard.retry).then_some(rule.retry == Retry::Yes),
                failover: (rule.failover != standard.failover).then_some(rule.failover),
                scope: (rule.scope != standard.scope).then_some(rule.scope),
                permanent: (rule.permanent != standard.permanent).then_some(rule.permanent),
            };
            // What the safety guard stops is not for a table to allow.
            if own != RuleConfig::default() && rule.failover != Failover::Forbidden {
                self.recovery.reasons.insert(reason, own);
            }
        }
    }

    /// Takes the model that stands in for overloaded ones from the environment, where the preset does and
    /// the file names none.
    pub(super) fn take_fallback(&mut self, variable: impl Fn(&str) -> Option<String>) {
        if self.preset != Some(Preset::ClaudeCode) || !self.failover.downgrades.is_empty() {
            return;
        }
        if let Some(model) = variable(FALLBACK_MODEL).filter(|model| !model.is_empty()) {
            self.failover.downgrades.insert("*".to_owned(), vec![model]);
        }
    }
}

fn switch<P: Clone + Default>(policy: Option<&P>) -> Switch<P> {
    Switch { enabled: policy.is_some(), policy: policy.cloned().unwrap_or_default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Source;

    #[test]
    fn a_file_with_a_preset_has_the_policies_of_the_library() {
        for preset in Preset::ALL {
            let policies = preset.policies();
            let config = Source::text(format!("preset = \"{preset}\"")).parse().unwrap();
            assert_eq!(config.preset, Some(preset));
            assert_eq!(config.table(), policies.failover.table, "{preset}");
            assert_eq!(config.retry.policy, policies.retry, "{preset}");
            assert_eq!(config.retry.budget, policies.budget, "{preset}");
            assert_eq!(config.breaker, policies.breaker, "{preset}");
            assert_eq!(config.rate_limit, policies.rate_limit, "{preset}");
            assert_eq!(config.spend_limit.policy, policies.spend_limit, "{preset}");
            assert_eq!(config.timeout.stall, policies.stall, "{preset}");
            assert_eq!(config.timeout.deadline, policies.deadline, "{preset}");
            assert_eq!(config.classify, policies.classify, "{preset}");
            let health = Some(config.health.policy).filter(|_| config.health.enabled);
            assert_eq!(health, policies.health, "{preset}");
            let on = |enabled: bool| enabled.then_some(());
            assert_eq!(on(config.guard.enabled), policies.guard.as_ref().map(drop), "{preset}");
            if let Some(guard) = policies.guard {
                assert_eq!(config.guard.policy, guard, "{preset}");
            }
            assert_eq!(
                Some(config.continuation.policy.clone()).filter(|_| config.continuation.enabled),
                policies.continuation,
                "{preset}"
            );
            assert_eq!(
                Some(config.resume.policy.clone()).filter(|_| config.resume.enabled),
                policies.resume,
                "{preset}"
            );
            let compaction = &config.compaction.policy;
            assert_eq!(
                Some(compaction.policy.clone()).filter(|_| config.compaction.enabled),
                policies.compaction,
                "{preset}"
            );
            assert_eq!(compaction.spend, policies.spend, "{preset}");
            // A summariser is configured by provider and model; its numbers are everybody's.
            assert_eq!(policies.summaries, steadfast::compact::SummaryPolicy::default());
            let failover = |policy: &steadfast::failover::FailoverPolicy| {
                let mut policy = policy.clone();
                policy.table = RecoveryTable::default();
                format!("{policy:?}")
            };
            assert_eq!(failover(&config.failover.policy), failover(&policies.failover), "{preset}");
        }
    }

    #[test]
    fn the_files_own_keys_override_the_preset() {
        let text = "preset = 'codebuddy'\n[retry]\nretries = 7\n[guard.named]\ncalls = 9\n\
                    [cooldown]\nauth = 5\n[recovery.reasons.auth]\npermanent = true\n[resume]\n\
                    enabled = false\n";
        let config = Source::text(text).parse().unwrap();
        assert_eq!((config.retry.policy.retries, config.retry.policy.nudge), (7, true));
        let guard = &config.guard.policy;
        assert_eq!((guard.limits.calls, guard.named.calls), (Some(400), Some(9)));
        let auth = *config.table().rule(Reason::Auth);
        assert_eq!(auth.cooldown, Some(Duration::from_secs(5)));
        assert!(auth.permanent && auth.failover == Failover::NextTarget);
        assert!(!config.resume.enabled);
    }

    #[test]
    fn a_route_has_the_preset_and_what_the_environment_adds() {
        let text = "preset = 'claude-code'\n[routes.r]\nretry = { retries = 2 }\n\
                    [routes.s.failover]\ndowngrades = { '*' = ['own'] }\n";
        let source = Source::text(text);
        let mut config = source.parse().unwrap();
        config.take_fallback(|_| Some("small".to_owned()));
        let own = Preset::ClaudeCode.policies().retry;
        let route = source.route(&config, "r").unwrap();
        assert_eq!((route.retry.policy.retries, route.retry.policy.backoff), (2, own.backoff));
        assert_eq!(route.failover.downgrades["*"], ["small"]);
        assert_eq!(source.route(&config, "s").unwrap().failover.downgrades["*"], ["own"]);
    }

    #[test]
    fn the_report_says_what_the_preset_set() {
        let text = "preset = 'codebuddy'\n[server]\nauth = 'none'\n[[providers]]\nname = 'a'\n\
                    dialect = 'openai'\n[retry]\nretries = 7\n";
        let source = Source::text(text);
        let report = crate::stack::Report::of(&source.parse().unwrap(), &source).unwrap();
        for (key, value, from) in [
            ("preset", "codebuddy", "file"),
            ("retry.retries", "7", "file"),
            ("retry.base_ms", "1500 ms", "preset"),
            ("retry.max_wait_ms", "1 min", "default"),
            ("cooldown.server_error", "30 s", "preset"),
            ("cooldown.auth", "10 min", "default"),
            ("guard.calls", "400", "preset"),
            ("classify.statuses.502", "overloaded", "preset"),
        ] {
            let line = report.lines.iter().find(|line| line.key == key).unwrap();
            assert_eq!((&*line.value, line.from), (value, from), "{key}");
        }
    }

    #[test]
    fn errors_are_where_they_stand_in_the_file() {
        for (text, expected) in [
            ("preset = 'codebudy'\n", ":1:10: preset: unknown variant `codebudy`, expected one of"),
            ("preset = 'guppy'\n[retry]\nretries = 'x'\n", ":3:11: retry.retries: invalid type"),
            ("preset = 'guppy'\n[retry]\nretrys = 1\n", ":3:1: retry.retrys: unknown field"),
            (
                "[recovery]\npreset = 'adr012'\n",
                ":2:1: recovery.preset: write `preset = \"adr-012\"` at the top of the file",
            ),
        ] {
            let error = Source::text(text).parse().unwrap_err().to_string();
            assert!(error.contains(expected), "{expected}: {error}");
        }
        let source = Source::text(
            "preset = 'guppy'\n[server]\nauth = 'none'\n[retry]\nmax_wait_ms = 1\nbase_ms = 0\n",
        );
        let error = source.parse().unwrap().validate(&source).unwrap_err().to_string();
        assert!(error.contains(":6:11: retry.base_ms"), "{error}");
    }

    #[test]
    fn the_fallback_model_is_that_of_the_environment() {
        let fallback = |text: &str| {
            let mut config = Source::text(text).parse().unwrap();
            config.take_fallback(|name| (name == FALLBACK_MODEL).then(|| "haiku".to_owned()));
            config.failover.downgrades.get("*").cloned()
        };
        assert_eq!(fallback("preset = 'claude-code'"), Some(vec!["haiku".to_owned()]));
        assert_eq!(fallback("preset = 'guppy'"), None);
        let own = "preset = 'claude-code'\n[failover]\ndowngrades = { '*' = ['sonnet'] }";
        assert_eq!(fallback(own), Some(vec!["sonnet".to_owned()]));
    }
}
