//! Closed, open, half-open: the state machine of everything that cools down after failures.
//!
//! A [`Circuit`] is pure. It takes the time and an event, and returns a decision; locks, clocks, logs
//! and leases belong to the layer around it. The circuit breaker has one for each key, failover one for
//! each provider, model and credential, compaction one for each tenant's summariser. They differ only in their
//! [`CircuitPolicy`].
//!
//! * **Closed**: calls pass and are counted. It opens after hard failures in a row, a share of failures
//!   or of slow calls in a window, or one failure that is proof by itself.
//! * **Open**: it *rests* (cools down) until a time that only ever moves later. Shortly before that
//!   time the next call is let through as a *probe*.
//! * **Half-open**: a probe is under way. If it succeeds the circuit closes; if it fails, it rests
//!   again, for longer.
//!
//! A call that passes gets a [`Permit`] with its position in the order of calls. A call that began
//! before the circuit last opened or closed decides nothing, however it ends: so a late failure of an
//! outage does not end the recovery from it. Failures in a row are those of calls that began one after
//! the other, whenever they ended: failures are known before the successes of their time.

mod admit;
mod outcome;
mod own;
mod policy;
mod rest;
mod row;
mod saved;
mod state;
mod window;

use std::time::Duration;

use tokio::time::Instant;

use self::{admit::Pending, own::Own, rest::Rest, row::Row};
pub use self::{
    policy::{CircuitPolicy, LonePolicy, SlowPolicy},
    row::MAX_ROW,
    saved::{Restored, SavedCircuit},
    state::{CircuitCause, CircuitSnapshot, CircuitState, Transition},
    window::{Counts, SlidingWindow},
};
use crate::{Permit, PermitKind, Reason, Witness, time::later};

/// One circuit; see the [module](self).
#[derive(Clone, Debug)]
pub struct Circuit {
    policy: CircuitPolicy,
    state: CircuitState,
    since: Instant,
    /// Calls that began up to this position in the order decide nothing any more.
    epoch: u64,
    /// How often it has opened or closed.
    generation: u64,
    window: SlidingWindow,
    row: Row,
    /// Failures that rest the target for their own witness alone.
    own: Own,
    last_success: Option<Instant>,
    failed_probes: u32,
    last_reason: Option<Reason>,
    /// The current or the last rest; meaningless before the first.
    rest: Rest,
    probes: Vec<Pending>,
    lone: Vec<Pending>,
}

/// A point in time, and in the order of calls.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// The time.
    pub at: Instant,
    /// How many calls have begun so far.
    pub order: u64,
}

/// What the outcome of one call means for its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CircuitVerdict {
    /// It works.
    Success,
    /// It failed.
    Failure(Blame),
    /// Nothing: the caller's fault, a cancelled call, a refusal of our own.
    Nothing,
}

impl CircuitVerdict {
    /// The same, where a failure is no proof by itself: for circuits below something that knows better.
    #[must_use]
    pub fn without_proof(self) -> Self {
        match self {
            Self::Failure(blame) if blame.weight == Weight::Proof => {
                Self::Failure(Blame { weight: Weight::Hard, ..blame })
            }
            verdict => verdict,
        }
    }
}

/// A failure that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blame {
    /// How much it proves.
    pub weight: Weight,
    /// Why it failed.
    pub reason: Reason,
    /// How long to rest after it, at least; zero counts it and rests nothing.
    pub cooldown: Duration,
    /// The provider asked for exactly that time.
    pub hinted: bool,
    /// It does not pass by itself.
    pub permanent: bool,
}

/// How much one failure counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    /// The target works and has no capacity: counts in the rate, not in the row.
    Soft,
    /// Counts in both.
    Hard,
    /// One is enough: the next call succeeds only after a person has changed something.
    Proof,
}

/// Whether a call may pass, and how the check changed the circuit.
#[derive(Clone, Copy, Debug)]
pub struct Admission {
    /// Whether it may pass. The [kind](Permit::kind) of the permit is the reason: an ordinary call, a
    /// probe, or a lone call, which has no other target.
    pub result: Result<Permit, Refused>,
    /// The circuit became half-open.
    pub transition: Option<Transition>,
    /// Probes and lone calls that were given up after their limit.
    pub lost: usize,
}

/// The [evidence](crate::Failure::evidence) of a refusal that is about a repetition alone: a first attempt
/// would pass.
pub const OUT_OF_TURN: &str = "breaker:turn";

/// A call that may not pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// When to try again.
    pub wait: Duration,
    /// Why the circuit last opened.
    pub because: Option<Reason>,
}

/// Why and until when a circuit rests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Resting {
    /// Until when.
    pub until: Instant,
    /// From when on a probe may be made.
    pub probe_from: Instant,
    /// Why it opened.
    pub reason: Option<Reason>,
    /// The provider, or an operator, asked for exactly this time.
    pub hinted: bool,
    /// Asking before the probe is in vain: after a failure that is proof by itself, or by an operator.
    pub refuses: bool,
}

impl Circuit {
    /// A closed circuit.
    pub fn new(mut policy: CircuitPolicy, now: Instant) -> Self {
        policy.consecutive = policy.consecutive.map(|row| row.min(MAX_ROW));
        Self {
            policy,
            state: CircuitState::Closed,
            since: now,
            epoch: 0,
            generation: 0,
            window: SlidingWindow::new(policy.window, now),
            row: Row::default(),
            own: Own::default(),
            last_success: None,
            failed_probes: 0,
            last_reason: None,
            rest: Rest::none(now),
            probes: Vec::new(),
            lone: Vec::new(),
        }
    }

    /// Goes by another policy from now on; what has been counted is kept, except in a window of another
    /// length.
    pub fn set_policy(&mut self, policy: CircuitPolicy, now: Instant) {
        if policy.window != self.policy.window {
            self.window = SlidingWindow::new(policy.window, now);
        }
        self.policy = policy;
        self.policy.consecutive = policy.consecutive.map(|row| row.min(MAX_ROW));
    }

    /// The policy in force.
    pub fn policy(&self) -> &CircuitPolicy {
        &self.policy
    }

    /// Whether it is not closed, or the last calls failed: a success would change more than counts.
    pub fn is_degraded(&self, now: Instant) -> bool {
        self.state != CircuitState::Closed || self.row.is_degraded() || !self.own.is_empty(now)
    }

    /// Whether a probe is under way.
    pub fn is_probing(&self, now: Instant) -> bool {
        self.under_way(&self.probes, now) > 0
    }

    /// Why and until when it rests, while it does.
    pub fn resting(&self) -> Option<Resting> {
        self.state.is_resting().then_some(Resting {
            until: self.rest.until,
            probe_from: self.rest.probe_from,
            reason: self.last_reason,
            hinted: self.rest.hinted,
            refuses: self.rest.refuses,
        })
    }

    /// The same for one witness, for whom alone it may be resting.
    pub fn resting_for(&self, witness: Witness, now: Instant) -> Option<Resting> {
        let own = || self.own.resting(witness, now).filter(|_| self.state == CircuitState::Closed);
        self.resting().or_else(own)
    }

    /// Notes that a call has begun, so that failures on both sides of it are no row of its witness. Needs
    /// to be called only while the circuit [is degraded](Self::is_degraded).
    pub fn began(&mut self, permit: &Permit) {
        self.own.began(permit.witness, permit.order);
    }

    /// Whether the end of that call may decide anything: it began after the last change, or is a probe
    /// or lone call that has not been given up.
    pub fn is_current(&self, permit: &Permit) -> bool {
        let awaited = |calls: &[Pending]| calls.iter().any(|call| call.order == permit.order);
        match permit.kind {
            PermitKind::Ordinary => permit.order > self.epoch,
            PermitKind::Probe => awaited(&self.probes),
            PermitKind::Lone => awaited(&self.lone),
        }
    }

    /// Whether it is as an operator wants it.
    pub fn is_forced(&self) -> bool {
        !self.state.is_resting() && self.state != CircuitState::Closed
    }

    /// Whether the last failure that opened it was of the kind that does not pass by itself.
    pub fn is_permanent(&self) -> bool {
        self.state.is_resting() && self.rest.permanent
    }

    /// Whether it has state that must not be evicted.
    pub fn is_worth_keeping(&self, now: Instant) -> bool {
        match self.state {
            CircuitState::Closed => false,
            CircuitState::Open | CircuitState::HalfOpen => now < self.rest.until,
            CircuitState::ForcedOpen | CircuitState::ForcedClosed | CircuitState::Isolated => true,
        }
    }

    /// Opens for `cooldown` as a failure with that hint would, or rests longer if it is open
    /// already. Leaves alone what is forced.
    pub fn trip(&mut self, now: Moment, reason: Reason, cooldown: Duration) -> Option<Transition> {
        let blame =
            Blame { weight: Weight::Proof, reason, cooldown, hinted: true, permanent: false };
        match self.state {
            CircuitState::Closed => {
                let until = later(now.at, cooldown);
                Some(self.open(now, CircuitCause::Manual, Some(blame), until))
            }
            CircuitState::Open | CircuitState::HalfOpen => {
                self.rest.lengthen(now.at, cooldown, true, self.policy.probe_lead);
                self.rest.refuses = true;
                None
            }
            CircuitState::ForcedOpen | CircuitState::ForcedClosed | CircuitState::Isolated => None,
        }
    }

    /// It can not be called for `wait`, without a failure: rests at least that long, counts nothing,
    /// and calls under way decide as before.
    pub fn rest(&mut self, now: Instant, wait: Duration, reason: Reason) {
        if wait.is_zero() || !(self.state.is_resting() || self.state == CircuitState::Closed) {
            return;
        }
        if self.resting().is_none() {
            self.rest = Rest::none(now);
            self.last_reason = Some(reason);
        }
        self.rest.lengthen_unprobed(now, wait);
        if self.state == CircuitState::Closed {
            self.enter(CircuitState::Open, CircuitCause::Manual, now);
        }
    }

    /// Forces it open, closed or isolated until it is [reset](Self::reset).
    pub fn force(&mut self, now: Moment, state: CircuitState) -> Option<Transition> {
        if self.state == state || state.is_resting() || state == CircuitState::Closed {
            return None;
        }
        let from = self.close(now, CircuitCause::Manual).from;
        self.rest.last_lone = now.at;
        Some(Transition { from, ..self.enter(state, CircuitCause::Manual, now.at) })
    }

    /// Closes it, with all counts at zero; also ends a forced state.
    pub fn reset(&mut self, now: Moment) -> Option<Transition> {
        let changes = self.state != CircuitState::Closed;
        let transition = self.close(now, CircuitCause::Manual);
        self.own.clear();
        changes.then_some(transition)
    }

    /// Its state and counts.
    pub fn snapshot(&mut self, now: Instant) -> CircuitSnapshot {
        let counts = self.window.counts(now);
        let resting = self.state.is_resting();
        CircuitSnapshot {
            state: self.state,
            since: self.since,
            until: resting.then_some(self.rest.until),
            probe_from: resting.then_some(self.rest.probe_from),
            calls: counts.calls,
            failures: counts.failures,
            slow: counts.slow,
            consecutive: self.row.count(),
            failed_probes: self.failed_probes,
            probe_successes: if resting { self.rest.successes } else { 0 },
            probes: self.under_way(&self.probes, now),
            lone: self.under_way(&self.lone, now),
            last_reason: self.last_reason,
            generation: self.generation,
        }
    }

    /// Opens after `blame`, or after slowness; again if it is open already, and then for longer.
    fn open_after(
        &mut self,
        now: Moment,
        cause: CircuitCause,
        blame: Option<Blame>,
    ) -> Option<Transition> {
        if self.state.is_resting() {
            let permanent = blame.is_some_and(|blame| blame.permanent);
            // Failed probes of one kind do not count for the other.
            self.failed_probes = match permanent == self.rest.permanent {
                true => self.failed_probes.saturating_add(1),
                false => 0,
            };
        }
        let cooldown = self.policy.cooldown(blame, self.failed_probes);
        if cooldown.is_zero() {
            return None;
        }
        let mut until = later(now.at, cooldown);
        if self.state.is_resting() && until < self.rest.until {
            // A shorter rest never overwrites a longer one.
            until = self.rest.until;
        }
        Some(self.open(now, cause, blame, until))
    }

    fn open(
        &mut self,
        now: Moment,
        cause: CircuitCause,
        blame: Option<Blame>,
        until: Instant,
    ) -> Transition {
        let kept = self.state.is_resting() && until == self.rest.until;
        let hinted = if kept { self.rest.hinted } else { blame.is_some_and(|blame| blame.hinted) };
        self.rest = Rest::new(now.at, until, hinted, self.policy.probe_lead);
        self.rest.permanent = blame.is_some_and(|blame| blame.permanent);
        self.rest.refuses = blame.is_some_and(|blame| blame.weight == Weight::Proof);
        self.last_reason = blame.map(|blame| blame.reason);
        self.new_generation(now);
        self.enter(CircuitState::Open, cause, now.at)
    }

    fn close(&mut self, now: Moment, cause: CircuitCause) -> Transition {
        self.new_generation(now);
        self.window.clear();
        self.row = Row::after(now.order);
        self.failed_probes = 0;
        self.enter(CircuitState::Closed, cause, now.at)
    }

    fn enter(&mut self, to: CircuitState, cause: CircuitCause, now: Instant) -> Transition {
        let from = std::mem::replace(&mut self.state, to);
        self.since = now;
        Transition {
            from,
            to,
            cause,
            reason: self.last_reason.filter(|_| to == CircuitState::Open),
            at: now,
            until: to.is_resting().then_some(self.rest.until),
            generation: self.generation,
        }
    }

    /// Calls under way decide nothing from now on.
    fn new_generation(&mut self, now: Moment) {
        self.generation += 1;
        self.epoch = now.order;
        self.probes.clear();
        self.lone.clear();
    }
}
