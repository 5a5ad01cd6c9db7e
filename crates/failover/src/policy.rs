//! The numbers, and what a failure means under them.

use std::time::Duration;

use steadfast_core::{
    Backoff, BufferLimits, Failover, Failure, FaultSide, Reason, RecoveryTable, Retry, Scope,
    TimeLimit,
    circuit::{Blame, Weight},
};

use crate::PolicyError;

/// Everything that can be set about failover; plain fields.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(default))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct FailoverPolicy {
    /// Cooldown, scope and direction by reason. A cell that differs from the reason's default
    /// overrides what a failure says of itself; *forbidden* stays forbidden.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub table: RecoveryTable,
    /// Failures in a row after which a target counts as down. 3: one is an accident, two a
    /// coincidence.
    pub down_after: u32,
    /// How long before the end of a cooldown one call is let through to see. 30 s, but never more
    /// than half of the cooldown, and not at all while a provider asked to be left alone. Zero:
    /// never early.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "probe_window_s", with = "steadfast_core::config::Seconds")
    )]
    pub probe_window: Duration,
    /// How long a probe may be without content before another one is made. 180 s, the default
    /// stall limit: a stream without content for so long is not going to have any.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "probe_limit_s", with = "steadfast_core::config::Seconds")
    )]
    pub probe_limit: Duration,
    /// The first cooldown after a failure that does not pass by itself. 1 h.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "permanent_s", with = "steadfast_core::config::Seconds")
    )]
    pub permanent: Duration,
    /// The longest such cooldown; each one in a row is twice as long as the one before. 24 h: a
    /// target is never dead until a restart.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "permanent_cap_s", with = "steadfast_core::config::Seconds")
    )]
    pub permanent_cap: Duration,
    /// The longest wait a provider may ask for. 24 h: beyond that, what it says is a mistake.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "longest_hint_s", with = "steadfast_core::config::Seconds")
    )]
    pub longest_hint: Duration,
    /// Failures in a row after which a target cools down; calls stand in the order in which they began. 2:
    /// one is an accident. A refused key, an unpaid bill and a missing model cool at once.
    pub rest_after: u32,
    /// How long the first cooldown takes where the reason's is longer. 2 s: most failures are over by
    /// then. Off: the whole cooldown at once.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "first_rest_ms", with = "steadfast_core::config::Millis")
    )]
    pub first_rest: Option<Duration>,
    /// By how much a cooldown is longer than the one before, when a probe has failed, up to the
    /// reason's. 1.5: a minute is reached after nine probes and four minutes.
    pub rest_growth: f64,
    /// A refused key, an unpaid bill or a missing model makes its target cool for all at once, unless the
    /// target has answered somebody within this time: then only on a second witness. 10 min: it takes a
    /// person to change a key.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "trusted_for_s", with = "steadfast_core::config::Seconds")
    )]
    pub trusted_for: Duration,
    /// What happens when every target is cooling, or has failed the call.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub when_exhausted: WhenExhausted,
    /// How long a call waits in all for its targets, from its first failure on.
    pub patience: Patience,
    /// The most attempts of a call that goes round its targets again. 10, as many as one target alone is
    /// retried.
    pub attempts: u32,
    /// The waits before each further round: from 250 ms,
    /// doubling to 8 s, up to a quarter added.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub pause: Backoff,
    /// After how long without content the next target is asked beside one that is being probed. 5 s.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "probe_hedge_ms", with = "steadfast_core::config::Millis")
    )]
    pub probe_hedge: Option<Duration>,
    /// How long a session stays where a failover took it, from its last call on. 5 min, as long as
    /// prompt caches live. Zero: not at all.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "sticky_s", with = "steadfast_core::config::Seconds")
    )]
    pub sticky: Duration,
    /// The most sessions remembered. 4,096, at about 200 bytes each.
    pub sessions: usize,
    /// An overloaded model is replaced by its downgrades before another provider is asked.
    pub downgrade_on_overload: bool,
    /// After how long without content one more target is asked as well. Off by default: it costs
    /// a second answer.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "hedge_ms", with = "steadfast_core::config::Millis")
    )]
    pub hedge: Option<Duration>,
    /// How much of an answer is held back while waiting for its first content.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub buffer: BufferLimits,
}

impl Default for FailoverPolicy {
    fn default() -> Self {
        Self {
            table: RecoveryTable::default(),
            down_after: 3,
            probe_window: Duration::from_secs(30),
            probe_limit: Duration::from_secs(180),
            permanent: Duration::from_secs(3_600),
            permanent_cap: Duration::from_secs(24 * 3_600),
            longest_hint: Duration::from_secs(24 * 3_600),
            rest_after: 2,
            first_rest: Some(Duration::from_secs(2)),
            rest_growth: 1.5,
            trusted_for: Duration::from_secs(600),
            when_exhausted: WhenExhausted::default(),
            patience: Patience::default(),
            attempts: 10,
            pause: pause(),
            probe_hedge: Some(Duration::from_secs(5)),
            sticky: Duration::from_secs(300),
            sessions: 4_096,
            downgrade_on_overload: false,
            hedge: None,
            buffer: BufferLimits::default(),
        }
    }
}

/// How long a call waits in all for its targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Patience {
    /// Where there are several providers. 30 s: as long as a person waits for a spare.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "with_spare_s", with = "steadfast_core::config::Seconds")
    )]
    pub with_spare: Duration,
    /// Where there is one, and where all have asked us to wait. 60 s, as wide as the providers' rate
    /// windows.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "alone_s", with = "steadfast_core::config::Seconds")
    )]
    pub alone: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { with_spare: Duration::from_secs(30), alone: Duration::from_secs(60) }
    }
}

/// The default waits between rounds.
fn pause() -> Backoff {
    let (base, cap) = (Duration::from_millis(250), Duration::from_secs(8));
    Backoff::new(base, cap).unwrap_or_default()
}

/// What happens when every target that could take a call is cooling. Never more than the call's
/// deadline allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(from = "keys::Exhausted", into = "keys::Exhausted"))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub enum WhenExhausted {
    /// The call fails at once and says when to come back.
    Fail,
    /// The call waits for the first target to come back, if that is within this time; all its
    /// waits together are no longer.
    Wait(Duration),
    /// Those that cool are asked all the same, the one that comes back first before the others, and then
    /// the call goes round its targets again, with growing [pauses](FailoverPolicy::pause). The default:
    /// a cooldown is a preference between targets, and with nothing left to prefer, a call that may
    /// succeed is better than one that can not. What a dead provider then costs is bounded by the breaker
    /// and the budget.
    ///
    /// A wait that a provider *asked* this call for is not cut short. A target with a refused key or
    /// an unpaid bill is not asked, nor is a missing model.
    #[default]
    TrySoonest,
}

/// The keys of a configuration.
#[cfg(feature = "serde")]
mod keys {
    use std::time::Duration;

    use steadfast_core::config::Millis;

    use super::WhenExhausted;

    #[derive(serde::Deserialize, serde::Serialize)]
    #[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
    #[serde(default, deny_unknown_fields)]
    pub(super) struct Exhausted {
        /// What happens when every provider is cooling down.
        when_exhausted: Action,
        /// How long `"wait"` waits at most.
        #[serde(rename = "wait_ms", with = "Millis")]
        wait: Duration,
    }

    #[derive(Clone, Copy, serde::Deserialize, serde::Serialize)]
    #[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
    #[serde(rename_all = "snake_case")]
    enum Action {
        /// The call fails and says when to come back.
        Fail,
        /// The call waits for the first to come back.
        Wait,
        /// The one that comes back first is asked, unless it asked to be left alone.
        TrySoonest,
    }

    impl Default for Exhausted {
        /// A minute: as long as the usual rate window of a provider.
        fn default() -> Self {
            Self { when_exhausted: Action::TrySoonest, wait: Duration::from_secs(60) }
        }
    }

    impl From<Exhausted> for WhenExhausted {
        fn from(keys: Exhausted) -> Self {
            match keys.when_exhausted {
                Action::Fail => WhenExhausted::Fail,
                Action::Wait => WhenExhausted::Wait(keys.wait),
                Action::TrySoonest => WhenExhausted::TrySoonest,
            }
        }
    }

    impl From<WhenExhausted> for Exhausted {
        fn from(action: WhenExhausted) -> Self {
            let default = Self::default();
            match action {
                WhenExhausted::Fail => Self { when_exhausted: Action::Fail, ..default },
                WhenExhausted::Wait(wait) => Self { when_exhausted: Action::Wait, wait },
                WhenExhausted::TrySoonest => default,
            }
        }
    }
}

/// What one failure means under a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FailureVerdict {
    /// Where the call may go.
    pub(crate) go: Failover,
    /// What it says something about.
    pub(crate) scope: Scope,
    /// What cools down and how; `None` when the target is not to blame.
    pub(crate) blame: Option<Blame>,
    /// The provider's other models may do.
    pub(crate) downgrade: bool,
    /// The same call may be made again later, at the same target.
    pub(crate) again: bool,
}

/// `own`, unless the operator changed the reason's cell in the table.
fn cell<T: PartialEq>(own: T, standard: &T, table: T) -> T {
    if table == *standard { own } else { table }
}

impl FailoverPolicy {
    /// Whether it makes sense.
    ///
    /// # Errors
    ///
    /// The first thing that does not, and what would.
    pub fn validate(&self) -> Result<(), PolicyError> {
        for (field, zero) in [
            ("down_after", self.down_after == 0),
            ("probe_limit", self.probe_limit.is_zero()),
            ("permanent", self.permanent.is_zero()),
            ("longest_hint", self.longest_hint.is_zero()),
            ("rest_after", self.rest_after == 0),
            ("attempts", self.attempts == 0),
            ("when_exhausted", self.when_exhausted == WhenExhausted::Wait(Duration::ZERO)),
            ("sessions", self.sessions == 0),
            ("buffer", self.buffer.bytes == 0 || self.buffer.time.is_zero()),
        ] {
            if zero {
                return Err(PolicyError::Zero(field));
            }
        }
        if self.permanent > self.permanent_cap {
            let Self { permanent, permanent_cap, .. } = *self;
            return Err(PolicyError::PermanentAboveCap { permanent, permanent_cap });
        }
        Ok(())
    }

    /// Whether a target that has failed may be asked again after a wait.
    pub(crate) fn may_wait(&self) -> bool {
        self.when_exhausted != WhenExhausted::Fail
    }

    pub(crate) fn verdict(&self, failure: &Failure) -> FailureVerdict {
        let reason = failure.reason();
        let (rule, standard) = (self.table.rule(reason), reason.rule());
        let forbidden = failure.failover() == Failover::Forbidden;
        let scope = cell(failure.scope(), &standard.scope, rule.scope);
        let mut go = cell(failure.failover(), &standard.failover, rule.failover);
        if forbidden {
            go = Failover::Forbidden;
        } else if failure.is_delivered() || failure.time_limit() == Some(TimeLimit::Pipeline) {
            // Content has been seen, or the time of the whole call is over.
            go = Failover::Never;
        }
        let downgrade = match reason {
            Reason::Overloaded => self.downgrade_on_overload || failure.wants_fallback(),
            _ => go == Failover::NextModel || failure.wants_fallback(),
        };
        let fault = cell(failure.fault(), &standard.fault, rule.fault);
        let blamed = !forbidden
            && fault == FaultSide::Provider
            && failure.time_limit().is_none_or(TimeLimit::blames_provider)
            && !matches!(scope, Scope::Request | Scope::Task | Scope::Local);
        let permanent = cell(failure.is_permanent(), &standard.permanent, rule.permanent);
        let narrow = matches!(scope, Scope::Model | Scope::Credential | Scope::ModelCredential);
        // Asking again is in vain until a person has changed something.
        let proves =
            permanent || (narrow && failure.retry() == Retry::No && !reason.is_throttling());
        let refused = reason == Reason::CircuitOpen && failure.retry_after().is_some();
        // Not worth a retry in place for the length of its hint alone.
        let long = failure.retry_after().is_some_and(|hint| hint > self.patience.alone);
        let passes = failure.retry() == Retry::Yes || (reason.is_throttling() && long);
        let again = refused || (passes && failure.time_limit().is_none());
        let blame = blamed.then(|| {
            let hint = failure.retry_after().filter(|hint| !hint.is_zero());
            Blame {
                weight: if proves { Weight::Proof } else { Weight::Hard },
                reason,
                cooldown: hint
                    .map_or(rule.cooldown.unwrap_or_default(), |hint| hint.min(self.longest_hint)),
                hinted: hint.is_some(),
                permanent,
            }
        });
        FailureVerdict { go, scope, blame, downgrade, again }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secs(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn contradictions_are_refused() {
        type Change = fn(&mut FailoverPolicy);
        FailoverPolicy::default().validate().unwrap();
        let cases: [(Change, &str); 5] = [
            (|p| p.down_after = 0, "`down_after` is zero"),
            (|p| p.probe_limit = Duration::ZERO, "`probe_limit` is zero"),
            (|p| p.when_exhausted = WhenExhausted::Wait(Duration::ZERO), "`when_exhausted`"),
            (|p| p.sessions = 0, "`sessions` is zero"),
            (|p| p.permanent_cap = secs(60), "is above `permanent_cap`"),
        ];
        for (change, message) in cases {
            let mut policy = FailoverPolicy::default();
            change(&mut policy);
            let error = policy.validate().unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
    }

    #[test]
    fn the_table_of_reasons() {
        use Failover::{Forbidden, LargerWindow, Never, NextCredential, NextModel, NextTarget};
        let policy = FailoverPolicy::default();
        for (reason, go, cooldown) in [
            (Reason::Auth, NextCredential, Some(600)),
            (Reason::Billing, NextCredential, Some(1_800)),
            (Reason::RateLimit, NextTarget, Some(60)),
            (Reason::Overloaded, NextTarget, Some(120)),
            (Reason::ServerError, NextTarget, Some(60)),
            (Reason::Timeout, NextTarget, Some(30)),
            (Reason::Network, NextTarget, Some(30)),
            (Reason::ModelNotFound, NextModel, Some(3_600)),
            (Reason::ContextOverflow, LargerWindow, None),
            (Reason::OutputTruncated, Never, None),
            (Reason::ContentFilter, Never, None),
            (Reason::Format, Never, None),
            (Reason::PayloadTooLarge, Never, None),
            (Reason::Unsupported, NextTarget, None),
            (Reason::Cancelled, Never, None),
            (Reason::Safety, Forbidden, None),
            (Reason::CircuitOpen, NextTarget, None),
            (Reason::Cooling, NextTarget, None),
            (Reason::Exhausted, NextTarget, None),
            (Reason::Budget, NextTarget, None),
            (Reason::Unknown, NextTarget, Some(30)),
        ] {
            let verdict = policy.verdict(&Failure::new(reason, ""));
            assert_eq!(verdict.go, go, "{reason}");
            assert_eq!(verdict.blame.map(|blame| blame.cooldown), cooldown.map(secs), "{reason}");
        }
    }

    #[test]
    fn a_hint_is_the_cooldown_within_a_day() {
        let policy = FailoverPolicy::default();
        let blame = |hint| {
            let failure = Failure::new(Reason::RateLimit, "").with_retry_after(hint);
            let blame = policy.verdict(&failure).blame.unwrap();
            (blame.cooldown, blame.hinted)
        };
        assert_eq!(blame(Some(secs(2))), (secs(2), true));
        assert_eq!(blame(Some(secs(86_400 * 400))), (secs(86_400), true));
        assert_eq!(blame(Some(secs(0))), (secs(60), false));
        assert_eq!(blame(None), (secs(60), false));
    }

    #[test]
    fn the_operators_cell_overrides_the_failure_and_nothing_overrides_forbidden() {
        let mut policy = FailoverPolicy::default();
        let own = Failure::new(Reason::Format, "").with_failover(Failover::NextTarget);
        assert_eq!(policy.verdict(&own).go, Failover::NextTarget, "what the classifier knows");
        policy.table = policy
            .table
            .with_rule(Reason::ContentFilter, |rule| rule.failover = Failover::NextTarget)
            .with_rule(Reason::ServerError, |rule| rule.permanent = true);
        let filtered = policy.verdict(&Failure::new(Reason::ContentFilter, ""));
        assert_eq!((filtered.go, filtered.blame), (Failover::NextTarget, None));
        assert!(policy.verdict(&Failure::new(Reason::ServerError, "")).blame.unwrap().permanent);
        let forbidden = Failure::new(Reason::ContentFilter, "").with_failover(Failover::Forbidden);
        assert_eq!(policy.verdict(&forbidden).go, Failover::Forbidden);
    }

    #[test]
    fn our_own_patience_and_what_was_delivered() {
        let policy = FailoverPolicy::default();
        let timeout =
            |limit| policy.verdict(&Failure::new(Reason::Timeout, "").with_time_limit(limit));
        assert!(timeout(TimeLimit::Stall).blame.is_some());
        assert!(timeout(TimeLimit::Makespan).blame.is_none());
        assert_eq!(timeout(TimeLimit::Makespan).go, Failover::NextTarget);
        assert_eq!(timeout(TimeLimit::Pipeline).go, Failover::Never);
        let delivered = policy.verdict(&Failure::new(Reason::Network, "").with_delivered());
        assert_eq!(delivered.go, Failover::Never);
        assert!(delivered.blame.is_some(), "it still counts against the target");
    }

    #[test]
    fn overload_downgrades_when_asked() {
        let mut policy = FailoverPolicy::default();
        let plain = Failure::new(Reason::Overloaded, "");
        let asks = Failure::new(Reason::Overloaded, "").with_wants_fallback();
        assert!(!policy.verdict(&plain).downgrade && policy.verdict(&asks).downgrade);
        policy.downgrade_on_overload = true;
        assert!(policy.verdict(&plain).downgrade);
        assert!(policy.verdict(&Failure::new(Reason::ModelNotFound, "")).downgrade);
    }
}
