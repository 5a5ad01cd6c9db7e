//! Closed, open, half-open: the state machine of everything that cools down after failures.
//!
//! A [`Circuit`] is pure. It takes the time and an event, and returns a decision; locks, clocks, logs
//! and leases belong to the layer around it. The circuit breaker has one for each key, failover one for
//! each provider, model and credential, compaction one for its summariser. They differ only in their
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
//! outage does not end the recovery from it.

mod policy;
mod rest;
mod state;
mod window;

use std::time::Duration;

use tokio::time::Instant;

pub use self::{
    policy::{CircuitPolicy, LonePolicy, Readmission, SlowPolicy},
    state::{CircuitCause, CircuitSnapshot, CircuitState, Transition},
};
use self::{rest::Rest, window::Window};
use crate::{Permit, PermitKind, Reason};

/// When to try again while a probe is under way and the rest is over.
const SOON: Duration = Duration::from_secs(1);

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
    window: Window,
    row: Row,
    failed_probes: u32,
    last_reason: Option<Reason>,
    /// The current or the last rest; meaningless before the first.
    rest: Rest,
    probes: Vec<Pending>,
    lone: Vec<Pending>,
}

/// Hard failures since the last success.
#[derive(Clone, Copy, Debug, Default)]
struct Row {
    failures: u32,
    /// The witness of the first of them, and whether another witness made a later one.
    witness: Option<u64>,
    corroborated: bool,
}

/// A probe or lone call whose end is awaited.
#[derive(Clone, Copy, Debug)]
struct Pending {
    order: u64,
    since: Instant,
    /// Its first content has counted as its success.
    counted: bool,
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
}

impl Circuit {
    /// A closed circuit.
    pub fn new(policy: CircuitPolicy, now: Instant) -> Self {
        Self {
            policy,
            state: CircuitState::Closed,
            since: now,
            epoch: 0,
            generation: 0,
            window: Window::new(policy.window, now),
            row: Row::default(),
            failed_probes: 0,
            last_reason: None,
            rest: Rest::none(now),
            probes: Vec::new(),
            lone: Vec::new(),
        }
    }

    /// The policy in force.
    pub fn policy(&self) -> &CircuitPolicy {
        &self.policy
    }

    /// Whether it is not closed, or the last calls failed: a success would change more than counts.
    pub fn is_degraded(&self) -> bool {
        self.state != CircuitState::Closed || self.row.failures > 0
    }

    /// Whether a probe is under way.
    pub fn is_probing(&self, now: Instant) -> bool {
        self.under_way(&self.probes, now) > 0
    }

    /// Why and until when it rests, while it does.
    pub fn resting(&self, now: Instant) -> Option<Resting> {
        let is_resting = self.state.is_resting()
            && (now < self.rest.until || self.policy.recovery == Readmission::Probes);
        is_resting.then_some(Resting {
            until: self.rest.until,
            probe_from: self.rest.probe_from,
            reason: self.last_reason,
            hinted: self.rest.hinted,
        })
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

    /// Checks whether the call that began as the `now.order`th may pass; `lone` when it has no other
    /// target.
    #[inline]
    pub fn admit(&mut self, now: Moment, lone: bool) -> Admission {
        if self.passes_all(now.at) {
            let result = Ok(Permit::new(PermitKind::Ordinary, now.order));
            return Admission { result, transition: None, lost: 0 };
        }
        self.admit_some(now, lone)
    }

    /// Checks whether the call is one of the few that may pass.
    fn admit_some(&mut self, now: Moment, lone: bool) -> Admission {
        let lost = self.give_up_lost(now.at);
        let rested = self.state == CircuitState::Open && now.at >= self.rest.probe_from;
        let transition =
            rested.then(|| self.enter(CircuitState::HalfOpen, CircuitCause::Rested, now.at));
        let result = if let Some(permit) = self.try_probe(now) {
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

    /// A probe's permit for the call that began as the `now.order`th, when a probe is due and none is
    /// out: for layers that select one of several circuits first.
    pub fn acquire_probe(&mut self, now: Moment) -> Option<Permit> {
        self.admit_some(now, false).result.ok()
    }

    /// The first content of a call has come, `after` its start. Counts only when the policy says so
    /// ([`CircuitPolicy::content_is_success`]).
    pub fn first_content(
        &mut self,
        now: Moment,
        permit: &Permit,
        after: Duration,
    ) -> Option<Transition> {
        if !self.policy.content_is_success || self.is_slow(Some(after)) {
            return None;
        }
        match permit.kind {
            PermitKind::Ordinary if self.is_current(permit) => self.reached(now),
            PermitKind::Ordinary => None,
            PermitKind::Probe => {
                self.probes.iter_mut().find(|one| one.order == permit.order)?.counted = true;
                self.probe_succeeded(now)
            }
            PermitKind::Lone => {
                self.lone.iter_mut().find(|one| one.order == permit.order)?.counted = true;
                self.lone_succeeded(now)
            }
        }
    }

    /// A call has ended; `first_content` is the time to its first content, when it is known.
    pub fn end(
        &mut self,
        now: Moment,
        permit: &Permit,
        verdict: CircuitVerdict,
        first_content: Option<Duration>,
    ) -> Option<Transition> {
        let slow = self.is_slow(first_content);
        match permit.kind {
            // A call from before the last change decides nothing.
            PermitKind::Ordinary if !self.is_current(permit) => None,
            PermitKind::Ordinary => {
                let verdict = self.with_content(verdict, first_content.is_some());
                self.ordinary_ended(now, permit, verdict, slow)
            }
            // Nor does one that was given up.
            PermitKind::Probe => {
                let probe = take(&mut self.probes, permit.order)?;
                self.probe_ended(now, probe, verdict, slow)
            }
            PermitKind::Lone => {
                let lone = take(&mut self.lone, permit.order)?;
                self.lone_ended(now, lone, verdict, slow)
            }
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
        if self.resting(now).is_none() {
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
            consecutive: self.row.failures,
            failed_probes: self.failed_probes,
            probe_successes: if resting { self.rest.successes } else { 0 },
            probes: self.under_way(&self.probes, now),
            lone: self.under_way(&self.lone, now),
            last_reason: self.last_reason,
            generation: self.generation,
        }
    }

    #[inline]
    fn passes_all(&self, now: Instant) -> bool {
        match self.state {
            CircuitState::Closed | CircuitState::ForcedClosed => true,
            CircuitState::Open | CircuitState::HalfOpen => {
                self.policy.recovery == Readmission::Everyone && now >= self.rest.until
            }
            CircuitState::ForcedOpen | CircuitState::Isolated => false,
        }
    }

    fn try_probe(&mut self, now: Moment) -> Option<Permit> {
        let free =
            self.state == CircuitState::HalfOpen && self.probes.len() < self.policy.probes as usize;
        free.then(|| {
            self.probes.push(Pending::new(now));
            Permit::new(PermitKind::Probe, now.order)
        })
    }

    fn is_slow(&self, first_content: Option<Duration>) -> bool {
        matches!((self.policy.slow, first_content), (Some(slow), Some(took)) if took > slow.after)
    }

    /// Where content is a success, a failure after it counts only in the rate.
    fn with_content(&self, verdict: CircuitVerdict, had_content: bool) -> CircuitVerdict {
        match verdict {
            CircuitVerdict::Failure(blame)
                if had_content
                    && self.policy.content_is_success
                    && blame.weight == Weight::Hard =>
            {
                CircuitVerdict::Failure(Blame { weight: Weight::Soft, ..blame })
            }
            verdict => verdict,
        }
    }

    fn ordinary_ended(
        &mut self,
        now: Moment,
        permit: &Permit,
        verdict: CircuitVerdict,
        slow: bool,
    ) -> Option<Transition> {
        let blame = match verdict {
            CircuitVerdict::Nothing => return None,
            CircuitVerdict::Success => {
                self.window.record(now.at, false, slow);
                if !slow && self.state.is_resting() {
                    return self.reached(now);
                }
                self.row = Row::default();
                None
            }
            CircuitVerdict::Failure(blame) => {
                self.window.record(now.at, true, slow);
                if blame.weight != Weight::Soft {
                    self.row.add(permit.witness);
                }
                Some(blame)
            }
        };
        let cause = match self.state {
            CircuitState::Closed => self.cause_to_open(now.at, blame, slow)?,
            // A failed call during the rest, or after it.
            CircuitState::Open | CircuitState::HalfOpen if blame.is_some() => {
                CircuitCause::ProbeFailed
            }
            _ => return None,
        };
        self.open_after(now, cause, blame)
    }

    /// The target works: the rest is over.
    fn reached(&mut self, now: Moment) -> Option<Transition> {
        self.row = Row::default();
        self.state.is_resting().then(|| self.close(now, CircuitCause::Recovered))
    }

    /// Why the call that just ended opens the circuit, if it does.
    fn cause_to_open(
        &mut self,
        now: Instant,
        blame: Option<Blame>,
        slow: bool,
    ) -> Option<CircuitCause> {
        if let Some(blame) = blame {
            if blame.weight == Weight::Proof {
                return Some(CircuitCause::Proof);
            }
            let witnessed = self.row.corroborated || !self.policy.second_witness;
            let enough = |row| self.row.failures >= row && witnessed;
            if blame.weight == Weight::Hard && self.policy.consecutive.is_some_and(enough) {
                return Some(CircuitCause::Consecutive);
            }
        } else if !slow {
            return None;
        }
        let counts = self.window.counts(now);
        if counts.calls < u64::from(self.policy.min_calls) {
            return None;
        }
        let reached = |part, rate| state::ratio(part, counts.calls) >= rate;
        let failure_rate = self.policy.failure_rate.filter(|_| blame.is_some());
        if failure_rate.is_some_and(|rate| reached(counts.failures, rate)) {
            return Some(CircuitCause::FailureRate);
        }
        let slow_rate = self.policy.slow.filter(|_| slow);
        slow_rate
            .is_some_and(|policy| reached(counts.slow, policy.rate))
            .then_some(CircuitCause::SlowRate)
    }

    fn probe_ended(
        &mut self,
        now: Moment,
        probe: Pending,
        verdict: CircuitVerdict,
        slow: bool,
    ) -> Option<Transition> {
        let blame = match verdict {
            // Its permit is free; it proves nothing.
            CircuitVerdict::Nothing => return None,
            // Its first content has counted.
            CircuitVerdict::Success if probe.counted => return None,
            CircuitVerdict::Failure(_) if probe.counted => {
                self.window.record(now.at, true, slow);
                return None;
            }
            CircuitVerdict::Success if !slow => return self.probe_succeeded(now),
            CircuitVerdict::Success => None,
            CircuitVerdict::Failure(blame) => Some(blame),
        };
        self.open_after(now, CircuitCause::ProbeFailed, blame)
    }

    fn probe_succeeded(&mut self, now: Moment) -> Option<Transition> {
        self.rest.successes += 1;
        let enough = self.rest.successes >= self.policy.successes;
        enough.then(|| self.close(now, CircuitCause::Recovered))
    }

    fn lone_ended(
        &mut self,
        now: Moment,
        lone: Pending,
        verdict: CircuitVerdict,
        slow: bool,
    ) -> Option<Transition> {
        // Forced open: no outcome closes it.
        if self.state == CircuitState::ForcedOpen {
            return None;
        }
        match verdict {
            CircuitVerdict::Nothing => None,
            CircuitVerdict::Success if lone.counted => None,
            CircuitVerdict::Success if !slow => self.lone_succeeded(now),
            CircuitVerdict::Success => {
                self.rest.streak = 0;
                None
            }
            // Without a hint, or proof, the failure changes nothing.
            CircuitVerdict::Failure(blame) => {
                self.rest.streak = 0;
                let lead = self.policy.probe_lead;
                if blame.hinted {
                    self.rest.lengthen(now.at, blame.cooldown, true, lead);
                }
                if blame.weight == Weight::Proof {
                    let (base, _) = self.policy.bounds(Some(blame));
                    self.rest.lengthen(now.at, base, false, lead);
                }
                None
            }
        }
    }

    fn lone_succeeded(&mut self, now: Moment) -> Option<Transition> {
        self.rest.streak += 1;
        let enough = self.policy.lone.map_or(1, |lone| lone.successes);
        let believed = !self.rest.hinted || now.at >= self.rest.probe_from;
        let enough = self.rest.streak >= enough.max(self.policy.successes);
        (enough && believed).then(|| self.close(now, CircuitCause::Recovered))
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
        self.last_reason = blame.map(|blame| blame.reason);
        self.new_generation(now);
        self.enter(CircuitState::Open, cause, now.at)
    }

    fn close(&mut self, now: Moment, cause: CircuitCause) -> Transition {
        self.new_generation(now);
        self.window.clear();
        self.row = Row::default();
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

    /// Releases the permits of probes and lone calls that have not ended within the limit. They decide
    /// nothing if they end later.
    fn give_up_lost(&mut self, now: Instant) -> usize {
        let limit = self.policy.probe_limit;
        let before = self.probes.len() + self.lone.len();
        self.probes.retain(|call| !call.is_lost(now, limit));
        self.lone.retain(|call| !call.is_lost(now, limit));
        before - self.probes.len() - self.lone.len()
    }

    fn under_way(&self, calls: &[Pending], now: Instant) -> u32 {
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
            let left = self.rest.until.saturating_duration_since(now);
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

impl Row {
    fn add(&mut self, witness: Option<u64>) {
        match self.failures {
            0 => self.witness = witness,
            // A call without a witness counts as another one.
            _ => self.corroborated |= witness.is_none() || witness != self.witness,
        }
        self.failures = self.failures.saturating_add(1);
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

/// Takes the call that began as the `order`th out of `calls`, if it is there.
fn take(calls: &mut Vec<Pending>, order: u64) -> Option<Pending> {
    let found = calls.iter().position(|call| call.order == order)?;
    Some(calls.swap_remove(found))
}

/// `now + wait`, or thirty years from now when that can not be represented.
fn later(now: Instant, wait: Duration) -> Instant {
    now.checked_add(wait).unwrap_or_else(|| now + Duration::from_secs(946_080_000))
}
