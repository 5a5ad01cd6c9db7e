//! The numbers.

use std::time::Duration;

use steadfast_core::{Backoff, BufferLimits, RecoveryTable};

use crate::{Balance, PolicyError};

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
    /// How long before the end of a cooldown one call is let through as a probe. 30 s, but never more
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
    /// The longest wait a provider may ask for. 24 h, for a quota of the day or an unpaid bill; of anything else
    /// the classifiers believe an hour.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "longest_hint_s", with = "steadfast_core::config::Seconds")
    )]
    pub longest_hint: Duration,
    /// Failures in a row after which a target cools down, in the order in which their calls began, and of
    /// two callers: while one caller's calls fail, it cools for that one alone. 2: one is an accident. A
    /// refused key, an unpaid bill and a missing model cool at once.
    pub rest_after: u32,
    /// How long the first cooldown takes where the reason's is longer. 2 s: most failures are over by
    /// then. Zero: the whole cooldown at once.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "first_rest_ms", with = "steadfast_core::config::Millis")
    )]
    pub first_rest: Option<Duration>,
    /// How many times as long as the one before a cooldown takes after a failed probe, up to the
    /// reason's. 1.5: a minute is reached after nine probes and four minutes.
    pub rest_growth: f64,
    /// A refused key, an unpaid bill or a missing model makes its target cool for all at once, unless the
    /// target has answered somebody within this time: then only when a second caller meets it too. 10 min:
    /// it takes a person to change a key.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "trusted_for_s", with = "steadfast_core::config::Seconds")
    )]
    pub trusted_for: Duration,
    /// What happens when every target is cooling, or has failed the call.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub when_exhausted: WhenExhausted,
    /// How calls are shared between equal targets.
    pub balance: Balance,
    /// How long a call waits in all, between its attempts.
    pub patience: Patience,
    /// The most attempts of a call that goes round its targets again. 10, as many as one target alone is
    /// retried.
    pub attempts: u32,
    /// The waits before each further round: from 250 ms, doubling to 8 s, up to a quarter added.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub pause: Backoff,
    /// After how long without content the next target is asked beside one that is being probed. 5 s: the
    /// probe is made for everybody, and its caller should not pay for all. Zero: never. When the other answers
    /// first, the probe of a target that rests for its silence has failed, and that of any other decides nothing:
    /// the next one has twice the time.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "probe_hedge_ms", with = "steadfast_core::config::Millis")
    )]
    pub probe_hedge: Option<Duration>,
    /// After how long the next target is asked beside one whose answer comes whole
    /// ([`Call::is_whole`](steadfast_core::Call::is_whole)). 180 s, the stall limit of a stream: such an answer is
    /// silent by nature, so it is not ended for that, and the first of the two is taken. Zero: never.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "whole_hedge_ms", with = "steadfast_core::config::Millis")
    )]
    pub whole_hedge: Option<Duration>,
    /// A call that every target has failed is reported with the reason of the newest failure, whatever the
    /// others failed for. Off by default: it is then `exhausted`, unless all of them agree.
    pub report_newest: bool,
    /// Targets that failed most of what they were asked in the last minute come after the others. On by
    /// default; without it the chain's order holds.
    pub reliable_first: bool,
    /// A target whose provider is degraded is passed over while any other may serve the call, even one that
    /// cools. Off by default: then it comes after those that are well, and before those that cool. Where a
    /// health layer is.
    pub skip_degraded: bool,
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
            balance: Balance::default(),
            patience: Patience::default(),
            attempts: 10,
            pause: pause(),
            probe_hedge: Some(Duration::from_secs(5)),
            whole_hedge: Some(Duration::from_secs(180)),
            report_newest: false,
            reliable_first: true,
            skip_degraded: false,
            sticky: Duration::from_secs(300),
            sessions: 4_096,
            downgrade_on_overload: false,
            hedge: None,
            buffer: BufferLimits::default(),
        }
    }
}

/// How long a call waits in all, between its attempts: here, and in the retry layer below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Patience {
    /// Where another target could serve the call. 30 s: as long as a person waits for a spare.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "with_spare_s", with = "steadfast_core::config::Seconds")
    )]
    pub with_spare: Duration,
    /// Where none could, and for a wait that every target has asked for. 60 s, as wide as the providers'
    /// rate windows.
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

/// By how much a cooldown may grow with each failed probe: beyond it, the second one is the longest.
const MOST_GROWTH: f64 = 100.0;

/// The default waits between rounds.
fn pause() -> Backoff {
    let (base, cap) = (Duration::from_millis(250), Duration::from_secs(8));
    Backoff::new(base, cap).unwrap_or_default()
}

/// What happens when every target that could take a call is cooling, or has failed it. Never more than
/// the call's deadline allows.
///
/// A target with a refused key or an unpaid bill is not asked before its cooldown is over, nor is a missing
/// model, nor what an operator [cools](crate::FailoverHandle::cool).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(from = "keys::Exhausted", into = "keys::Exhausted"))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub enum WhenExhausted {
    /// The call fails at once and says when to come back. No target is asked that is cooling.
    Fail,
    /// The call waits for the first target to come back, and asks again; all its waits together are no
    /// longer than this. No target is asked that is cooling.
    Wait(Duration),
    /// Those that cool are asked all the same, the one that comes back first before the others, and then
    /// the call goes round its targets again, with growing [pauses](FailoverPolicy::pause), as long as
    /// its [patience](FailoverPolicy::patience) and its [attempts](FailoverPolicy::attempts) last. The
    /// default: a cooldown is a preference between targets, and with nothing left to prefer, a call that
    /// may succeed is better than one that can not. What a dead provider then costs is bounded by the
    /// breaker and the budget.
    ///
    /// A wait that a provider asked this very call for is not cut short.
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
        /// What happens when every provider is cooling down, or has failed the call.
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
        /// The call waits for the first to come back, and asks again.
        Wait,
        /// Those that cool down are asked all the same, the first to come back before the others, and then
        /// all of them again, with growing pauses.
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
            ("pause", self.pause.base().is_zero()),
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
        if !(1.0..=MOST_GROWTH).contains(&self.rest_growth) {
            return Err(PolicyError::Growth(self.rest_growth));
        }
        Ok(())
    }

    /// Whether a target that has failed may be asked again after a wait.
    pub(crate) fn may_wait(&self) -> bool {
        self.when_exhausted != WhenExhausted::Fail
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
        let cases: [(Change, &str); 8] = [
            (|p| p.down_after = 0, "`down_after` is zero"),
            (|p| p.probe_limit = Duration::ZERO, "`probe_limit` is zero"),
            (|p| p.when_exhausted = WhenExhausted::Wait(Duration::ZERO), "`when_exhausted`"),
            (|p| p.sessions = 0, "`sessions` is zero"),
            (|p| p.permanent_cap = secs(60), "is above `permanent_cap`"),
            (|p| p.pause = Backoff::new(Duration::ZERO, secs(1)).unwrap(), "`pause` is zero"),
            (|p| p.rest_growth = 0.5, "`rest_growth` is 0.5"),
            (|p| p.rest_growth = f64::NAN, "`rest_growth` is NaN"),
        ];
        for (change, message) in cases {
            let mut policy = FailoverPolicy::default();
            change(&mut policy);
            let error = policy.validate().unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
    }
}
