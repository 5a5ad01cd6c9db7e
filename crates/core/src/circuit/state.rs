//! The states of a circuit, its transitions and snapshots.

use std::{fmt, time::Duration};

use tokio::time::Instant;

use crate::Reason;

/// The state of a circuit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CircuitState {
    /// Every call passes, and is counted.
    Closed,
    /// Calls are refused until a probe may be made.
    Open,
    /// Probes pass, other calls are refused.
    HalfOpen,
    /// Forced open: calls are refused until a reset, except lone ones.
    ForcedOpen,
    /// Forced closed: every call passes and is counted, nothing opens it.
    ForcedClosed,
    /// Isolated: no call passes until a reset, not even a lone one.
    Isolated,
}

impl CircuitState {
    /// The name used in logs and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            CircuitState::Closed => "closed",
            CircuitState::Open => "open",
            CircuitState::HalfOpen => "half_open",
            CircuitState::ForcedOpen => "forced_open",
            CircuitState::ForcedClosed => "forced_closed",
            CircuitState::Isolated => "isolated",
        }
    }

    /// Open or half-open.
    pub(super) const fn is_resting(self) -> bool {
        matches!(self, CircuitState::Open | CircuitState::HalfOpen)
    }
}

impl fmt::Display for CircuitState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Why a circuit changed its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CircuitCause {
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
    /// By the handle.
    Manual,
    /// It rested when the process before this one ended.
    Restored,
    /// Another process has found it so.
    Shared,
}

impl CircuitCause {
    /// The name used in logs and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            CircuitCause::Consecutive => "consecutive",
            CircuitCause::FailureRate => "failure_rate",
            CircuitCause::SlowRate => "slow_rate",
            CircuitCause::Proof => "proof",
            CircuitCause::Rested => "rested",
            CircuitCause::Recovered => "recovered",
            CircuitCause::ProbeFailed => "probe_failed",
            CircuitCause::Manual => "manual",
            CircuitCause::Restored => "restored",
            CircuitCause::Shared => "shared",
        }
    }
}

impl fmt::Display for CircuitCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A change of a circuit's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Transition {
    /// The state it left.
    pub from: CircuitState,
    /// The state it is in.
    pub to: CircuitState,
    /// Why.
    pub cause: CircuitCause,
    /// The reason of the failure that opened it, if one did.
    pub reason: Option<Reason>,
    /// When.
    pub at: Instant,
    /// The end of the rest, when there is one.
    pub until: Option<Instant>,
    /// The generation that began: calls admitted before decide nothing any more. Entering
    /// half-open begins none.
    pub generation: u64,
}

/// The state and counts of one circuit.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct CircuitSnapshot {
    /// Its state.
    pub state: CircuitState,
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
    /// Hard failures in the latest row, by the order in which their calls began; at most
    /// [`MAX_ROW`](super::MAX_ROW).
    pub consecutive: u32,
    /// Probes that failed since it last was closed: how often the rest has grown.
    pub failed_probes: u32,
    /// Probes that succeeded since it became half-open.
    pub probe_successes: u32,
    /// Probes under way.
    pub probes: u32,
    /// Lone calls under way.
    pub lone: u32,
    /// Why it last opened, if a failure opened it.
    pub last_reason: Option<Reason>,
    /// How often it has opened or closed: calls of older generations decide nothing.
    pub generation: u64,
}

impl CircuitSnapshot {
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
pub(super) fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole as f64
}
