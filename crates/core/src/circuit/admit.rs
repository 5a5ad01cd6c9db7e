//! Which calls pass.

use std::time::Duration;

use tokio::time::Instant;

use super::{Admission, Circuit, CircuitCause, CircuitState, Moment, Refused};
use crate::{Permit, PermitKind, Witness, time::later};

/// When to try again while a probe is under way and the rest is over.
const SOON: Duration = Duration::from_secs(1);

/// A probe or lone call whose end is awaited.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    pub(super) order: u64,
    since: Instant,
    /// Its first content has counted as its success.
    pub(super) counted: bool,
}

impl Circuit {
    /// Checks whether the call that began as the `now.order`th may pass; `lone` when it has no other
    /// target.
    #[inline]
    pub fn admit(&mut self, now: Moment, lone: bool) -> Admission {
        if self.passes_all() {
            let result = Ok(Permit::new(PermitKind::Ordinary, now.order));
            return Admission { result, transition: None, lost: 0 };
        }
        self.admit_some(now, lone, true)
    }

    /// The same where another process has the probe: this call is none.
    pub fn admit_unprobed(&mut self, now: Moment, lone: bool) -> Admission {
        if self.passes_all() { self.admit(now, lone) } else { self.admit_some(now, lone, false) }
    }

    /// Whether the next call that is admitted would be a probe.
    pub fn is_probe_due(&self, now: Instant) -> bool {
        self.state.is_resting()
            && now >= self.rest.probe_from
            && self.under_way(&self.probes, now) < self.policy.probes
    }

    /// Checks whether the call is one of the few that may pass, by a probe's permit among others.
    fn admit_some(&mut self, now: Moment, lone: bool, probes: bool) -> Admission {
        let lost = self.give_up_lost(now.at);
        let rested = self.state == CircuitState::Open && now.at >= self.rest.probe_from;
        let transition = (rested && probes)
            .then(|| self.enter(CircuitState::HalfOpen, CircuitCause::Rested, now.at));
        let probe = if probes { self.try_probe(now) } else { None };
        let result = if let Some(permit) = probe {
            Ok(permit)
        } else if lone && self.lone_wait(now.at).is_some_and(|wait| wait.is_zero()) {
            self.lone.push(Pending::new(now));
            self.rest.last_lone = now.at;
            Ok(Permit::new(PermitKind::Lone, now.order))
        } else {
            Err(Refused { wait: self.wait(now.at, lone), because: self.last_reason })
        };
        Admission { result, transition, lost }
    }

    /// A probe's permit for the call that began as the `now.order`th, when a probe is due and fewer than
    /// [`CircuitPolicy::probes`](super::CircuitPolicy::probes) are under way: for layers that select one
    /// of several circuits first.
    pub fn acquire_probe(&mut self, now: Moment) -> Option<Permit> {
        self.admit_some(now, false, true).result.ok()
    }

    /// Checks whether the call that began as the `now.order`th may pass where an open circuit refuses
    /// nobody for good: the first attempt of a call at its target (`first`) always passes, and those
    /// that repeat it take turns, by [`CircuitPolicy::turns`](super::CircuitPolicy::turns). Any success
    /// closes the circuit, and then all pass.
    ///
    /// Where only one witness has failed so often, that one takes turns with itself.
    pub fn take_turn(&mut self, now: Moment, first: bool, witness: Witness) -> Admission {
        self.own.forget(now.at);
        let open = self.state.is_resting() && !first;
        let forced = matches!(self.state, CircuitState::ForcedOpen | CircuitState::Isolated);
        let every = self.policy.turns.unwrap_or_default();
        let dead = self.policy.consecutive.unwrap_or(u32::MAX);
        let turn = if open {
            later(self.rest.last_lone, every).saturating_duration_since(now.at)
        } else if first {
            Duration::ZERO
        } else {
            self.own.turn(witness, now.at, dead, every)
        };
        let result = if forced {
            Err(Refused { wait: self.wait(now.at, false), because: self.last_reason })
        } else if !turn.is_zero() {
            Err(Refused { wait: turn, because: self.last_reason })
        } else {
            if open {
                self.rest.last_lone = now.at;
            }
            let permit = Permit { witness, ..Permit::new(PermitKind::Ordinary, now.order) };
            self.began(&permit);
            Ok(permit)
        };
        Admission { result, transition: None, lost: 0 }
    }

    #[inline]
    fn passes_all(&self) -> bool {
        matches!(self.state, CircuitState::Closed | CircuitState::ForcedClosed)
    }

    fn try_probe(&mut self, now: Moment) -> Option<Permit> {
        let free =
            self.state == CircuitState::HalfOpen && self.probes.len() < self.policy.probes as usize;
        free.then(|| {
            self.probes.push(Pending::new(now));
            Permit::new(PermitKind::Probe, now.order)
        })
    }

    /// Releases the permits of probes and lone calls that have not ended within the limit. They decide
    /// nothing if they end later.
    fn give_up_lost(&mut self, now: Instant) -> usize {
        let limit = self.policy.probe_limit;
        let before = self.probes.len() + self.lone.len();
        self.probes.retain(|call| !call.is_lost(now, limit));
        self.lone.retain(|call| !call.is_lost(now, limit));
        before - self.probes.len() - self.lone.len()
    }

    pub(super) fn under_way(&self, calls: &[Pending], now: Instant) -> u32 {
        let limit = self.policy.probe_limit;
        let count = calls.iter().filter(|call| !call.is_lost(now, limit)).count();
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    /// How long until a lone call is let through; `None` when none ever is.
    fn lone_wait(&self, now: Instant) -> Option<Duration> {
        let policy = self.policy.lone.filter(|_| self.state != CircuitState::Isolated)?;
        let next = later(self.rest.last_lone, policy.every).saturating_duration_since(now);
        // The end of the others is not known: try again after the usual time.
        let full = self.lone.len() >= policy.at_once as usize;
        Some(if full { next.max(policy.every) } else { next })
    }

    /// When a refused call should try again.
    fn wait(&self, now: Instant, lone: bool) -> Duration {
        let rest = if self.state.is_resting() {
            let (probe_from, until) = (self.rest.probe_from, self.rest.until);
            let next = if now < probe_from { probe_from } else { until };
            let left = next.saturating_duration_since(now);
            if left.is_zero() { SOON } else { left }
        } else {
            // It lasts until a reset, so the time is not known: the usual rest.
            self.policy.cooldown
        };
        match self.lone_wait(now).filter(|_| lone) {
            Some(wait) => rest.min(wait),
            None => rest,
        }
    }
}

impl Pending {
    fn new(now: Moment) -> Self {
        Self { order: now.order, since: now.at, counted: false }
    }

    fn is_lost(&self, now: Instant, limit: Duration) -> bool {
        now.saturating_duration_since(self.since) >= limit
    }
}
