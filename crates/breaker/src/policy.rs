//! When a breaker opens, for how long, and how it finds out that it may close.

use std::time::Duration;

use steadfast_core::{
    KeyedPolicy, PERMANENT_COOLDOWN, PERMANENT_COOLDOWN_CAP, RecoveryTable,
    circuit::{self, CircuitPolicy, LonePolicy, SlowPolicy},
};

use crate::PolicyError;

/// When a breaker opens, for how long, and how it finds out that it may close; plain fields. Where failover selects
/// the target, and [`dead`](Self::dead) is set, only that, [`turn`](Self::turn), [`observe`](Self::observe) and
/// [`keys`](Self::keys) change anything.
///
/// ```
/// use std::time::Duration;
/// use steadfast_breaker::{BreakerPolicy, CircuitBreakerLayer};
///
/// let layer = CircuitBreakerLayer::new(BreakerPolicy {
///     consecutive: Some(3),
///     window: Duration::from_secs(30),
///     ..BreakerPolicy::default()
/// })?;
/// # let _: CircuitBreakerLayer = layer;
/// # Ok::<(), steadfast_breaker::PolicyError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct BreakerPolicy {
    /// Open after this many hard failures in a row; off: never for that. Throttling neither
    /// counts nor breaks the row. Calls stand in the order in which they began: one still under way
    /// breaks the row, since failures are known before successes. At most 64.
    ///
    /// Default 5: when every second call fails by chance, five in a row come once in 32 calls; at
    /// one in five, once in 3,000. So it is a provider that is down, not one that is shaky.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "failures", with = "steadfast_core::config::ZeroIsOff")
    )]
    pub consecutive: Option<u32>,
    /// The time over which the two rates below are taken; it slides in tenths.
    ///
    /// Default 60 s, as wide as the providers' own rate windows: a shorter one sees half of their
    /// throttling, a longer one remembers an incident that is over.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "window_s", with = "steadfast_core::config::Seconds")
    )]
    pub window: Duration,
    /// No rate is taken of fewer calls than this.
    ///
    /// Default 20: when one call in ten fails by chance, ten failures among twenty have a
    /// probability below 1 in 100,000.
    #[cfg_attr(feature = "serde", serde(rename = "minimum_calls"))]
    pub min_calls: u32,
    /// Open when this share of the calls in the window failed, throttling included; off: never
    /// for that. Looked at when a call fails, since a success is no moment to stop.
    ///
    /// Default 0.5: up to there a retry is more likely to help than not.
    #[cfg_attr(feature = "serde", serde(with = "steadfast_core::config::ZeroIsOff"))]
    pub failure_rate: Option<f64>,
    /// Open when too many calls are slow to begin. Off by default: it costs a clock reading a
    /// call, and what is slow depends on the model.
    pub slow: Option<SlowPolicy>,
    /// How long each reason rests its target when the provider gave no hint, and which reasons are
    /// permanent.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub table: RecoveryTable,
    /// How long to rest after a reason whose cell in the table is empty, and after slowness.
    ///
    /// Default 30 s, the table's own for timeouts and for what is unknown.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "cooldown_s", with = "steadfast_core::config::Seconds")
    )]
    pub cooldown: Duration,
    /// Where the doubling per failed probe ends. A reason's own cooldown or a provider's hint
    /// beyond it is kept, and not doubled.
    ///
    /// Default 15 min: a provider that recovers is found again within a quarter of an hour.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "max_cooldown_s", with = "steadfast_core::config::Seconds")
    )]
    pub max_cooldown: Duration,
    /// The shortest rest after a permanent failure. Default an hour, about how soon a person reacts
    /// to an alarm.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "permanent_cooldown_s", with = "steadfast_core::config::Seconds")
    )]
    pub permanent_cooldown: Duration,
    /// Where the doubling after permanent failures ends, and the longest hint obeyed, as far as the
    /// classifiers believe it. Default a day, so that a repair is noticed within one.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "max_permanent_s", with = "steadfast_core::config::Seconds")
    )]
    pub max_permanent: Duration,
    /// Probes under way at once. Default 1: to a provider that is coming back, each is load.
    pub probes: u32,
    /// Probes that must succeed before it closes. Default 1: a probe is a whole answer, read to
    /// its end.
    pub successes: u32,
    /// How long before the end of a rest a probe is let through; never earlier than half of the
    /// rest, and at its end when the provider asked for it. Zero: always at its end.
    ///
    /// Default 30 s, about what an answer takes, so that the verdict is there when the rest ends.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "probe_lead_s", with = "steadfast_core::config::Seconds")
    )]
    pub probe_lead: Duration,
    /// How long a probe may be under way. After that it is lost: the next call gets its permit, and
    /// its own outcome decides nothing.
    ///
    /// Default 600 s, the deadline of a whole call: whatever is still out then has nobody waiting
    /// for it. A limit below the longest answer of the model would lose every probe.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "probe_limit_s", with = "steadfast_core::config::Seconds")
    )]
    pub probe_limit: Duration,
    /// What an open breaker still lets through of a call that has nowhere else to go, by
    /// its [`alternatives`](steadfast_core::CallContext::alternatives); off: nothing.
    pub lone: Option<LonePolicy>,
    /// Where failover selects the target, that decides who is asked, and the breaker only paces
    /// repetitions: after this many failures in a row it opens, each call still asks the target once,
    /// and calls that ask it again take turns, one each [`turn`](Self::turn). Any content closes it. Off:
    /// it refuses such calls like all others.
    ///
    /// Default 20: a target that answers one call in five fails 20 times in a row once in 87 rows, and
    /// taking turns is no loss for it.
    #[cfg_attr(feature = "serde", serde(with = "steadfast_core::config::ZeroIsOff"))]
    pub dead: Option<u32>,
    /// The time from one repetition to the next while the breaker is open for [`dead`](Self::dead).
    ///
    /// Default 1 s: a provider that is back is noticed within a second, and one that is not has one
    /// call a second to refuse.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "turn_ms", with = "steadfast_core::config::Millis")
    )]
    pub turn: Duration,
    /// Judge and report, but refuse nothing.
    #[cfg_attr(feature = "serde", serde(rename = "observe_only"))]
    pub observe: bool,
    /// How many targets are remembered.
    pub keys: KeyedPolicy,
}

impl Default for BreakerPolicy {
    fn default() -> Self {
        Self {
            consecutive: Some(5),
            window: Duration::from_secs(60),
            min_calls: 20,
            failure_rate: Some(0.5),
            slow: None,
            table: RecoveryTable::default(),
            cooldown: Duration::from_secs(30),
            max_cooldown: Duration::from_secs(900),
            permanent_cooldown: PERMANENT_COOLDOWN,
            max_permanent: PERMANENT_COOLDOWN_CAP,
            probes: 1,
            successes: 1,
            probe_lead: Duration::from_secs(30),
            probe_limit: Duration::from_secs(600),
            lone: Some(LonePolicy::default()),
            dead: Some(20),
            turn: Duration::from_secs(1),
            observe: false,
            keys: KeyedPolicy::default(),
        }
    }
}

impl BreakerPolicy {
    /// The part that the state machine goes by.
    pub(crate) fn circuit(&self) -> CircuitPolicy {
        CircuitPolicy {
            consecutive: self.consecutive,
            second_witness: false,
            trusted_for: Duration::ZERO,
            window: self.window,
            min_calls: self.min_calls,
            failure_rate: self.failure_rate,
            slow: self.slow,
            content_is_success: false,
            cooldown: self.cooldown,
            first_rest: None,
            growth: 2.0,
            max_cooldown: self.max_cooldown,
            permanent_cooldown: self.permanent_cooldown,
            max_permanent: self.max_permanent,
            probe_lead: self.probe_lead,
            probe_limit: self.probe_limit,
            probes: self.probes,
            successes: self.successes,
            lone: self.lone,
            turns: None,
        }
    }

    /// What the state machine goes by, where failover selects the target (`routed`) or not.
    pub(crate) fn circuit_for(&self, routed: bool) -> CircuitPolicy {
        let turns = if routed { self.routed_circuit() } else { None };
        turns.unwrap_or_else(|| self.circuit())
    }

    /// The same for a target that failover selects; `None` when it is refused like all others.
    pub(crate) fn routed_circuit(&self) -> Option<CircuitPolicy> {
        let dead = self.dead?;
        Some(CircuitPolicy {
            consecutive: Some(dead),
            second_witness: true,
            failure_rate: None,
            slow: None,
            content_is_success: true,
            cooldown: self.turn,
            first_rest: Some(self.turn),
            growth: 1.0,
            lone: None,
            turns: Some(self.turn),
            ..self.circuit()
        })
    }

    /// Says what is wrong with it.
    ///
    /// # Errors
    ///
    /// When a field is zero that must not be, a share is no number or out of bounds, or a cap is
    /// below what it caps.
    pub fn validate(&self) -> Result<(), PolicyError> {
        let off = "write `None` to switch it off";
        let one = "write at least 1";
        let some = "write a duration above zero";
        let least_one = |field, value, instead| {
            if value == 0 { Err(PolicyError::Zero { field, instead }) } else { Ok(()) }
        };
        let longer = |field, value: Duration| {
            if value.is_zero() { Err(PolicyError::Zero { field, instead: some }) } else { Ok(()) }
        };
        let ordered = |low, low_value, high, high_value| {
            if low_value > high_value {
                Err(PolicyError::Inverted { low, low_value, high, high_value })
            } else {
                Ok(())
            }
        };

        least_one("consecutive", self.consecutive.unwrap_or(1), off)?;
        if let Some(row) = self.consecutive.filter(|row| *row > circuit::MAX_ROW) {
            return Err(PolicyError::Consecutive(row));
        }
        least_one("dead", self.dead.unwrap_or(1), off)?;
        if let Some(row) = self.dead.filter(|row| *row > circuit::MAX_ROW) {
            return Err(PolicyError::Consecutive(row));
        }
        longer("turn", self.turn)?;
        if self.window < Duration::from_millis(10) || self.window > Duration::from_secs(86_400) {
            return Err(PolicyError::Window(self.window));
        }
        least_one("min_calls", self.min_calls, one)?;
        if let Some(rate) = self.failure_rate {
            share("failure_rate", rate)?;
        }
        if let Some(slow) = self.slow {
            longer("slow.after", slow.after)?;
            share("slow.rate", slow.rate)?;
        }
        longer("cooldown", self.cooldown)?;
        ordered("cooldown", self.cooldown, "max_cooldown", self.max_cooldown)?;
        longer("permanent_cooldown", self.permanent_cooldown)?;
        ordered(
            "permanent_cooldown",
            self.permanent_cooldown,
            "max_permanent",
            self.max_permanent,
        )?;
        least_one("probes", self.probes, one)?;
        least_one("successes", self.successes, one)?;
        longer("probe_limit", self.probe_limit)?;
        if let Some(lone) = self.lone {
            least_one("lone.at_once", lone.at_once, one)?;
            longer("lone.every", lone.every)?;
            least_one("lone.successes", lone.successes, one)?;
        }
        if self.keys.capacity == 0 {
            return Err(PolicyError::Zero { field: "keys.capacity", instead: one });
        }
        longer("keys.idle", self.keys.idle)
    }
}

/// A share above zero: of zero, every call would be too many.
fn share(field: &'static str, value: f64) -> Result<(), PolicyError> {
    if value > 0.0 && value <= 1.0 {
        return Ok(());
    }
    Err(PolicyError::Share {
        field,
        value,
        bounds: "above 0 and at most 1",
        example: 0.5,
        percent: "one half",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_valid() {
        assert_eq!(BreakerPolicy::default().validate(), Ok(()));
    }

    #[test]
    fn an_invalid_policy_names_its_field() {
        type Change = fn(&mut BreakerPolicy);
        let table: [(&str, Change); 24] = [
            ("consecutive", |p| p.consecutive = Some(0)),
            ("consecutive", |p| p.consecutive = Some(65)),
            ("window", |p| p.window = Duration::ZERO),
            ("window", |p| p.window = Duration::from_millis(9)),
            ("window", |p| p.window = Duration::MAX),
            ("min_calls", |p| p.min_calls = 0),
            ("failure_rate", |p| p.failure_rate = Some(0.0)),
            ("failure_rate", |p| p.failure_rate = Some(-0.1)),
            ("failure_rate", |p| p.failure_rate = Some(1.01)),
            ("failure_rate", |p| p.failure_rate = Some(f64::NAN)),
            ("slow.after", |p| p.slow = Some(SlowPolicy { after: Duration::ZERO, rate: 0.5 })),
            ("slow.rate", |p| p.slow = Some(SlowPolicy { after: p.window, rate: f64::INFINITY })),
            ("cooldown", |p| p.cooldown = Duration::ZERO),
            ("max_cooldown", |p| p.max_cooldown = Duration::from_secs(29)),
            ("permanent_cooldown", |p| p.permanent_cooldown = Duration::ZERO),
            ("max_permanent", |p| p.max_permanent = Duration::from_secs(1)),
            ("probes", |p| p.probes = 0),
            ("successes", |p| p.successes = 0),
            ("probe_limit", |p| p.probe_limit = Duration::ZERO),
            ("lone.at_once", |p| {
                p.lone = Some(LonePolicy { at_once: 0, ..LonePolicy::default() });
            }),
            ("lone.every", |p| {
                p.lone = Some(LonePolicy { every: Duration::ZERO, ..LonePolicy::default() });
            }),
            ("lone.successes", |p| {
                p.lone = Some(LonePolicy { successes: 0, ..LonePolicy::default() });
            }),
            ("keys.capacity", |p| p.keys.capacity = 0),
            ("keys.idle", |p| p.keys.idle = Duration::ZERO),
        ];
        for (field, change) in table {
            let mut policy = BreakerPolicy::default();
            change(&mut policy);
            let error = policy.validate().expect_err(field).to_string();
            assert!(error.contains(&format!("`{field}`")), "{field}: {error}");
        }
    }

    #[test]
    fn what_can_be_switched_off_may_be() {
        let policy = BreakerPolicy {
            consecutive: None,
            failure_rate: None,
            lone: None,
            probe_lead: Duration::ZERO,
            ..BreakerPolicy::default()
        };
        assert_eq!(policy.validate(), Ok(()));
    }
}
