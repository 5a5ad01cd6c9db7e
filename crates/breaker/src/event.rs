//! What a breaker can be in, and what it tells of itself.

use std::{fmt, time::Duration};

use steadfast_core::Reason;
use tokio::time::Instant;

/// What one breaker does with calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum State {
    /// Every call passes, and is judged.
    Closed,
    /// Calls are refused until a probe may be made.
    Open,
    /// Probes pass, other calls are refused.
    HalfOpen,
    /// Held open by hand: refused until reset, except what the panic rule lets through.
    ForcedOpen,
    /// Held closed by hand: every call passes and is counted, nothing opens it.
    ForcedClosed,
    /// Taken out by hand: nothing passes until reset, not even by the panic rule.
    Isolated,
}

impl State {
    /// The name used in logs and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            State::Closed => "closed",
            State::Open => "open",
            State::HalfOpen => "half_open",
            State::ForcedOpen => "forced_open",
            State::ForcedClosed => "forced_closed",
            State::Isolated => "isolated",
        }
    }

    /// Whether calls pass without being asked for more.
    pub(crate) const fn lets_all_pass(self) -> bool {
        matches!(self, State::Closed | State::ForcedClosed)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Why a breaker changed its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Cause {
    /// Too many hard failures in a row.
    Consecutive,
    /// Too large a share of failures.
    FailureRate,
    /// Too large a share of calls that were slow to begin.
    SlowRate,
    /// One failure that was proof by itself.
    Proof,
    /// Its rest is about to end, and a call came that could be the probe.
    Rested,
    /// Enough probes succeeded.
    Recovered,
    /// A probe failed.
    ProbeFailed,
    /// Somebody did it by the handle.
    Manual,
}

impl Cause {
    /// The name used in logs and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Cause::Consecutive => "consecutive",
            Cause::FailureRate => "failure_rate",
            Cause::SlowRate => "slow_rate",
            Cause::Proof => "proof",
            Cause::Rested => "rested",
            Cause::Recovered => "recovered",
            Cause::ProbeFailed => "probe_failed",
            Cause::Manual => "manual",
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A change of one breaker's state.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Transition<K> {
    /// Whose breaker.
    pub key: K,
    /// The state it left.
    pub from: State,
    /// The state it is in.
    pub to: State,
    /// Why.
    pub cause: Cause,
    /// The reason of the failure that decided it, if one did.
    pub reason: Option<Reason>,
    /// When.
    pub at: Instant,
    /// The end of the rest, when there is one.
    pub until: Option<Instant>,
    /// The generation that began: calls admitted before decide nothing any more. Entering
    /// half-open begins none.
    pub generation: u64,
}

/// One breaker as it stands.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Snapshot<K> {
    /// Whose breaker.
    pub key: K,
    /// What it does with calls.
    pub state: State,
    /// Since when.
    pub since: Instant,
    /// The end of the rest, when open or half-open.
    pub until: Option<Instant>,
    /// From when on a probe is let through, when open or half-open.
    pub probe_from: Option<Instant>,
    /// Calls in the window that count, of the present generation or the one that ended in its
    /// opening.
    pub calls: u64,
    /// Those of them that failed.
    pub failures: u64,
    /// Those of them that were slow to begin.
    pub slow: u64,
    /// Hard failures since the last success.
    pub consecutive: u32,
    /// Probes that failed since it last was closed: how often the rest was doubled.
    pub failed_probes: u32,
    /// Probes that succeeded since it became half-open.
    pub probe_successes: u32,
    /// Probes under way.
    pub probes: u32,
    /// Calls under way that the panic rule let through.
    pub lone: u32,
    /// Calls refused since the breaker was made, observed ones included.
    pub refused: u64,
    /// Why it last opened, as far as a failure did it.
    pub last_reason: Option<Reason>,
    /// Counts the times that older calls were declared stragglers.
    pub generation: u64,
}

impl<K> Snapshot<K> {
    /// The share of calls that failed, when there were any.
    pub fn failure_rate(&self) -> Option<f64> {
        (self.calls > 0).then(|| ratio(self.failures, self.calls))
    }

    /// The share of calls that were slow to begin, when there were any.
    pub fn slow_rate(&self) -> Option<f64> {
        (self.calls > 0).then(|| ratio(self.slow, self.calls))
    }

    /// How long the rest still takes at `now`; zero when there is none.
    pub fn remaining(&self, now: Instant) -> Duration {
        self.until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now))
    }
}

/// Exact up to 2^53 calls in a window.
#[expect(clippy::cast_precision_loss, reason = "a window does not hold 2^53 calls")]
pub(crate) fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole as f64
}
