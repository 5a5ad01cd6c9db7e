//! The documented behaviour of a circuit, implemented as simply as possible: a list of the calls
//! that ended, searched from the beginning each time.

#![allow(dead_code, reason = "the chaos tests, which use it too, need more of it")]

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use steadfast_core::{
    PermitKind, Reason,
    circuit::{Blame, CircuitCause, CircuitPolicy, CircuitState, CircuitVerdict, Weight},
};

/// A model of [`Circuit`](steadfast_core::circuit::Circuit) that is too simple to be wrong, to
/// compare the real one with. Times are counted from any common start.
#[derive(Debug)]
pub(crate) struct CircuitModel {
    policy: CircuitPolicy,
    created: Duration,
    state: CircuitState,
    generation: u64,
    /// Ordinary calls of this generation that have ended and count.
    ended: Vec<Ended>,
    /// What ordinary calls came to since it was last closed, in the order in which that was known.
    notes: Vec<(u64, Note)>,
    /// Calls that had started when it was last closed: they stand in no row.
    closed_after: u64,
    /// The failures of single witnesses.
    own: BTreeMap<u64, Own>,
    failed_probes: u32,
    rest: Option<Rest>,
    calls: Vec<Call>,
    /// Calls that have started.
    started: u64,
    last_success: Option<Duration>,
    due: VecDeque<Change>,
}

/// A change of state that has not been [taken](CircuitModel::take_change) yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    /// The state it left.
    pub(crate) from: CircuitState,
    /// The state it is in.
    pub(crate) to: CircuitState,
    /// Why.
    pub(crate) cause: CircuitCause,
    /// The reason of the failure that opened it.
    pub(crate) reason: Option<Reason>,
    /// The end of the rest.
    pub(crate) until: Option<Duration>,
}

#[derive(Clone, Copy, Debug)]
struct Ended {
    at: Duration,
    failed: Option<Weight>,
    slow: bool,
}

/// What a call says about the row of failures that it stands in.
#[derive(Clone, Copy, Debug)]
enum Note {
    Success,
    /// Of this witness.
    Failure(Option<u64>),
    Nothing,
}

/// A call under way.
#[derive(Clone, Copy, Debug)]
struct Call {
    id: u64,
    /// Its place in the order of calls.
    order: u64,
    kind: PermitKind,
    since: Duration,
    generation: u64,
    witness: Option<u64>,
    /// Given up after the limit, when a later call was admitted.
    lost: bool,
    /// Its first content has counted as its success.
    counted: bool,
}

/// The last calls of a witness that has failed, and its own rest.
#[derive(Clone, Debug, Default)]
struct Own {
    /// In the order in which they began, those under way and those that have failed.
    calls: BTreeMap<u64, OwnCall>,
    rests: u32,
    until: Duration,
    refuses: bool,
    last_turn: Duration,
    /// When it last failed.
    failed: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OwnCall {
    UnderWay,
    Failed,
}

/// Until when a circuit rests, for everybody or for one witness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Resting {
    /// Its end.
    pub(crate) until: Duration,
    /// From when on a probe may be made.
    pub(crate) probe_from: Duration,
    /// The provider asked for it.
    pub(crate) hinted: bool,
    /// Asking is in vain.
    pub(crate) refuses: bool,
}

#[derive(Clone, Copy, Debug)]
struct Rest {
    since: Duration,
    until: Duration,
    hinted: bool,
    permanent: bool,
    refuses: bool,
    unprobed: bool,
    successes: u32,
    streak: u32,
    last_lone: Duration,
}

impl CircuitModel {
    /// A closed circuit, created at `now`.
    pub(crate) fn new(policy: CircuitPolicy, now: Duration) -> Self {
        Self {
            policy,
            created: now,
            state: CircuitState::Closed,
            generation: 0,
            ended: Vec::new(),
            notes: Vec::new(),
            closed_after: 0,
            own: BTreeMap::new(),
            failed_probes: 0,
            rest: None,
            calls: Vec::new(),
            started: 0,
            last_success: None,
            due: VecDeque::new(),
        }
    }

    /// Its state.
    pub(crate) fn state(&self) -> CircuitState {
        self.state
    }

    /// How often it has opened or closed.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// The end of the rest, and from when on a probe may be made.
    pub(crate) fn rest(&self) -> Option<(Duration, Duration)> {
        let rest = self.rest.filter(|_| self.is_resting())?;
        Some((rest.until, self.probe_from(&rest)))
    }

    /// Whether it rests, and how.
    pub(crate) fn resting(&self) -> Option<Resting> {
        let rest = self.rest.filter(|_| self.is_resting())?;
        let probe_from = self.probe_from(&rest);
        let Rest { until, hinted, refuses, .. } = rest;
        Some(Resting { until, probe_from, hinted, refuses })
    }

    /// Whether it rests for one witness, and how.
    pub(crate) fn resting_for(&self, witness: Option<u64>, now: Duration) -> Option<Resting> {
        let own = || {
            let own = self.own.get(&witness?)?;
            let Own { until, refuses, .. } = *own;
            let rest = Resting { until, probe_from: until, hinted: false, refuses };
            (self.state == CircuitState::Closed && until > now).then_some(rest)
        };
        self.resting().or_else(own)
    }

    /// How often the rest has grown.
    pub(crate) fn failed_probes(&self) -> u32 {
        self.failed_probes
    }

    /// Calls under way that were let through as `kind`.
    pub(crate) fn under_way(&self, kind: PermitKind, now: Duration) -> u32 {
        let limit = self.policy.probe_limit;
        let mine = |call: &&Call| {
            call.kind == kind && call.generation == self.generation && now < call.since + limit
        };
        u32::try_from(self.calls.iter().filter(mine).filter(|call| !call.lost).count())
            .unwrap_or(u32::MAX)
    }

    /// The hard failures in a row at the latest of them, in the order in which their calls began.
    pub(crate) fn row(&self) -> u32 {
        let calls = self.remembered();
        let latest = calls.iter().rev().find(|(_, failed)| failed.is_some());
        latest.map_or(0, |(order, _)| self.row_of(*order).len() as u32)
    }

    /// The calls that stand in rows: failures with their witness, and those that say nothing. Calls
    /// from before a success are forgotten, and all but the last 64.
    fn remembered(&self) -> BTreeMap<u64, Option<Option<u64>>> {
        let (mut calls, mut succeeded, mut latest) = (BTreeMap::new(), 0, 0);
        for (order, note) in &self.notes {
            match note {
                Note::Success => {
                    succeeded = succeeded.max(*order);
                    calls.retain(|other, _| other > order);
                }
                _ if *order <= succeeded.max(self.closed_after) => {}
                Note::Failure(witness) => _ = calls.insert(*order, Some(*witness)),
                // Some attempt of it may have failed.
                Note::Nothing => _ = calls.entry(*order).or_insert(None),
            }
            latest = calls.keys().next_back().copied().unwrap_or(0).max(latest);
            calls.retain(|other, _| latest - other < 64);
        }
        calls
    }

    /// The witnesses of the failures in a row with call `order`, the latest call first; empty when it
    /// stands in none.
    fn row_of(&self, order: u64) -> Vec<Option<u64>> {
        let calls = self.remembered();
        let mut at = order;
        while calls.contains_key(&(at + 1)) {
            at += 1;
        }
        let mut row = Vec::new();
        while let Some(call) = calls.get(&at) {
            row.extend(*call);
            at -= 1;
        }
        row
    }

    /// Calls, failures and slow ones of the window: the running tenth and the nine before it.
    pub(crate) fn window(&self, now: Duration) -> (u64, u64, u64) {
        let tenth = self.policy.window.as_nanos() / 10;
        let piece = |at: Duration| (at - self.created).as_nanos() / tenth;
        let inside = || self.ended.iter().filter(|ended| piece(ended.at) + 10 > piece(now));
        let count =
            |which: fn(&Ended) -> bool| inside().filter(|ended| which(ended)).count() as u64;
        (count(|_| true), count(|ended| ended.failed.is_some()), count(|ended| ended.slow))
    }

    /// The next change of state that has happened and was not taken yet.
    pub(crate) fn take_change(&mut self) -> Option<Change> {
        self.due.pop_front()
    }

    /// Call `id` asks for a permit: its kind, or when to try again.
    ///
    /// # Errors
    ///
    /// The time after which to try again.
    pub(crate) fn admit(
        &mut self,
        id: u64,
        now: Duration,
        lone: bool,
        witness: Option<u64>,
    ) -> Result<PermitKind, Duration> {
        let kind = self.decide(now, lone)?;
        self.start(id, kind, now, witness);
        Ok(kind)
    }

    /// Call `id` asks for a permit where something else decides who is asked: `first` when it has not
    /// asked before.
    ///
    /// # Errors
    ///
    /// How long it is until its turn.
    pub(crate) fn take_turn(
        &mut self,
        id: u64,
        now: Duration,
        first: bool,
        witness: Option<u64>,
    ) -> Result<PermitKind, Duration> {
        self.forget_witnesses(now);
        let every = self.policy.turns.unwrap_or_default();
        let dead = self.policy.consecutive.unwrap_or(u32::MAX) as usize;
        let resting = self.is_resting();
        let own = witness.and_then(|witness| self.own.get_mut(&witness));
        let last_turn = match (&mut self.rest, own) {
            _ if first => None,
            (Some(rest), _) if resting => Some(&mut rest.last_lone),
            (_, Some(own)) => {
                own.latest().filter(|order| own.row_of(*order) >= dead).map(|_| &mut own.last_turn)
            }
            _ => None,
        };
        if let Some(last_turn) = last_turn {
            let wait = (*last_turn + every).saturating_sub(now);
            if !wait.is_zero() {
                return Err(wait);
            }
            *last_turn = now;
        }
        self.start(id, PermitKind::Ordinary, now, witness);
        Ok(PermitKind::Ordinary)
    }

    /// A witness is forgotten ten minutes after its last failure, and its rest.
    fn forget_witnesses(&mut self, now: Duration) {
        let kept = Duration::from_secs(600);
        self.own.retain(|_, own| own.until > now || own.failed + kept > now);
    }

    /// Call `id` starts as a call of that kind, without a check.
    pub(crate) fn begin(&mut self, id: u64, kind: PermitKind, now: Duration, witness: Option<u64>) {
        if kind == PermitKind::Probe {
            self.give_up_lost(now);
            if self.state == CircuitState::Open {
                self.enter(CircuitState::HalfOpen, CircuitCause::Rested, None);
            }
        }
        self.start(id, kind, now, witness);
    }

    fn start(&mut self, id: u64, kind: PermitKind, since: Duration, witness: Option<u64>) {
        self.started += 1;
        let (order, generation) = (self.started, self.generation);
        let (lost, counted) = (false, false);
        self.calls.push(Call { id, order, kind, since, generation, witness, lost, counted });
        if let Some(own) = witness.and_then(|witness| self.own.get_mut(&witness)) {
            own.calls.insert(order, OwnCall::UnderWay);
        }
    }

    /// Whether the end of call `id` may decide anything.
    pub(crate) fn is_current(&self, id: u64) -> bool {
        self.calls.iter().any(|call| call.id == id && self.counts(call))
    }

    fn counts(&self, call: &Call) -> bool {
        call.generation == self.generation && !call.lost
    }

    /// It can not be called for `wait`, and has not failed.
    pub(crate) fn rest_for(&mut self, now: Duration, wait: Duration) {
        let resting = self.rest.filter(|_| self.is_resting());
        let mut rest = resting.unwrap_or(Rest::new(now, now));
        // No probe before its end: it would be refused.
        if now + wait > rest.until {
            (rest.until, rest.unprobed) = (now + wait, true);
        }
        self.rest = Some(rest);
        if self.state == CircuitState::Closed {
            self.enter(CircuitState::Open, CircuitCause::Manual, None);
        }
    }

    fn give_up_lost(&mut self, now: Duration) {
        let limit = self.policy.probe_limit;
        for call in self.calls.iter_mut().filter(|call| call.kind != PermitKind::Ordinary) {
            call.lost |= now >= call.since + limit;
        }
    }

    fn decide(&mut self, now: Duration, lone: bool) -> Result<PermitKind, Duration> {
        if matches!(self.state, CircuitState::Closed | CircuitState::ForcedClosed) {
            return Ok(PermitKind::Ordinary);
        }
        self.give_up_lost(now);
        if self.state == CircuitState::Open
            && let Some(rest) = self.rest
            && now >= self.probe_from(&rest)
        {
            self.enter(CircuitState::HalfOpen, CircuitCause::Rested, None);
        }
        let room = self.under_way(PermitKind::Probe, now) < self.policy.probes;
        if self.state == CircuitState::HalfOpen && room {
            return Ok(PermitKind::Probe);
        }
        let next = self.next_lone(now).filter(|_| lone);
        if next == Some(Duration::ZERO) {
            if let Some(rest) = &mut self.rest {
                rest.last_lone = now;
            }
            return Ok(PermitKind::Lone);
        }
        let rest = match self.rest.filter(|_| self.is_resting()) {
            Some(rest) if self.probe_from(&rest) > now => self.probe_from(&rest) - now,
            Some(rest) if rest.until > now => rest.until - now,
            Some(_) => Duration::from_secs(1),
            None => self.policy.cooldown,
        };
        Err(next.map_or(rest, |next| next.min(rest)))
    }

    /// When the next lone call is let through, if that is known.
    fn next_lone(&self, now: Duration) -> Option<Duration> {
        let rule = self.policy.lone.filter(|_| self.state != CircuitState::Isolated)?;
        let last = self.rest.map_or(self.created, |rest| rest.last_lone);
        let next = (last + rule.every).saturating_sub(now);
        let full = self.under_way(PermitKind::Lone, now) >= rule.at_once;
        Some(if full { next.max(rule.every) } else { next })
    }

    /// `probe_lead` before the end of the rest, never in its first half; at its end after a hint.
    fn probe_from(&self, rest: &Rest) -> Duration {
        let whole = rest.until - rest.since;
        let lead = if rest.hinted || rest.unprobed {
            Duration::ZERO
        } else {
            self.policy.probe_lead.min(whole / 2)
        };
        rest.until - lead
    }

    /// The first content of call `id` has come, `after` its start.
    pub(crate) fn content(&mut self, id: u64, now: Duration, after: Duration) {
        let Some(at) = self.calls.iter().position(|call| call.id == id) else { return };
        let call = self.calls[at];
        if !self.policy.content_is_success || self.is_slow(Some(after)) {
            return;
        }
        self.last_success = Some(now);
        self.forget_witnesses(now);
        self.succeeded_own(&call);
        if !self.counts(&call) {
            return;
        }
        self.calls[at].counted = true;
        match call.kind {
            PermitKind::Ordinary => {
                self.notes.push((call.order, Note::Success));
                if self.is_resting() {
                    self.close(CircuitState::Closed, CircuitCause::Recovered);
                }
            }
            PermitKind::Probe => self.probe_succeeded(),
            PermitKind::Lone => self.lone_ended(now, None, false),
        }
    }

    /// An attempt of call `id` has failed, and another one follows: a probe decides nothing yet.
    pub(crate) fn attempt_failed(&mut self, id: u64, now: Duration, blame: Blame) {
        let call = self.calls.iter().find(|call| call.id == id).copied();
        if let Some(call) = call.filter(|call| call.kind == PermitKind::Ordinary) {
            self.forget_witnesses(now);
            self.judge(&call, now, CircuitVerdict::Failure(blame), None);
        }
    }

    /// Call `id` has ended; its first content came `after` its start.
    pub(crate) fn end(
        &mut self,
        id: u64,
        now: Duration,
        verdict: CircuitVerdict,
        after: Option<Duration>,
    ) {
        let Some(at) = self.calls.iter().position(|call| call.id == id) else { return };
        let call = self.calls.remove(at);
        self.forget_witnesses(now);
        if verdict == CircuitVerdict::Success {
            self.last_success = Some(now);
            self.succeeded_own(&call);
        }
        self.judge(&call, now, verdict, after);
        // It is not under way any more.
        if let Some(own) = call.witness.and_then(|witness| self.own.get_mut(&witness)) {
            own.calls.retain(|order, state| *order != call.order || *state == OwnCall::Failed);
        }
    }

    /// What a call says.
    fn judge(
        &mut self,
        call: &Call,
        now: Duration,
        verdict: CircuitVerdict,
        after: Option<Duration>,
    ) {
        // Where content is a success, a failure after it counts in the rate only.
        let had_content = self.policy.content_is_success && after.is_some();
        let verdict = match verdict {
            CircuitVerdict::Failure(blame) if had_content && blame.weight == Weight::Hard => {
                CircuitVerdict::Failure(Blame { weight: Weight::Soft, ..blame })
            }
            verdict => verdict,
        };
        let note = match verdict {
            CircuitVerdict::Success => Note::Success,
            CircuitVerdict::Failure(blame) if blame.weight != Weight::Soft => {
                Note::Failure(call.witness)
            }
            CircuitVerdict::Failure(_) | CircuitVerdict::Nothing => Note::Nothing,
        };
        let counts = self.counts(call);
        // Where calls take turns, a circuit is open as long as its row: older failures are in it.
        let in_row = counts || (self.policy.turns.is_some() && matches!(note, Note::Failure(_)));
        if call.kind == PermitKind::Ordinary && in_row {
            self.notes.push((call.order, note));
        }
        if !counts || verdict == CircuitVerdict::Nothing {
            return;
        }
        let slow = self.is_slow(after);
        let blame = match verdict {
            CircuitVerdict::Failure(blame) => Some(blame),
            _ => None,
        };
        match call.kind {
            PermitKind::Ordinary => self.ordinary_ended(now, call, blame, slow),
            PermitKind::Probe | PermitKind::Lone if call.counted => {
                if let Some(blame) = blame {
                    self.ended.push(Ended { at: now, failed: Some(blame.weight), slow });
                }
            }
            PermitKind::Probe if blame.is_none() && !slow => self.probe_succeeded(),
            PermitKind::Probe => self.open(now, CircuitCause::ProbeFailed, blame),
            PermitKind::Lone => self.lone_ended(now, blame, slow),
        }
    }

    fn is_slow(&self, after: Option<Duration>) -> bool {
        matches!((self.policy.slow, after), (Some(slow), Some(after)) if after > slow.after)
    }

    fn probe_succeeded(&mut self) {
        let successes = self.rest.as_mut().map_or(0, |rest| {
            rest.successes += 1;
            rest.successes
        });
        if successes >= self.policy.successes {
            self.close(CircuitState::Closed, CircuitCause::Recovered);
        }
    }

    /// A call has succeeded: nothing older is known against its witness.
    fn succeeded_own(&mut self, call: &Call) {
        let Some(witness) = call.witness else { return };
        let Some(own) = self.own.get_mut(&witness) else { return };
        own.calls.retain(|order, _| *order > call.order);
        (own.rests, own.until) = (0, Duration::ZERO);
        if own.latest().is_none() {
            self.own.remove(&witness);
        }
    }

    /// A call has failed and opened nothing: its witness alone rests, when that has failed often enough.
    fn failed_own(&mut self, now: Duration, call: &Call, blame: Blame) {
        let Some(witness) = call.witness else { return };
        let new = || Own { last_turn: now, ..Own::default() };
        let mut own = self.own.remove(&witness).unwrap_or_else(new);
        own.failed = now;
        own.calls.insert(call.order, OwnCall::Failed);
        let proves = blame.weight == Weight::Proof;
        let enough = self.policy.consecutive.map_or(usize::MAX, |enough| enough as usize);
        if proves || (own.row_of(call.order) >= enough && now >= own.until) {
            own.until = own.until.max(now + self.cooldown(Some(blame), own.rests));
            own.rests += 1;
            own.refuses = proves;
        }
        self.own.insert(witness, own);
    }

    fn ordinary_ended(&mut self, now: Duration, call: &Call, blame: Option<Blame>, slow: bool) {
        let failed = blame.map(|blame| blame.weight);
        self.ended.push(Ended { at: now, failed, slow });
        match self.state {
            CircuitState::Closed => {
                if let Some(cause) = self.too_much(now, call, blame, slow) {
                    self.open(now, cause, blame);
                }
            }
            CircuitState::Open | CircuitState::HalfOpen => match blame {
                Some(blame) => {
                    self.failed_in_rest(now, blame);
                    let enough = self.policy.consecutive.unwrap_or(0).div_ceil(2) as usize;
                    let broken = self.row_of(call.order).len().max(1) < enough;
                    if self.policy.turns.is_some() && blame.weight != Weight::Soft && broken {
                        self.close(CircuitState::Closed, CircuitCause::Recovered);
                    }
                }
                None if !slow => self.close(CircuitState::Closed, CircuitCause::Recovered),
                None => {}
            },
            _ => {}
        }
    }

    fn too_much(
        &mut self,
        now: Duration,
        call: &Call,
        blame: Option<Blame>,
        slow: bool,
    ) -> Option<CircuitCause> {
        let weight = blame.map(|blame| blame.weight);
        let row = self.row_of(call.order);
        let since = self.last_success.map(|at| now - at);
        let trusted = since.is_some_and(|since| since < self.policy.trusted_for);
        if weight == Some(Weight::Proof) && (!trusted || self.is_witnessed(&row)) {
            return Some(CircuitCause::Proof);
        }
        // One that comes too late for any row is one by itself.
        let length = row.len().max(1);
        let enough = self.policy.consecutive.is_some_and(|enough| length >= enough as usize);
        if weight == Some(Weight::Hard) && enough && self.is_witnessed(&row) {
            return Some(CircuitCause::Consecutive);
        }
        if let Some(blame) = blame.filter(|blame| blame.weight != Weight::Soft)
            && self.policy.second_witness
        {
            self.failed_own(now, call, blame);
        }
        let (calls, failures, slows) = self.window(now);
        if calls < u64::from(self.policy.min_calls) {
            return None;
        }
        let share = |part: u64| part as f64 / calls as f64;
        if blame.is_some() && self.policy.failure_rate.is_some_and(|rate| share(failures) >= rate) {
            return Some(CircuitCause::FailureRate);
        }
        let slow = slow && self.policy.slow.is_some_and(|policy| share(slows) >= policy.rate);
        slow.then_some(CircuitCause::SlowRate)
    }

    /// Whether the failures of the row are not all of one witness.
    fn is_witnessed(&self, row: &[Option<u64>]) -> bool {
        let others = row.iter().skip(1);
        let mut others = others.filter(|witness| witness.is_none() || **witness != row[0]);
        !self.policy.second_witness || others.next().is_some()
    }

    fn lone_ended(&mut self, now: Duration, blame: Option<Blame>, slow: bool) {
        if self.state == CircuitState::ForcedOpen {
            return;
        }
        let Some(mut rest) = self.rest else { return };
        match blame {
            None if !slow => rest.streak += 1,
            None => rest.streak = 0,
            Some(_) => rest.streak = 0,
        }
        self.rest = Some(rest);
        if let Some(blame) = blame {
            self.failed_in_rest(now, blame);
        }
        let enough = self.policy.lone.map_or(1, |lone| lone.successes).max(self.policy.successes);
        let believed = !rest.hinted || now >= self.probe_from(&rest);
        if rest.streak > 0 && rest.streak >= enough && believed {
            self.close(CircuitState::Closed, CircuitCause::Recovered);
        }
    }

    /// A call that is no probe has failed in a rest.
    fn failed_in_rest(&mut self, now: Duration, blame: Blame) {
        let proof = self.shortest(Some(blame)).0;
        let Some(rest) = &mut self.rest else { return };
        if blame.hinted {
            rest.until = rest.until.max(now + blame.cooldown);
            rest.hinted = true;
        }
        if blame.weight == Weight::Proof {
            rest.until = rest.until.max(now + proof);
            rest.refuses = true;
        }
    }

    /// The shortest rest, and where its growth ends.
    fn shortest(&self, blame: Option<Blame>) -> (Duration, Duration) {
        let policy = &self.policy;
        match blame {
            None => (policy.cooldown, policy.max_cooldown),
            Some(blame) if blame.permanent => {
                (blame.cooldown.max(policy.permanent_cooldown), policy.max_permanent)
            }
            Some(blame) => match policy.first_rest {
                Some(first) if !blame.hinted && blame.weight != Weight::Proof => {
                    (first.min(blame.cooldown), blame.cooldown)
                }
                _ => (blame.cooldown, policy.max_cooldown),
            },
        }
    }

    /// How long it rests when it has rested so often before.
    fn cooldown(&self, blame: Option<Blame>, before: u32) -> Duration {
        let (shortest, cap) = self.shortest(blame);
        let permanent = blame.is_some_and(|blame| blame.permanent);
        let growth = if permanent { 2.0 } else { self.policy.growth };
        let exponent = i32::try_from(before).unwrap_or(i32::MAX);
        let grown = shortest.as_secs_f64() * growth.powi(exponent);
        if grown >= cap.as_secs_f64() {
            return cap.max(shortest);
        }
        Duration::from_secs_f64(grown).max(shortest)
    }

    fn open(&mut self, now: Duration, cause: CircuitCause, blame: Option<Blame>) {
        let permanent = blame.is_some_and(|blame| blame.permanent);
        let old = self.rest.filter(|_| self.is_resting());
        if let Some(old) = old {
            let same = old.permanent == permanent;
            self.failed_probes = if same { self.failed_probes + 1 } else { 0 };
        }
        let wait = self.cooldown(blame, self.failed_probes);
        if wait.is_zero() {
            return;
        }
        let mut rest = Rest::new(now, now + wait);
        rest.refuses = blame.is_some_and(|blame| blame.weight == Weight::Proof);
        rest.hinted = blame.is_some_and(|blame| blame.hinted);
        rest.permanent = permanent;
        if let Some(old) = old.filter(|old| old.until > rest.until) {
            (rest.until, rest.hinted) = (old.until, old.hinted);
        } else if let Some(old) = old.filter(|old| old.until == rest.until) {
            rest.hinted = old.hinted;
        }
        self.rest = Some(rest);
        self.next_generation();
        self.enter(CircuitState::Open, cause, blame.map(|blame| blame.reason));
    }

    fn close(&mut self, to: CircuitState, cause: CircuitCause) {
        self.next_generation();
        self.ended.clear();
        self.notes.clear();
        self.closed_after = self.started;
        self.failed_probes = 0;
        self.enter(to, cause, None);
    }

    fn enter(&mut self, to: CircuitState, cause: CircuitCause, reason: Option<Reason>) {
        let from = std::mem::replace(&mut self.state, to);
        let until = self.rest.filter(|_| self.is_resting()).map(|rest| rest.until);
        self.due.push_back(Change { from, to, cause, reason, until });
    }

    fn next_generation(&mut self) {
        self.generation += 1;
    }

    fn is_resting(&self) -> bool {
        matches!(self.state, CircuitState::Open | CircuitState::HalfOpen)
    }

    /// Forces it into `state` by hand; returns whether that changes anything.
    pub(crate) fn force(&mut self, now: Duration, state: CircuitState) -> bool {
        let changes = self.state != state;
        if changes {
            self.close(state, CircuitCause::Manual);
            let mut rest = self.rest.unwrap_or(Rest::new(now, now));
            rest.last_lone = now;
            self.rest = Some(rest);
        }
        changes
    }

    /// Resets it; returns whether that changes its state.
    pub(crate) fn reset(&mut self) -> bool {
        let changes = self.state != CircuitState::Closed;
        self.close(CircuitState::Closed, CircuitCause::Manual);
        self.own.clear();
        if !changes {
            self.due.pop_back();
        }
        changes
    }

    /// Resets it, and it is not known that any call ever succeeded.
    pub(crate) fn forget(&mut self) {
        self.reset();
        self.last_success = None;
    }

    /// Opens it for `cooldown`.
    pub(crate) fn trip(&mut self, now: Duration, reason: Reason, cooldown: Duration) {
        match self.state {
            CircuitState::Closed => {
                let rest = Rest::new(now, now + cooldown);
                self.rest = Some(Rest { hinted: true, refuses: true, ..rest });
                self.next_generation();
                self.enter(CircuitState::Open, CircuitCause::Manual, Some(reason));
            }
            CircuitState::Open | CircuitState::HalfOpen => {
                if let Some(rest) = &mut self.rest {
                    rest.until = rest.until.max(now + cooldown);
                    rest.hinted = true;
                    rest.refuses = true;
                }
            }
            _ => {}
        }
    }
}

impl Rest {
    fn new(since: Duration, until: Duration) -> Self {
        Self {
            since,
            until,
            hinted: false,
            permanent: false,
            refuses: false,
            unprobed: false,
            successes: 0,
            streak: 0,
            last_lone: since,
        }
    }
}

impl Own {
    /// The latest call that has failed.
    fn latest(&self) -> Option<u64> {
        let failed = |(_, state): &(&u64, &OwnCall)| **state == OwnCall::Failed;
        self.calls.iter().rev().find(failed).map(|(order, _)| *order)
    }

    /// The failures in a row with call `order`.
    fn row_of(&self, order: u64) -> usize {
        let failed = |(_, state): &(&u64, &OwnCall)| **state == OwnCall::Failed;
        self.calls.range(order..).take_while(failed).count()
            + self.calls.range(..order).rev().take_while(failed).count()
    }
}
