//! The state machine of one breaker: pure. It is told the time and what happened, and says what
//! to do; locks, clocks, logs and leases are the cell's around it.

use std::{sync::Arc, time::Duration};

use steadfast_core::{Reason, Token};
use tokio::time::Instant;

use crate::{
    BreakerPolicy, Cause, Snapshot, State,
    event::ratio,
    front::Bar,
    rest::{self, Rest, later},
    verdict::{Blame, Verdict, Weight},
    window::Window,
};

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

/// When to come back while a probe is out and the rest is over: nobody knows, but soon.
pub(crate) const SOON: Duration = Duration::from_secs(1);

/// What the low bits of a token's mark say of the call.
const KIND: u64 = 3;
const ORDINARY: u64 = 0;
const PROBE: u64 = 1;
const LONE: u64 = 2;
/// Would have been refused, if the layer refused.
const OBSERVED: u64 = 3;

/// One breaker.
#[derive(Debug)]
pub(crate) struct Machine {
    policy: Arc<BreakerPolicy>,
    rng: fastrand::Rng,
    state: State,
    since: Instant,
    generation: u64,
    window: Window,
    consecutive: u32,
    failed_probes: u32,
    last_reason: Option<Reason>,
    /// Of the present or the last rest; meaningless before the first.
    rest: Rest,
    /// Numbers probes and lone calls.
    serial: u64,
    probes: Vec<Out>,
    lone: Vec<Out>,
}

/// A call whose end is awaited.
#[derive(Clone, Copy, Debug)]
struct Out {
    mark: u64,
    since: Instant,
}

/// Whether a call may pass, and what asking for it did.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Admission {
    pub(crate) decision: Decision,
    pub(crate) change: Option<Change>,
    /// Probes and lone calls that were out too long and were given up.
    pub(crate) lost: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    Pass(Token),
    /// It passes, and decides.
    Probe(Token),
    /// It passes because there is nowhere else to go.
    Lone(Token),
    Refuse {
        /// When to come back.
        wait: Duration,
    },
}

/// A change of the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) from: State,
    pub(crate) to: State,
    pub(crate) cause: Cause,
    pub(crate) reason: Option<Reason>,
    pub(crate) at: Instant,
    pub(crate) until: Option<Instant>,
    pub(crate) generation: u64,
}

impl Machine {
    pub(crate) fn new(policy: Arc<BreakerPolicy>, rng: fastrand::Rng, now: Instant) -> Self {
        let window = Window::new(policy.window, now);
        Self {
            policy,
            rng,
            state: State::Closed,
            since: now,
            generation: 0,
            window,
            consecutive: 0,
            failed_probes: 0,
            last_reason: None,
            rest: Rest::new(now, now, Duration::ZERO, false),
            serial: 0,
            probes: Vec::new(),
            lone: Vec::new(),
        }
    }

    /// The reason it opened for last.
    pub(crate) fn because(&self) -> Option<Reason> {
        self.last_reason
    }

    /// The generation whose calls pass without asking, when they do.
    pub(crate) fn open_door(&self) -> Option<u64> {
        self.state.lets_all_pass().then_some(self.generation)
    }

    /// `calls` that passed an open door have succeeded, unnoticed, before
    /// [`quiet_until`](Self::quiet_until).
    pub(crate) fn absorb(&mut self, calls: u32) {
        self.window.add(calls);
    }

    /// Until when successes need not be told one by one, while nothing else is: as long as each of
    /// them does the same to the same bucket.
    pub(crate) fn quiet_until(&self) -> Option<Instant> {
        let quiet =
            self.state.lets_all_pass() && self.consecutive == 0 && self.policy.slow.is_none();
        quiet.then(|| self.window.end())
    }

    /// What a call gets that was refused by a breaker which only observes.
    pub(crate) fn observed() -> Token {
        Token { generation: 0, mark: OBSERVED }
    }

    /// What calls get until something happens or a time has come, if that can be said without
    /// asking: while it rests.
    pub(crate) fn bar(&self) -> Option<Bar> {
        if self.state != State::Open {
            return None;
        }
        let lone = self.policy.lone.map(|policy| {
            let full = self.lone.len() >= policy.at_once as usize;
            // Full: a place may be taken back at any time, so it has to be asked.
            if full { self.rest.since } else { later(self.rest.last_lone, policy.every) }
        });
        Some(Bar { before: self.rest.probe_from, lone, until: self.rest.until })
    }

    /// What a call gets that passes an open door of `generation`.
    pub(crate) fn ordinary(generation: u64) -> Token {
        Token { generation, mark: ORDINARY }
    }

    /// Whether forgetting it would lose something.
    pub(crate) fn keep(&self, now: Instant) -> bool {
        match self.state {
            State::Closed => false,
            State::Open | State::HalfOpen => now < self.rest.until,
            State::ForcedOpen | State::ForcedClosed | State::Isolated => true,
        }
    }

    /// A call asks to pass; `lone` when it has nowhere else to go.
    pub(crate) fn on_admit(&mut self, now: Instant, lone: bool) -> Admission {
        let mut change = None;
        let mut lost = 0;
        if !self.state.lets_all_pass() {
            lost = self.give_up_lost(now);
            if self.state == State::Open && now >= self.rest.probe_from {
                change = Some(self.enter(State::HalfOpen, Cause::Rested, None, now));
            }
        }
        let decision = match self.state {
            State::Closed | State::ForcedClosed => Decision::Pass(Self::ordinary(self.generation)),
            State::HalfOpen if self.probes.len() < self.policy.probes as usize => {
                let token = self.token(PROBE);
                self.probes.push(Out { mark: token.mark, since: now });
                Decision::Probe(token)
            }
            _ if lone && self.lone_wait(now).is_some_and(|wait| wait.is_zero()) => {
                let token = self.token(LONE);
                self.lone.push(Out { mark: token.mark, since: now });
                self.rest.last_lone = now;
                Decision::Lone(token)
            }
            _ => Decision::Refuse { wait: self.wait(now, lone) },
        };
        Admission { decision, change, lost }
    }

    /// A call that was given `token` has ended.
    pub(crate) fn on_settle(
        &mut self,
        now: Instant,
        token: Token,
        verdict: Verdict,
        first_content: Option<Duration>,
    ) -> Option<Change> {
        // A straggler of an earlier generation decides nothing, whatever it was.
        if token.generation != self.generation {
            return None;
        }
        let slow = match (self.policy.slow, first_content) {
            (Some(slow), Some(took)) => took > slow.after,
            _ => false,
        };
        match token.mark & KIND {
            ORDINARY => self.ordinary_ended(now, verdict, slow),
            PROBE => {
                let out = take(&mut self.probes, token.mark);
                if out { self.probe_ended(now, verdict, slow) } else { None }
            }
            LONE => {
                let out = take(&mut self.lone, token.mark);
                if out { self.lone_ended(now, verdict, slow) } else { None }
            }
            _ => None,
        }
    }

    /// Held open by hand until reset.
    pub(crate) fn force_open(&mut self, now: Instant) -> Option<Change> {
        self.by_hand(State::ForcedOpen, now)
    }

    /// Held closed by hand until reset.
    pub(crate) fn force_closed(&mut self, now: Instant) -> Option<Change> {
        self.by_hand(State::ForcedClosed, now)
    }

    /// Taken out by hand until reset.
    pub(crate) fn isolate(&mut self, now: Instant) -> Option<Change> {
        self.by_hand(State::Isolated, now)
    }

    /// Closed, with nothing counted; also ends what was forced.
    pub(crate) fn reset(&mut self, now: Instant) -> Option<Change> {
        let changed = self.state != State::Closed;
        let change = self.close(now, Cause::Manual);
        changed.then_some(change)
    }

    /// Opens for `cooldown`, or rests longer if it is open already. Leaves alone what is forced.
    pub(crate) fn trip(
        &mut self,
        now: Instant,
        reason: Reason,
        cooldown: Duration,
    ) -> Option<Change> {
        match self.state {
            State::Closed => Some(self.open(now, Cause::Manual, Some(reason), cooldown, true)),
            State::Open | State::HalfOpen => {
                self.rest_longer(now, cooldown);
                self.rest.hinted = true;
                None
            }
            State::ForcedOpen | State::ForcedClosed | State::Isolated => None,
        }
    }

    pub(crate) fn snapshot<K>(&mut self, key: K, now: Instant) -> Snapshot<K> {
        let counts = self.window.counts(now);
        let resting = matches!(self.state, State::Open | State::HalfOpen);
        let limit = self.policy.probe_limit;
        let out = |calls: &[Out]| {
            let under_way = calls.iter().filter(|call| !call.is_lost(now, limit)).count();
            u32::try_from(under_way).unwrap_or(u32::MAX)
        };
        Snapshot {
            key,
            state: self.state,
            since: self.since,
            until: resting.then_some(self.rest.until),
            probe_from: resting.then_some(self.rest.probe_from),
            calls: counts.calls,
            failures: counts.failures,
            slow: counts.slow,
            consecutive: self.consecutive,
            failed_probes: self.failed_probes,
            probe_successes: if resting { self.rest.successes } else { 0 },
            probes: out(&self.probes),
            lone: out(&self.lone),
            // The cell's to count.
            refused: 0,
            last_reason: self.last_reason,
            generation: self.generation,
        }
    }

    fn ordinary_ended(&mut self, now: Instant, verdict: Verdict, slow: bool) -> Option<Change> {
        let blame = match verdict {
            Verdict::Nothing => return None,
            Verdict::Success => {
                self.window.record(now, false, slow);
                self.consecutive = 0;
                None
            }
            Verdict::Failure(blame) => {
                self.window.record(now, true, slow);
                if blame.weight != Weight::Soft {
                    self.consecutive = self.consecutive.saturating_add(1);
                }
                Some(blame)
            }
        };
        // Held closed: counted, to be seen in the snapshot.
        if self.state != State::Closed {
            return None;
        }
        let cause = self.verdict_of_all(now, blame, slow)?;
        let (cooldown, hinted) = self.cooldown(blame);
        Some(self.open(now, cause, blame.map(|blame| blame.reason), cooldown, hinted))
    }

    /// Whether what just ended is one too many.
    fn verdict_of_all(&mut self, now: Instant, blame: Option<Blame>, slow: bool) -> Option<Cause> {
        if let Some(blame) = blame {
            if blame.weight == Weight::Proof {
                return Some(Cause::Proof);
            }
            if self.policy.consecutive.is_some_and(|row| self.consecutive >= row) {
                return Some(Cause::Consecutive);
            }
        } else if !slow {
            return None;
        }
        let counts = self.window.counts(now);
        if counts.calls < u64::from(self.policy.min_calls) {
            return None;
        }
        let reached = |part, rate| ratio(part, counts.calls) >= rate;
        let failure_rate = self.policy.failure_rate.filter(|_| blame.is_some());
        if failure_rate.is_some_and(|rate| reached(counts.failures, rate)) {
            return Some(Cause::FailureRate);
        }
        let slow_rate = self.policy.slow.filter(|_| slow);
        slow_rate.is_some_and(|policy| reached(counts.slow, policy.rate)).then_some(Cause::SlowRate)
    }

    fn probe_ended(&mut self, now: Instant, verdict: Verdict, slow: bool) -> Option<Change> {
        let blame = match verdict {
            // Its place is free; it was no answer to the question.
            Verdict::Nothing => return None,
            Verdict::Success if !slow => {
                self.rest.successes += 1;
                let enough = self.rest.successes >= self.policy.successes;
                return enough.then(|| self.close(now, Cause::Recovered));
            }
            Verdict::Success => None,
            Verdict::Failure(blame) => Some(blame),
        };
        self.failed_probes = self.failed_probes.saturating_add(1);
        let (cooldown, hinted) = self.cooldown(blame);
        let reason = blame.map(|blame| blame.reason);
        Some(self.open(now, Cause::ProbeFailed, reason, cooldown, hinted))
    }

    fn lone_ended(&mut self, now: Instant, verdict: Verdict, slow: bool) -> Option<Change> {
        // Held open by hand: nothing that happens closes it.
        if self.state == State::ForcedOpen {
            return None;
        }
        match verdict {
            Verdict::Nothing => None,
            Verdict::Success if !slow => {
                self.rest.streak += 1;
                let enough = self.policy.lone.map_or(1, |lone| lone.successes);
                let believed = !self.rest.hinted || now >= self.rest.probe_from;
                let enough = self.rest.streak >= enough.max(self.policy.successes);
                (enough && believed).then(|| self.close(now, Cause::Recovered))
            }
            Verdict::Success => {
                self.rest.streak = 0;
                None
            }
            // Without a hint, or proof, it says what is known: the rest is as long as it was.
            Verdict::Failure(blame) => {
                self.rest.streak = 0;
                if let Some(hint) = blame.hint {
                    self.rest_longer(now, hint.min(self.policy.max_permanent));
                    self.rest.hinted = true;
                }
                if blame.weight == Weight::Proof {
                    let (base, _) = rest::bounds(Some(blame), &self.policy);
                    self.rest_longer(now, base);
                }
                None
            }
        }
    }

    /// How long to rest after `blame`, and whether the provider asked for it.
    fn cooldown(&mut self, blame: Option<Blame>) -> (Duration, bool) {
        let rest = rest::after(blame, self.failed_probes, &self.policy, &mut self.rng);
        (rest, blame.is_some_and(|blame| blame.hint.is_some()))
    }

    fn open(
        &mut self,
        now: Instant,
        cause: Cause,
        reason: Option<Reason>,
        cooldown: Duration,
        hinted: bool,
    ) -> Change {
        let mut until = later(now, cooldown);
        let mut hinted = hinted;
        // A shorter rest never overwrites a longer one.
        let resting = matches!(self.state, State::Open | State::HalfOpen);
        if resting && until < self.rest.until {
            until = self.rest.until;
            hinted = self.rest.hinted;
        }
        self.rest = Rest::new(now, until, self.policy.probe_lead, hinted);
        self.last_reason = reason;
        self.new_generation();
        self.enter(State::Open, cause, reason, now)
    }

    fn close(&mut self, now: Instant, cause: Cause) -> Change {
        self.new_generation();
        self.window.clear();
        self.consecutive = 0;
        self.failed_probes = 0;
        self.enter(State::Closed, cause, None, now)
    }

    fn by_hand(&mut self, state: State, now: Instant) -> Option<Change> {
        if self.state == state {
            return None;
        }
        let from = self.close(now, Cause::Manual).from;
        self.rest.last_lone = now;
        Some(Change { from, ..self.enter(state, Cause::Manual, None, now) })
    }

    fn enter(&mut self, to: State, cause: Cause, reason: Option<Reason>, now: Instant) -> Change {
        let from = std::mem::replace(&mut self.state, to);
        self.since = now;
        let resting = matches!(to, State::Open | State::HalfOpen);
        Change {
            from,
            to,
            cause,
            reason,
            at: now,
            until: resting.then_some(self.rest.until),
            generation: self.generation,
        }
    }

    /// Whoever is out decides nothing from now on.
    fn new_generation(&mut self) {
        self.generation += 1;
        self.probes.clear();
        self.lone.clear();
    }

    fn rest_longer(&mut self, now: Instant, cooldown: Duration) {
        self.rest.lengthen(later(now, cooldown), self.policy.probe_lead);
    }

    /// Takes back the places of calls that nobody has heard of for too long. Their numbers are
    /// struck off, so they decide nothing should they end after all.
    fn give_up_lost(&mut self, now: Instant) -> usize {
        if self.probes.is_empty() && self.lone.is_empty() {
            return 0;
        }
        let limit = self.policy.probe_limit;
        let before = self.probes.len() + self.lone.len();
        self.probes.retain(|call| !call.is_lost(now, limit));
        self.lone.retain(|call| !call.is_lost(now, limit));
        before - self.probes.len() - self.lone.len()
    }

    /// How long until the panic rule lets a call through; `None` when it never does.
    fn lone_wait(&self, now: Instant) -> Option<Duration> {
        let policy = self.policy.lone.filter(|_| self.state != State::Isolated)?;
        let next = later(self.rest.last_lone, policy.every).saturating_duration_since(now);
        // Its end is not known; asking again after the usual time is not too early.
        let full = self.lone.len() >= policy.at_once as usize;
        Some(if full { next.max(policy.every) } else { next })
    }

    /// When a refused call should come back.
    fn wait(&self, now: Instant, lone: bool) -> Duration {
        let rest = match self.state {
            State::Open | State::HalfOpen => {
                let left = self.rest.until.saturating_duration_since(now);
                if left.is_zero() { SOON } else { left }
            }
            // Until somebody resets it: unknown, so the usual rest.
            _ => self.policy.cooldown,
        };
        match self.lone_wait(now).filter(|_| lone) {
            Some(wait) => rest.min(wait),
            None => rest,
        }
    }

    fn token(&mut self, kind: u64) -> Token {
        self.serial += 1;
        Token { generation: self.generation, mark: self.serial << 2 | kind }
    }
}

impl Out {
    fn is_lost(&self, now: Instant, limit: Duration) -> bool {
        now.saturating_duration_since(self.since) >= limit
    }
}

/// Takes the call with `mark` out of `calls`, if it is there.
fn take(calls: &mut Vec<Out>, mark: u64) -> bool {
    let found = calls.iter().position(|call| call.mark == mark);
    found.map(|index| calls.swap_remove(index)).is_some()
}
