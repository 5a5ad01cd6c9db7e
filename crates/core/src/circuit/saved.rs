//! What of a circuit outlives its process.

use std::time::Duration;

use tokio::time::Instant;

use super::{Circuit, CircuitCause, CircuitPolicy, CircuitState, Moment, Rest, Row, Transition};
use crate::{
    Reason,
    time::{WallClock, later, millis},
};

/// The unit of what is saved.
const MILLISECOND: Duration = Duration::from_millis(1);

/// The rest of a circuit as plain data, for a file: what [`Circuit::save`] makes and [`Circuit::restore`] goes on
/// with. Times are wall time, in milliseconds since 1970.
///
/// Whatever is in it, restoring it rests a circuit no longer than the rest was long, and no longer than the
/// [longest](CircuitPolicy::longest) of its policy. The rests of single witnesses, counts in windows and forced states
/// are not kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default))]
#[non_exhaustive]
pub struct SavedCircuit {
    /// It is half-open: probes may be made.
    pub half_open: bool,
    /// When the rest began.
    pub since_ms: u64,
    /// When it ends.
    pub until_ms: u64,
    /// From when on a probe may be made.
    pub probe_from_ms: u64,
    /// When the last lone call was let through, or the last repetition had its turn.
    pub lone_ms: u64,
    /// The provider, or an operator, asked for exactly this time.
    pub hinted: bool,
    /// A probe before its end would be refused.
    pub unprobed: bool,
    /// It follows a failure that does not pass by itself.
    pub permanent: bool,
    /// Asking before the probe is in vain.
    pub refuses: bool,
    /// Why it opened, if a failure opened it.
    pub reason: Option<Reason>,
    /// Probes that succeeded in this rest.
    pub successes: u32,
    /// Lone calls that succeeded since one failed.
    pub lone_successes: u32,
    /// Probes that failed since it was last closed: how often the rest has grown.
    pub failed_probes: u32,
    /// Failures in a row.
    pub row: u32,
}

/// What came of restoring saved state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Restored {
    /// Rests that go on.
    pub restored: usize,
    /// Rests that are over.
    pub expired: usize,
    /// Those of keys that nobody wants any more.
    pub unknown: usize,
}

impl SavedCircuit {
    /// Whether a circuit of `policy` would rest by it at that moment.
    ///
    /// Where repetitions take turns ([`CircuitPolicy::turns`]) a circuit stays open until a call has content, however
    /// short its rests are: it is believed for [`CircuitPolicy::max_cooldown`] after its last turn.
    pub fn is_live(&self, policy: &CircuitPolicy, clock: WallClock) -> bool {
        let believed = policy.turns.is_some() && clock.unix_ms() < self.live_until_ms(policy);
        believed || self.until(policy, clock) > clock.at()
    }

    /// The end of the rest, which is in the past where it is over.
    fn until(&self, policy: &CircuitPolicy, clock: WallClock) -> Instant {
        let whole = Duration::from_millis(self.until_ms.saturating_sub(self.since_ms));
        // A clock that was set back adds to what is left, and a file can say anything.
        let latest = later(clock.at(), whole.min(policy.longest()));
        clock.to_instant(self.until_ms).min(latest)
    }

    /// Until when [it is believed](Self::is_live), in milliseconds since 1970.
    pub fn live_until_ms(&self, policy: &CircuitPolicy) -> u64 {
        match policy.turns {
            Some(_) => self.until_ms.max(self.lone_ms).saturating_add(millis(policy.max_cooldown)),
            None => self.until_ms,
        }
    }

    fn rest(&self, policy: &CircuitPolicy, clock: WallClock) -> Rest {
        let now = clock.at();
        let since = clock.to_instant(self.since_ms).min(now);
        let until = self.until(policy, clock).max(since);
        Rest {
            since,
            until,
            probe_from: clock.to_instant(self.probe_from_ms).clamp(since, until),
            hinted: self.hinted,
            unprobed: self.unprobed,
            permanent: self.permanent,
            refuses: self.refuses,
            successes: self.successes,
            streak: self.lone_successes,
            last_lone: clock.to_instant(self.lone_ms).min(now),
        }
    }
}

impl Circuit {
    /// What another process needs to go on with its rest; `None` while it does not rest. What is forced is not
    /// kept: an operator's order holds in the process that it was given to.
    pub fn save(&self, clock: WallClock) -> Option<SavedCircuit> {
        if !self.state.is_resting() {
            return None;
        }
        let rest = &self.rest;
        Some(SavedCircuit {
            half_open: self.state == CircuitState::HalfOpen,
            since_ms: clock.to_unix_ms(rest.since),
            until_ms: end_ms(clock, rest.until),
            probe_from_ms: end_ms(clock, rest.probe_from),
            lone_ms: clock.to_unix_ms(rest.last_lone),
            hinted: rest.hinted,
            unprobed: rest.unprobed,
            permanent: rest.permanent,
            refuses: rest.refuses,
            reason: self.last_reason,
            successes: rest.successes,
            lone_successes: rest.streak,
            failed_probes: self.failed_probes,
            row: self.row.count(),
        })
    }

    /// Goes on with a saved rest, as if the process had not changed: `order` calls have begun here so far, and decide
    /// nothing. `None`, and no change, when [the rest is over](SavedCircuit::is_live) or this circuit is not
    /// closed. Probes that were under way were lost with their process; the next call gets their permit.
    pub fn restore(
        &mut self,
        saved: &SavedCircuit,
        clock: WallClock,
        order: u64,
    ) -> Option<Transition> {
        if self.state != CircuitState::Closed || !saved.is_live(&self.policy, clock) {
            return None;
        }
        Some(self.go_on(saved, clock, order, CircuitCause::Restored))
    }

    /// Rests as another process has found, where that is longer than what is known here; so it is the same in whatever
    /// order processes hear of each other. What is forced is left alone. The transition, when it was closed.
    pub fn merge(
        &mut self,
        saved: &SavedCircuit,
        clock: WallClock,
        order: u64,
    ) -> Option<Transition> {
        if !saved.is_live(&self.policy, clock) {
            return None;
        }
        if self.state == CircuitState::Closed {
            return Some(self.go_on(saved, clock, order, CircuitCause::Shared));
        }
        // Its own is in whole milliseconds, too, when it comes back.
        let longer = saved.until(&self.policy, clock) > later(self.rest.until, MILLISECOND);
        if self.state.is_resting() && longer {
            let last_lone = self.rest.last_lone;
            self.rest = Rest { last_lone, ..saved.rest(&self.policy, clock) };
            self.last_reason = saved.reason;
            self.failed_probes = self.failed_probes.max(saved.failed_probes);
        }
        None
    }

    /// Another process has found at `over` that what had begun by then is over: it closes, where it rests since
    /// before. What is forced is left alone.
    pub fn take_back(&mut self, now: Moment, over: Instant) -> Option<Transition> {
        let was_over = self.state.is_resting() && self.rest.since <= over;
        was_over.then(|| self.close(now, CircuitCause::Shared))
    }

    /// Rests as it is saved; it was closed.
    fn go_on(
        &mut self,
        saved: &SavedCircuit,
        clock: WallClock,
        order: u64,
        cause: CircuitCause,
    ) -> Transition {
        let now = clock.at();
        self.rest = saved.rest(&self.policy, clock);
        self.last_reason = saved.reason;
        self.failed_probes = saved.failed_probes;
        self.row = Row::failing(order, saved.row);
        self.new_generation(Moment { at: now, order });
        let state = if saved.half_open { CircuitState::HalfOpen } else { CircuitState::Open };
        self.enter(state, cause, now)
    }
}

/// In whole milliseconds, and never earlier: a provider may have asked for exactly that time.
fn end_ms(clock: WallClock, end: Instant) -> u64 {
    clock.to_unix_ms(later(end, Duration::from_nanos(999_999)))
}
