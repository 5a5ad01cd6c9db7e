//! The policy of a circuit.

use std::time::Duration;

use super::{Blame, Weight};

/// When a circuit opens, for how long, and when it closes; plain fields. Each layer has its own
/// defaults.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CircuitPolicy {
    /// Open after this many hard failures in a row, [`MAX_ROW`](super::MAX_ROW) where that is less;
    /// `None`: never for that. Calls stand in the order in which they began, and one still under way breaks the row.
    pub consecutive: Option<u32>,
    /// A row opens the circuit only with failures of two witnesses ([`Permit::witness`](crate::Permit::witness)).
    /// While one caller's request fails again and again, the target rests for that one alone.
    pub second_witness: bool,
    /// Where a second witness is required, a failure that is proof by itself requires one too when a call
    /// has succeeded within this time.
    pub trusted_for: Duration,
    /// The time over which rates are taken; it slides in tenths.
    pub window: Duration,
    /// No rate is taken of fewer calls than this.
    pub min_calls: u32,
    /// Open when this share of the calls in the window failed; `None`: never for that.
    pub failure_rate: Option<f64>,
    /// Open when too many calls are slow to begin; `None`: never for that.
    pub slow: Option<SlowPolicy>,
    /// The first content of a call counts as a success: it ends a row of failures, ends a rest, and is a
    /// probe's success. A failure after it counts only in the rate.
    pub content_is_success: bool,
    /// How long to rest without a failure: after slow calls.
    pub cooldown: Duration,
    /// How long the first rest after failures in a row takes, where the reason's cooldown is longer: it
    /// then grows with each failed probe up to that. `None`: the whole cooldown at once, as after a hint
    /// and after a failure that is proof by itself.
    pub first_rest: Option<Duration>,
    /// By how much a rest is longer than the one before, when a probe has failed; 1 for no growth.
    pub growth: f64,
    /// Where that growth ends. A cooldown or hint beyond it is kept, and does not grow.
    pub max_cooldown: Duration,
    /// The shortest rest after a permanent failure; such rests double with each failed probe.
    pub permanent_cooldown: Duration,
    /// Where that doubling ends.
    pub max_permanent: Duration,
    /// How long before the end of a rest a probe is let through; never earlier than half of the rest,
    /// and at its end when the provider asked for it. Zero: always at its end.
    pub probe_lead: Duration,
    /// How long a probe may be under way before it is given up.
    pub probe_limit: Duration,
    /// Probes under way at once.
    pub probes: u32,
    /// Probes that must succeed before it closes.
    pub successes: u32,
    /// The lone calls, without another target, that pass nevertheless; `None`: none.
    pub lone: Option<LonePolicy>,
    /// Something else decides who is asked. An open circuit then refuses no first attempt, those that
    /// repeat one take turns, one each this time ([`take_turn`](super::Circuit::take_turn)), and it
    /// closes when its latest row is broken: by a success, or by calls under way.
    pub turns: Option<Duration>,
}

/// When calls are too slow to begin.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct SlowPolicy {
    /// A call whose first content takes longer than this, from its admission, is slow.
    #[cfg_attr(feature = "serde", serde(rename = "after_ms", with = "crate::config::Millis"))]
    pub after: Duration,
    /// Open when this share of the calls in the window was slow.
    pub rate: f64,
}

/// What an open circuit lets through when there is no other target, so that a wrongly opened circuit is
/// not a complete outage.
///
/// Such a call moves the end of the rest only later: when it fails with a hint of the provider, or
/// with a failure that is proof by itself. It never makes the next rest longer. When several in a
/// row succeed the circuit closes early, unless the provider itself asked for the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct LonePolicy {
    /// Such calls under way at once. Default 1.
    pub at_once: u32,
    /// The shortest time from one such call to the next, and from the opening to the first. Default
    /// 1 s: hardly noticed by a user, and little load for a failing provider.
    #[cfg_attr(feature = "serde", serde(rename = "every_ms", with = "crate::config::Millis"))]
    pub every: Duration,
    /// How many of them must succeed in a row to close the circuit before its time. Default 3:
    /// where every second call fails, three in a row succeed by chance once in eight.
    pub successes: u32,
}

impl Default for LonePolicy {
    fn default() -> Self {
        Self { at_once: 1, every: Duration::from_secs(1), successes: 3 }
    }
}

impl CircuitPolicy {
    /// How long to rest after `blame` when `failed_probes` have failed since it was last closed. No blame:
    /// it was slow.
    pub(super) fn cooldown(&self, blame: Option<Blame>, failed_probes: u32) -> Duration {
        let (base, cap) = self.bounds(blame);
        let growth = if blame.is_some_and(|blame| blame.permanent) { 2.0 } else { self.growth };
        let exponent = i32::try_from(failed_probes).unwrap_or(i32::MAX);
        let grown = base.as_secs_f64() * growth.powi(exponent);
        match Duration::try_from_secs_f64(grown) {
            Ok(grown) => grown.min(cap).max(base),
            // Too long to be a duration.
            Err(_) => cap.max(base),
        }
    }

    /// The longest rest that follows from these numbers alone: a reason's own cooldown, or a wait that
    /// somebody asked for, may be longer.
    pub fn longest(&self) -> Duration {
        self.cooldown.max(self.max_cooldown).max(self.permanent_cooldown).max(self.max_permanent)
    }

    /// The shortest rest after `blame`, and where its growth ends.
    pub(super) fn bounds(&self, blame: Option<Blame>) -> (Duration, Duration) {
        match blame {
            None => (self.cooldown, self.max_cooldown),
            Some(blame) if blame.permanent => {
                (blame.cooldown.max(self.permanent_cooldown), self.max_permanent)
            }
            Some(blame) => match self.first_rest {
                Some(first) if !blame.hinted && blame.weight != Weight::Proof => {
                    (first.min(blame.cooldown), blame.cooldown)
                }
                _ => (blame.cooldown, self.max_cooldown),
            },
        }
    }
}
