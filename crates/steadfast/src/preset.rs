//! The policies of five documented systems, number by number.

use std::{collections::BTreeMap, time::Duration};

use steadfast_breaker::BreakerPolicy;
use steadfast_compact::CompactionPolicy;
use steadfast_core::{
    Backoff, BudgetPolicy, Failover, Jitter, Reason, RecoveryTable, Retry, Scope,
};
use steadfast_failover::{FailoverPolicy, Patience, WhenExhausted};
use steadfast_guard::{GuardPolicy, StopText};
use steadfast_health::HealthPolicy;
use steadfast_limit::SpendLimitPolicy;
use steadfast_recover::ContinuationPolicy;
use steadfast_retry::RetryPolicy;

use crate::Policies;

/// A documented system whose numbers every layer takes over.
///
/// A preset keeps its system's thresholds also where they serve callers worse than the defaults, which are
/// none of these. What each does, and what it does better and worse than the defaults, is in
/// `docs/presets.md`. Single fields of its [`policies`](Self::policies) can be changed.
///
/// ```
/// use steadfast::{Preset, Stack, failover::Chain};
///
/// let stack = Stack::new(Chain::new(["anthropic", "openai"])?).preset(Preset::ClaudeCode);
/// assert_eq!("claude-code".parse(), Ok(Preset::ClaudeCode));
/// # let _ = stack;
/// # Ok::<(), steadfast::failover::ChainError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub enum Preset {
    /// An assistant for programmers: cooldowns by reason from the first failure, two nudged retries, limits
    /// for every task.
    Codebuddy,
    /// A coding agent: ten retries of one provider, 8,000 tokens of output that are raised once, a smaller
    /// model for an overloaded one.
    ClaudeCode,
    /// A provider chain with a breaker each that the first failure opens, and permanent failures for good.
    #[cfg_attr(feature = "serde", serde(rename = "adr-012"))]
    Adr012,
    /// A server of agents: stalls of three minutes, retries of one minute to the end of their answer.
    Comis,
    /// A chat bot: three retries, and nothing that rests.
    Guppy,
}

impl Preset {
    /// Every preset.
    pub const ALL: [Self; 5] =
        [Self::Codebuddy, Self::ClaudeCode, Self::Adr012, Self::Comis, Self::Guppy];

    /// Its name in configurations and logs, such as `claude-code`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Preset::Codebuddy => "codebuddy",
            Preset::ClaudeCode => "claude-code",
            Preset::Adr012 => "adr-012",
            Preset::Comis => "comis",
            Preset::Guppy => "guppy",
        }
    }

    /// The policies of all layers.
    pub fn policies(self) -> Policies {
        match self {
            Preset::Codebuddy => codebuddy(),
            Preset::ClaudeCode => claude_code(),
            Preset::Adr012 => adr012(),
            Preset::Comis => comis(),
            Preset::Guppy => guppy(),
        }
    }
}

fn codebuddy() -> Policies {
    let mut policies = in_order(Policies::default());
    rests_at_once(&mut policies.failover, codebuddy_table());
    let stream = RetryPolicy::stream();
    policies.retry = RetryPolicy {
        retries: stream.retries,
        retries_after_hang: stream.retries,
        backoff: exact(stream.backoff),
        nudge: stream.nudge,
        nudge_throttled: true,
        ..policies.retry
    };
    policies.classify.statuses =
        statuses(&[409, 421, 424, 425, 501, 505], Reason::Unknown, &[(502, Reason::Overloaded)]);
    policies.classify.unreadable = Reason::Format;
    policies.classify.final_texts = [
        "loop detected",
        "infinite loop",
        "same file edited",
        "safety limit",
        "user cancel",
        "abort",
        "authentication",
        "unauthorized",
        "invalid api key",
        "quota exceeded",
    ]
    .map(str::to_owned)
    .to_vec();

    let mut guard = GuardPolicy::codebuddy();
    // Only the tools of its table have limits of their own: any other has that of all calls.
    guard.limits.per_tool = guard.limits.calls.and_then(|calls| u32::try_from(calls).ok());
    guard.named = guard.limits.clone();
    guard.stop_text = StopText::Forced;
    policies.guard = Some(guard);

    policies.continuation = None;
    let mut compaction = CompactionPolicy::default();
    (compaction.warn_at, compaction.compact_at) = (0.8, 0.9);
    (compaction.strip_over, compaction.keep_recent, compaction.min_messages) = (200, 4, 6);
    compaction.prepare_at_warning = true;
    compaction.windows = [
        ("claude-sonnet-4", 200_000),
        ("claude-opus-4", 200_000),
        ("gpt-4o", 128_000),
        ("gpt-4", 8_000),
        ("gemini-1.5-pro", 2_100_000),
        ("deepseek-chat", 64_000),
        ("qwen-plus", 131_000),
    ]
    .map(|(model, window)| (model.to_owned(), window))
    .into();
    policies.compaction = Some(compaction);
    policies
}

/// Eight reasons, and one health record a provider.
fn codebuddy_table() -> RecoveryTable {
    let own = [
        (Reason::Auth, 600),
        (Reason::RateLimit, 60),
        (Reason::Billing, 1_800),
        (Reason::Timeout, 30),
        (Reason::Network, 30),
        (Reason::Overloaded, 120),
        (Reason::ModelNotFound, 3_600),
        (Reason::ServerError, 30),
        (Reason::Unknown, 30),
    ];
    let table = own.into_iter().fold(RecoveryTable::default(), |table, (reason, seconds)| {
        table.with_rule(reason, |rule| {
            (rule.scope, rule.failover) = (Scope::Provider, Failover::NextTarget);
            rule.cooldown = Some(Duration::from_secs(seconds));
        })
    });
    [Reason::PayloadTooLarge, Reason::Unsupported]
        .into_iter()
        .fold(table, |table, reason| table.with_rule(reason, |rule| *rule = Reason::Format.rule()))
}

fn claude_code() -> Policies {
    let mut policies = in_order(Policies::default());
    // There is one provider, and nothing of it rests.
    policies.failover.table =
        nothing_rests().with_rule(Reason::Overloaded, |rule| rule.failover = Failover::NextModel);
    let transient = RetryPolicy::transient();
    policies.retry = RetryPolicy {
        retries: transient.retries,
        retries_after_hang: transient.retries,
        backoff: transient.backoff,
        // What the provider asks for goes before any wait of its own.
        max_wait: policies.deadline.pipeline,
        overloaded_limit: transient.overloaded_limit,
        ..policies.retry
    };
    policies.continuation = Some(ContinuationPolicy {
        first_limit: 8_000,
        escalate_to: 64_000,
        continuations: 3,
        little: 500,
        poor_in_a_row: 3,
        withhold: true,
        ..ContinuationPolicy::default()
    });
    let mut compaction = CompactionPolicy::default();
    compaction.keep_recent = 5;
    compaction.overflows = 1;
    // All that may go: what stays are the recent messages.
    compaction.overflow_target = 0.001;
    compaction.withhold = true;
    policies.compaction = Some(compaction);
    policies.guard = None;
    policies.resume = None;
    policies
}

fn adr012() -> Policies {
    let mut policies = in_order(Policies::default());
    rests_at_once(&mut policies.failover, adr012_table());
    policies.failover.downgrade_on_overload = true;
    policies.failover.report_newest = true;
    // Until somebody resets it: a century.
    let without_end = Duration::from_secs(100 * 365 * 24 * 3_600);
    (policies.failover.permanent, policies.failover.permanent_cap) = (without_end, without_end);
    policies.retry = RetryPolicy {
        retries: 2,
        retries_after_hang: 2,
        backoff: exact(RetryPolicy::delivery().backoff),
        slower_by_position: true,
        downgrades_once: true,
        ..policies.retry
    };
    // It has one category for everything from 500 on, and knows 401 alone as a refused key.
    policies.classify.statuses = statuses(
        &[403, 409, 410, 412, 421, 424, 425],
        Reason::Unknown,
        &[501, 504, 505, 524].map(|status| (status, Reason::ServerError)),
    );
    policies.guard = None;
    policies.continuation = None;
    policies.resume = None;
    policies.compaction = None;
    policies
}

/// Seven categories, one breaker a provider. What can be retried goes through the provider's other models
/// before the next provider is asked.
fn adr012_table() -> RecoveryTable {
    let table = Reason::ALL.into_iter().fold(RecoveryTable::default(), |table, reason| {
        // The category `unknown`: for the caller, and for nobody else.
        table.with_rule(reason, |rule| {
            (rule.retry, rule.failover) = (Retry::No, Failover::Never);
            (rule.scope, rule.cooldown) = (Scope::Request, None);
        })
    });
    let passing = [
        (Reason::RateLimit, 60),
        (Reason::Timeout, 30),
        (Reason::Network, 60),
        (Reason::Overloaded, 60),
        (Reason::ServerError, 60),
    ];
    let table = passing.into_iter().fold(table, |table, (reason, seconds)| {
        table.with_rule(reason, |rule| {
            (rule.retry, rule.failover) = (Retry::Yes, Failover::NextModel);
            (rule.scope, rule.cooldown) = (Scope::Provider, Some(Duration::from_secs(seconds)));
        })
    });
    let permanent = [
        (Reason::Auth, Failover::NextTarget),
        (Reason::Billing, Failover::NextTarget),
        (Reason::ModelNotFound, Failover::NextModel),
    ];
    let table = permanent.into_iter().fold(table, |table, (reason, failover)| {
        table.with_rule(reason, |rule| {
            (rule.failover, rule.scope, rule.permanent) = (failover, Scope::Provider, true);
        })
    });
    // Refusals of our own are no failures of a provider.
    let refusals = Reason::ALL.into_iter().filter(|reason| reason.is_refusal());
    refusals.fold(table, |table, reason| table.with_rule(reason, |rule| *rule = reason.rule()))
}

fn comis() -> Policies {
    let mut policies = Policies::default();
    policies.stall.stall = Duration::from_secs(180);
    policies.stall.ceiling = Some(10);
    policies.stall.attempt = Some(Duration::from_secs(60));
    policies.stall.attempt_to_end = true;
    policies.deadline.pipeline = Duration::from_secs(600);
    policies.health = Some(HealthPolicy::comis());
    policies.rate_limit.learn = false;
    policies.failover.skip_degraded = true;
    policies.spend_limit = SpendLimitPolicy::comis();
    (policies.spend.hour, policies.spend.day) = (500_000, 5_000_000);
    policies.summaries.failures = 5;
    policies.summaries.rest = Duration::from_secs(60);
    policies.summaries.probe = Duration::from_secs(30);
    let mut compaction = CompactionPolicy::default();
    compaction.max_throws = 3;
    policies.compaction = Some(compaction);
    policies
}

fn guppy() -> Policies {
    let mut policies = in_order(Policies::default());
    policies.failover.table = nothing_rests();
    let application = RetryPolicy::application();
    policies.retry = RetryPolicy {
        retries: application.retries,
        retries_after_hang: application.retries,
        backoff: exact(application.backoff),
        ..policies.retry
    };
    // 500 to 504, and no other status that may pass.
    let others = [408, 409, 421, 424, 425, 505, 507, 508, 520, 521, 522, 523, 524];
    policies.classify.statuses = statuses(&others, Reason::Unknown, &[(501, Reason::ServerError)]);
    let mut compaction = CompactionPolicy::default();
    compaction.plain = false;
    policies.compaction = Some(compaction);
    policies.guard = None;
    policies.continuation = None;
    policies.resume = None;
    policies
}

/// What the systems with a simple chain have in common: retries in place first, then each provider once in
/// the chain's order, and then the failure. No budget, no breaker of its own, nobody asked beside another,
/// no session that stays where it was, and waits as long as the whole may take.
fn in_order(mut policies: Policies) -> Policies {
    let whole = policies.deadline.pipeline;
    let failover = &mut policies.failover;
    failover.when_exhausted = WhenExhausted::Fail;
    failover.patience = Patience { with_spare: whole, alone: whole };
    (failover.hedge, failover.probe_hedge, failover.whole_hedge) = (None, None, None);
    failover.sticky = Duration::ZERO;
    failover.reliable_first = false;
    policies.health = None;
    policies.rate_limit.learn = false;
    policies.breaker = BreakerPolicy {
        consecutive: None,
        failure_rate: None,
        dead: None,
        observe: true,
        ..policies.breaker
    };
    policies.budget = BudgetPolicy { capacity: 0, ..policies.budget };
    policies.retry.spares_last = true;
    policies.retry.overloaded_limit = 0;
    policies
}

/// Cooldowns by `table`, whole from the first failure on, and as long the next time.
fn rests_at_once(failover: &mut FailoverPolicy, table: RecoveryTable) {
    failover.table = table;
    failover.rest_after = 1;
    failover.first_rest = None;
    failover.rest_growth = 1.0;
    failover.trusted_for = Duration::ZERO;
    failover.probe_window = Duration::from_secs(30);
}

/// All of `these` mean `reason`, and the others what is written beside them.
fn statuses(these: &[u16], reason: Reason, others: &[(u16, Reason)]) -> BTreeMap<u16, Reason> {
    these.iter().map(|status| (*status, reason)).chain(others.iter().copied()).collect()
}

/// Every failure speaks for its request alone.
fn nothing_rests() -> RecoveryTable {
    Reason::ALL.into_iter().fold(RecoveryTable::default(), |table, reason| {
        table.with_rule(reason, |rule| {
            (rule.scope, rule.cooldown) = (Scope::Request, None);
        })
    })
}

/// The same waits without a random part.
fn exact(backoff: Backoff) -> Backoff {
    backoff.with_jitter(Jitter::None).unwrap_or(backoff)
}

impl std::fmt::Display for Preset {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

/// A name that is no [`Preset`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParsePresetError(String);

impl std::fmt::Display for ParsePresetError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = Preset::ALL.map(Preset::as_str).join(", ");
        write!(f, "`{}` is no preset; one of {names}", self.0)
    }
}

impl std::error::Error for ParsePresetError {}

impl std::str::FromStr for Preset {
    type Err = ParsePresetError;

    fn from_str(name: &str) -> Result<Self, ParsePresetError> {
        let found = Self::ALL.into_iter().find(|preset| preset.as_str() == name);
        found.ok_or_else(|| ParsePresetError(name.chars().take(64).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Stack, failover::Chain};

    #[test]
    fn every_preset_is_valid_and_found_by_its_name() {
        for preset in Preset::ALL {
            assert_eq!(preset.to_string().parse(), Ok(preset));
            let stack = Stack::new(Chain::new(["a", "b"]).unwrap());
            let _stack = stack.with_policies(&preset.policies()).unwrap();
        }
        let error = "default".parse::<Preset>().unwrap_err().to_string();
        assert!(error.contains("codebuddy, claude-code, adr-012, comis, guppy"), "{error}");
    }
}
