//! Compares cooldowns with their model, and checks which targets each call asks.
//!
//! The order in which a call asks its targets is not modelled whole: sessions, shares of failures and
//! hints to the call would make a model of it as large as the code. It is checked that
//!
//! * a target that rests is asked as a probe when that is due, and otherwise only when every other target
//!   has been asked in this round, or rests at least as long;
//! * a target that refuses is never asked but as a probe;
//! * a target is not retried in place where another one can serve the call, and the target rests, is being
//!   probed or met one of our time limits;
//! * a call does not fail while there is a target that it has not asked and could;
//! * the layers below learn how many others can serve the call.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use steadfast::{
    Failover, Failure, Reason, Retry, Target,
    failover::{TargetSpec, WhenExhausted},
};

use crate::{
    failover_model::{Cooldowns, Eligibility, Report, blames_provider, direction},
    invariants::Invariant,
    timeline::{Boundary, EndState, Facts, TraceEntry, TraceEvent},
    world::World,
};

/// Feeds the timeline to the model, and compares its expectations with it.
pub(crate) fn compare(world: &World, notes: &[TraceEntry]) {
    let mut checker = Visits {
        world,
        candidates: world.specs.iter().enumerate().flat_map(candidates_of).collect(),
        model: Cooldowns::new(&world.policies.failover),
        calls: BTreeMap::new(),
        visits: BTreeMap::new(),
        attempts: BTreeMap::new(),
    };
    notes.iter().for_each(|note| checker.apply(note));
}

/// One model with one credential of one provider.
struct Candidate {
    /// Its provider's place in the chain.
    spec: usize,
    /// It stands in for another model.
    downgrade: bool,
    target: Target,
}

fn candidates_of((at, spec): (usize, &TargetSpec)) -> Vec<Candidate> {
    let first = spec.models.iter().next().map(|(_, sent)| sent.to_owned());
    let others = spec.downgrades.of(first.as_deref()).iter().cloned();
    let mut all = Vec::new();
    for (rank, model) in first.iter().cloned().chain(others).enumerate() {
        let target = Target::new(spec.provider.as_str()).with_model(model);
        let mut add = |target| all.push(Candidate { spec: at, downgrade: rank > 0, target });
        match spec.credentials.as_slice() {
            [] => add(target),
            names => names.iter().for_each(|name| add(target.with_credential(name.as_str()))),
        }
    }
    all
}

struct Visits<'a> {
    world: &'a World,
    /// In the order of the chain.
    candidates: Vec<Candidate>,
    model: Cooldowns,
    calls: BTreeMap<u64, Call>,
    /// Calls of targets that have not ended.
    visits: BTreeMap<u64, Visit>,
    /// Attempts that have not ended and have no content, and the visit of each.
    attempts: BTreeMap<u64, u64>,
}

/// A call in flight.
#[derive(Debug, Default)]
struct Call {
    caller: Option<usize>,
    /// The visit that answered it.
    answered: Option<u64>,
    /// Providers asked in this round.
    asked: BTreeSet<usize>,
    /// Providers that this call itself has seen fail as a whole in this round.
    found: BTreeSet<usize>,
    /// Providers that this call may leave alone: they refused it for good, or asked it to wait.
    excused: BTreeSet<usize>,
    /// How often it has asked each target.
    times: BTreeMap<String, u32>,
    began: Duration,
    /// When its last visit ended.
    ended: Option<Duration>,
    /// It has waited for its targets.
    again: bool,
    /// Its last failure ends it wherever it is.
    is_final: bool,
    attempts_left: u32,
    deadline: Option<Duration>,
    background: bool,
}

/// A call of one target.
#[derive(Debug)]
struct Visit {
    call: u64,
    caller: Option<usize>,
    target: Target,
    spec: usize,
    alternatives: u32,
    /// How often the provider was asked.
    asked: u32,
    /// Why it is not asked again in place.
    over: Option<&'static str>,
    began: Duration,
    has_content: bool,
    /// Another target was asked beside it for its silence.
    late: bool,
}

impl Visits<'_> {
    fn apply(&mut self, note: &TraceEntry) {
        let now = note.at;
        match &note.what {
            TraceEvent::Started {
                boundary: Boundary::Call,
                id,
                caller,
                attempts_left,
                deadline,
                background,
                ..
            } => {
                let call = Call {
                    caller: *caller,
                    began: now,
                    attempts_left: *attempts_left,
                    deadline: *deadline,
                    background: *background,
                    ..Call::default()
                };
                self.calls.insert(*id, call);
            }
            TraceEvent::Started {
                boundary: Boundary::Target,
                id,
                caller,
                target: Some(target),
                alternatives,
                ..
            } => self.visited(*id, *caller, target, *alternatives, now),
            TraceEvent::Started { boundary: Boundary::Attempt, id, caller, target, .. } => {
                let Some((visit, state)) = self.visit_of(*caller, target.as_ref()) else {
                    return self.mismatch(format!("attempt {id} is of no visit"));
                };
                if let Some(why) = state.over {
                    self.mismatch(format!("attempt {id} at {now:?}: {why}"));
                }
                self.attempts.insert(*id, visit);
            }
            TraceEvent::Started { boundary: Boundary::Admitted, caller, target, .. } => {
                let Some((_, visit)) = self.visit_of(*caller, target.as_ref()) else { return };
                visit.asked += 1;
                let (call, name) = (visit.call, visit.target.to_string());
                if let Some(call) = self.calls.get_mut(&call) {
                    *call.times.entry(name).or_default() += 1;
                }
            }
            TraceEvent::Content { id } => {
                self.attempts.remove(id);
                if let Some(visit) = self.visits.get_mut(id) {
                    visit.has_content = true;
                }
            }
            TraceEvent::Answered { id, target } => {
                let Some(call) = self.calls.get_mut(id) else { return };
                let mut of_call = self.visits.iter().rev().filter(|(_, visit)| visit.call == *id);
                let visit = of_call.find(|(_, visit)| Some(&visit.target) == target.as_ref());
                call.answered = visit.map(|(visit, _)| *visit);
                match call.answered {
                    Some(visit) => self.model.content(visit, now),
                    None => self.mismatch(format!(
                        "call {id} was answered by {target:?}, which was not asked"
                    )),
                }
            }
            TraceEvent::Ended { boundary: Boundary::Attempt, id, how } => {
                let Some(visit) = self.attempts.remove(id) else { return };
                if let EndState::Failed(facts) = how
                    && self.reports(facts)
                {
                    self.attempt_failed(visit, facts, now);
                }
            }
            TraceEvent::Ended { boundary: Boundary::Target, id, how } => {
                self.visit_ended(*id, how, now);
            }
            TraceEvent::Ended { boundary: Boundary::Call, id, how } => {
                let Some(call) = self.calls.remove(id) else { return };
                let Some(visit) = call.answered else {
                    if let EndState::Failed(_) = how
                        && let Err(what) = self.may_fail(&call, now)
                    {
                        self.mismatch(format!("call {id} fails at {now:?}: {what}"));
                    }
                    return;
                };
                self.visits.remove(&visit);
                match how {
                    EndState::Complete => self.model.succeeded(visit, now),
                    EndState::Failed(facts) => {
                        self.model.failed(visit, facts, Report::Broken, now);
                    }
                    EndState::Dropped => self.model.over(visit, now),
                }
            }
            TraceEvent::Snapshot { targets: Some(targets), .. } => {
                let began = self.world.timeline.began();
                if let Some(what) = self.model.differs(targets, now, began) {
                    self.mismatch(format!("at {now:?}: {what}"));
                }
            }
            TraceEvent::Reset => self.model.reset(),
            _ => {}
        }
    }

    /// Whether a retry layer reports such a failure before the call of the target is over.
    fn reports(&self, facts: &Facts) -> bool {
        self.world.layers.retry && facts.attempts > 0
    }

    fn witness(&self, caller: Option<usize>) -> Option<u64> {
        caller.map(|caller| (caller % self.world.policies.witnesses) as u64)
    }

    /// The latest visit of this caller at this target.
    fn visit_of(
        &mut self,
        caller: Option<usize>,
        target: Option<&Target>,
    ) -> Option<(u64, &mut Visit)> {
        let all = self.visits.iter_mut();
        let found =
            all.rev().find(|(_, visit)| visit.caller == caller && Some(&visit.target) == target);
        found.map(|(id, visit)| (*id, visit))
    }

    fn visited(
        &mut self,
        id: u64,
        caller: Option<usize>,
        target: &Target,
        alternatives: u32,
        now: Duration,
    ) {
        let Some(at) = self.candidates.iter().position(|one| one.target == *target) else {
            return self.mismatch(format!("visit {id} goes to {target}, which is no candidate"));
        };
        // A caller makes one call at a time.
        let Some((call, mut state)) = self
            .calls
            .iter()
            .rfind(|(_, call)| call.caller == caller)
            .map(|(id, _)| *id)
            .and_then(|id| self.calls.remove_entry(&id))
        else {
            return self.mismatch(format!("visit {id} is for no call"));
        };
        let beside = self.visits.iter().find(|(_, visit)| visit.call == call);
        // A change of target takes no time.
        if beside.is_none() && state.ended.unwrap_or(state.began) < now {
            state.asked.clear();
            state.found.clear();
            state.again = true;
        }
        let probing = beside.map(|(main, _)| self.model.is_probe(*main));
        let first = state.ended.is_none() && beside.is_none();
        if let Err(what) = self.may_ask(at, &state, probing, now) {
            self.mismatch(format!("visit {id} of {target} at {now:?}: {what}"));
        }
        if first && let Err(what) = self.counts_others(at, &state, alternatives, now) {
            self.mismatch(format!("visit {id} of {target} at {now:?}: {what}"));
        }
        let hedge = self.world.policies.failover.hedge;
        if let Some(newest) = self.visits.values_mut().rfind(|visit| visit.call == call) {
            // After `hedge` another one is asked beside any call, and nothing is made of that.
            let silent = now.saturating_sub(newest.began);
            newest.late |= !silent.is_zero() && hedge.is_none_or(|hedge| silent < hedge);
        }
        let spec = self.candidates[at].spec;
        state.asked.insert(spec);
        self.calls.insert(call, state);
        self.model.visited(id, target, self.witness(caller), now);
        let visit = Visit {
            call,
            caller,
            target: target.clone(),
            spec,
            alternatives,
            asked: 0,
            over: None,
            began: now,
            has_content: false,
            late: false,
        };
        self.visits.insert(id, visit);
    }

    /// Whether a call may ask that candidate now; `probing` when it is a hedge, and says whether beside a
    /// probe.
    fn may_ask(
        &self,
        at: usize,
        call: &Call,
        probing: Option<bool>,
        now: Duration,
    ) -> Result<(), String> {
        let witness = self.witness(call.caller);
        let eligibility = |one: &Candidate| self.model.eligibility(&one.target, witness, now);
        let insists = self.world.policies.failover.when_exhausted == WhenExhausted::TrySoonest;
        let Candidate { downgrade, spec, .. } = self.candidates[at];
        let until = match eligibility(&self.candidates[at]) {
            Eligibility::Well => return Ok(()),
            _ if probing == Some(false) => return Err("a hedge goes to a resting one".to_owned()),
            Eligibility::ProbeIsDue => return Ok(()),
            _ if !insists && downgrade && call.found.contains(&spec) => return Ok(()),
            Eligibility::Refuses => return Err("it refuses".to_owned()),
            Eligibility::Rests(until) => until,
        };
        if !insists {
            return Err("it rests".to_owned());
        }
        for other in self.others(Some(at), call).filter(|other| self.is_left(other, call)) {
            match eligibility(other) {
                Eligibility::Refuses => {}
                Eligibility::Rests(later) if later >= until => {}
                how => {
                    let name = &other.target;
                    return Err(format!("it rests until {until:?}, and {name} is {how:?}"));
                }
            }
        }
        Ok(())
    }

    /// Whether a call may fail: nobody is left who could be asked.
    fn may_fail(&self, call: &Call, now: Duration) -> Result<(), String> {
        let asked = call.times.values().sum::<u32>();
        let out_of_time = call.deadline.is_some_and(|deadline| deadline <= now);
        // Later rounds end with the last attempt, and when the call has waited long enough.
        if call.again || call.is_final || asked >= call.attempts_left || out_of_time {
            return Ok(());
        }
        let witness = self.witness(call.caller);
        let insists = self.world.policies.failover.when_exhausted == WhenExhausted::TrySoonest;
        for other in self.others(None, call).filter(|other| self.is_left(other, call)) {
            match self.model.eligibility(&other.target, witness, now) {
                Eligibility::Refuses => {}
                Eligibility::Rests(_) if !insists => {}
                how => return Err(format!("{} was not asked, and is {how:?}", other.target)),
            }
        }
        Ok(())
    }

    /// Whether nothing that has happened to the call speaks against asking that one in this round.
    fn is_left(&self, other: &Candidate, call: &Call) -> bool {
        // To ask it once more may cost more than is left.
        let free = self.world.policies.budget.as_ref().map_or(u32::MAX, |it| it.policy().free);
        let times = call.times.get(&other.target.to_string()).copied().unwrap_or(0);
        times <= free && !call.asked.contains(&other.spec) && !call.excused.contains(&other.spec)
    }

    /// The candidates of a call but the one at `at`, without those that stand in for others.
    fn others(&self, at: Option<usize>, call: &Call) -> impl Iterator<Item = &Candidate> {
        let own = at.map(|at| self.candidates[at].spec);
        // The calls after the faults have chains of one provider.
        let one_provider = call.caller.is_none();
        self.candidates.iter().enumerate().filter_map(move |(other, candidate)| {
            let in_chain = !one_provider || own == Some(candidate.spec);
            (Some(other) != at && in_chain && !candidate.downgrade).then_some(candidate)
        })
    }

    /// The first attempt of a call learns how many others there are that do not refuse.
    fn counts_others(
        &self,
        at: usize,
        call: &Call,
        alternatives: u32,
        now: Duration,
    ) -> Result<(), String> {
        let witness = self.witness(call.caller);
        let refuses = |other: &&Candidate| self.model.refuses(&other.target, witness, now);
        let expected = self.others(Some(at), call).filter(|other| !refuses(other)).count();
        let found = alternatives as usize;
        let downgrades = self.candidates.iter().filter(|other| other.downgrade).count();
        match (expected..=expected + downgrades).contains(&found) {
            true => Ok(()),
            false => Err(format!("{expected} others can serve the call, and it says {found}")),
        }
    }

    fn attempt_failed(&mut self, id: u64, facts: &Facts, now: Duration) {
        self.model.attempt_failed(id, facts, now);
        let Some(visit) = self.visits.get_mut(&id) else { return };
        if visit.alternatives == 0 {
            return;
        }
        visit.over = if self.model.is_probe(id) {
            Some("a probe is retried in place")
        } else if self.model.rests(id, now) {
            Some("it is retried in place while it rests")
        } else if facts.limit.is_some() {
            Some("it is retried in place after one of our limits")
        } else {
            None
        };
    }

    fn visit_ended(&mut self, id: u64, how: &EndState, now: Duration) {
        let Some(visit) = self.visits.get(&id) else { return };
        let call = self.calls.get_mut(&visit.call);
        // The one that answers the call ends with the call.
        if call.as_ref().is_some_and(|call| call.answered == Some(id)) {
            return;
        }
        let facts = match how {
            EndState::Failed(facts) => facts,
            EndState::Dropped => {
                let outrun = self.is_outrun(id);
                self.visits.remove(&id);
                if outrun && self.model.probes_a_hung_one(id) {
                    let late = Facts::from(&Failure::new(Reason::Timeout, "outrun"));
                    return self.model.failed(id, &late, Report::Whole, now);
                }
                return self.model.over(id, now);
            }
            // It was buffered to its end before it was forwarded.
            EndState::Complete => return,
        };
        if let Some(call) = call {
            call.ended = Some(now);
            let go = direction(&self.world.policies.failover, facts);
            if blames_provider(&self.world.policies.failover, facts) {
                call.found.insert(visit.spec);
            }
            call.is_final |= matches!(go, Failover::Never | Failover::Forbidden);
            if go == Failover::LargerWindow {
                call.excused.extend(self.candidates.iter().map(|candidate| candidate.spec));
            }
            let spared = call.background && facts.reason == Reason::Overloaded;
            let held = facts.hint.is_some() || facts.limit.is_some();
            if facts.retry != Retry::Yes || held || spared {
                call.excused.insert(visit.spec);
            }
        }
        self.check_attempts(visit, id);
        let report = if self.reports(facts) { Report::Last } else { Report::Whole };
        self.visits.remove(&id);
        self.model.failed(id, facts, report, now);
    }

    /// Whether another target was the first with content, after one was asked beside this for its silence.
    fn is_outrun(&self, id: u64) -> bool {
        let Some(late) = self.visits.get(&id).filter(|visit| visit.late) else { return false };
        self.visits.values().any(|other| other.call == late.call && other.has_content)
    }

    /// How often a target is asked in place.
    fn check_attempts(&self, visit: &Visit, id: u64) {
        let policy = &self.world.policies.retry;
        let retries = match (self.world.layers.retry, visit.alternatives) {
            (false, _) => 0,
            (true, 0) => policy.retries,
            (true, _) => {
                let overloaded = policy.overloaded_limit.checked_sub(1).unwrap_or(policy.retries);
                policy.retries.min(policy.retries_with_spare.max(overloaded).max(1))
            }
        };
        if visit.asked > 1 + retries {
            let Visit { asked, target, .. } = visit;
            let what = format!("visit {id} asked {target} {asked} times, with {retries} retries");
            self.world.violations.add(Invariant::WithinAttempts, what);
        }
    }

    fn mismatch(&self, what: String) {
        self.world.violations.add(Invariant::CooldownsAgree, what);
    }
}
