//! The timeline, told to the naive models.

use std::{collections::BTreeMap, time::Duration};

use steadfast::{Reason, Target, breaker::BreakerPolicy, failover::FailoverPolicy};
use tokio::time::Instant;

use crate::{
    breaker_model::{Breaker, Decision},
    failover_model::Cooldowns,
    laws::{Court, Law},
    timeline::{Facts, How, Note, Place, What},
};

/// Tells both models what happened, and compares what they expect with what was.
pub(crate) fn judge(
    court: &Court,
    notes: &[Note],
    began: Instant,
    breaker: Option<&BreakerPolicy>,
    failover: Option<&FailoverPolicy>,
) {
    if let Some(policy) = breaker {
        let mut judge = Breakers {
            court,
            began,
            policy,
            all: BTreeMap::new(),
            asks: BTreeMap::new(),
            asking: None,
            passed: BTreeMap::new(),
        };
        notes.iter().for_each(|note| judge.see(note));
        for (key, breaker) in &mut judge.all {
            if let Some(overdue) = breaker.overdue() {
                court.broken(Law::BreakerAgrees, format!("{key}: {overdue}"));
            }
        }
    }
    if let Some(policy) = failover {
        let mut judge = Failovers {
            court,
            began,
            model: Cooldowns::new(policy),
            calls: BTreeMap::new(),
            visits: BTreeMap::new(),
        };
        notes.iter().for_each(|note| judge.see(note));
    }
}

struct Breakers<'a> {
    court: &'a Court,
    began: Instant,
    policy: &'a BreakerPolicy,
    all: BTreeMap<String, Breaker>,
    /// Attempts that asked to pass: where, and what the model said.
    asks: BTreeMap<u64, (String, Decision)>,
    /// The attempt that is just asking.
    asking: Option<u64>,
    /// What passed: the attempt, and when its first content came.
    passed: BTreeMap<u64, (u64, Option<Duration>)>,
}

fn name(target: &Option<Target>) -> String {
    target.as_ref().map_or_else(|| "-".to_owned(), Target::to_string)
}

impl Breakers<'_> {
    fn see(&mut self, note: &Note) {
        let now = note.at;
        match &note.what {
            What::Began { place: Place::Attempt, id, target, alone, .. } => {
                let key = name(target);
                let new = || Breaker::new(self.policy, now);
                let breaker = self.all.entry(key.clone()).or_insert_with(new);
                let decision = breaker.ask(*id, now, *alone);
                self.asks.insert(*id, (key, decision));
                self.asking = Some(*id);
            }
            What::Began { place: Place::Asked, id, .. } => {
                let Some(attempt) = self.asking.take() else {
                    return self.broken(format!("{id} passed, and nobody asked"));
                };
                self.passed.insert(*id, (attempt, None));
                let (key, decision) = &self.asks[&attempt];
                if let Decision::Refused(_) = decision {
                    self.broken(format!("{key}: {attempt} passed, and should have been refused"));
                }
            }
            What::Turned(turn) => {
                let key = name(&turn.key);
                let told = match self.all.get_mut(&key) {
                    Some(breaker) => breaker.changed(turn, self.began),
                    None => Err("it turned before anybody asked".to_owned()),
                };
                if let Err(what) = told {
                    self.broken(format!("{key} at {now:?}: {what}"));
                }
            }
            What::Content { id } => {
                if let Some((_, content)) = self.passed.get_mut(id) {
                    *content = Some(now);
                }
            }
            What::Ended { place: Place::Asked, id, how } => {
                let Some((attempt, content)) = self.passed.remove(id) else { return };
                let (key, _) = &self.asks[&attempt];
                self.all.get_mut(key).unwrap().end(attempt, now, how, content);
            }
            What::Ended { place: Place::Attempt, id, how: How::Failed(facts) } => {
                self.refused(*id, facts);
            }
            What::Looked { breakers, .. } => {
                for seen in breakers {
                    let key = name(&seen.key);
                    let Some(own) = self.all.get(&key) else { continue };
                    if let Some(what) = own.differs(seen, now, self.began) {
                        self.broken(format!("{key} at {now:?}: {what}; {own:?}"));
                    }
                }
            }
            What::Reset => self.all.values_mut().for_each(Breaker::reset),
            _ => {}
        }
    }

    fn refused(&self, id: u64, facts: &Facts) {
        let (key, decision) = &self.asks[&id];
        match (decision, facts.reason) {
            (Decision::Refused(wait), Reason::CircuitOpen) if facts.hint == Some(*wait) => {}
            (Decision::Refused(wait), Reason::CircuitOpen) => {
                let hint = facts.hint;
                self.broken(format!("{key}: {id} was told to wait {hint:?}, not {wait:?}"));
            }
            (Decision::Passes(_) | Decision::Observed, Reason::CircuitOpen) => {
                self.broken(format!(
                    "{key}: {id} was refused, and should have passed: {decision:?}"
                ));
            }
            (Decision::Refused(_), other) => {
                self.broken(format!("{key}: {id} should have been refused, and got {other}"));
            }
            _ => {}
        }
    }

    fn broken(&self, what: String) {
        self.court.broken(Law::BreakerAgrees, what);
    }
}

struct Failovers<'a> {
    court: &'a Court,
    began: Instant,
    model: Cooldowns,
    calls: BTreeMap<u64, Call>,
    /// Visits that are not over, and the calls they are for.
    visits: BTreeMap<u64, (u64, Target)>,
}

/// A call under way, and the visit that answered it.
#[derive(Debug, Default)]
struct Call {
    caller: Option<usize>,
    insisted: bool,
    answered: Option<u64>,
}

impl Failovers<'_> {
    fn see(&mut self, note: &Note) {
        let now = note.at;
        match &note.what {
            What::Began { place: Place::Call, id, caller, .. } => {
                self.calls.insert(*id, Call { caller: *caller, ..Call::default() });
            }
            What::Began { place: Place::Visit, id, caller, target, .. } => {
                let Some(target) = target else {
                    return self.broken(format!("visit {id} goes nowhere"));
                };
                // A caller makes one call at a time.
                let Some((call, state)) =
                    self.calls.iter_mut().rfind(|(_, call)| call.caller == *caller)
                else {
                    return self.broken(format!("visit {id} is for no call"));
                };
                self.visits.insert(*id, (*call, target.clone()));
                match self.model.visited(*id, target, now, state.insisted) {
                    Ok(insisted) => state.insisted |= insisted,
                    Err(what) => self.broken(format!("visit {id} at {now:?}: {what}")),
                }
            }
            What::Answered { id, target } => {
                let Some(call) = self.calls.get_mut(id) else { return };
                let mut of_call = self.visits.iter().rev().filter(|(_, (call, _))| call == id);
                let visit = of_call.find(|(_, (_, at))| Some(at) == target.as_ref());
                call.answered = visit.map(|(visit, _)| *visit);
                if call.answered.is_none() {
                    self.broken(format!(
                        "call {id} was answered by {target:?}, which was not asked"
                    ));
                }
            }
            What::Ended { place: Place::Visit, id, how } => {
                let Some((call, _)) = self.visits.get(id) else { return };
                // Once it is the answer of the call, it is over when the caller has it.
                if self.calls.get(call).is_some_and(|call| call.answered == Some(*id)) {
                    return;
                }
                match how {
                    How::Failed(facts) => self.model.failed(*id, facts, now),
                    How::Left => self.model.left(*id, now),
                    // It was looked at up to its end, before it was handed on.
                    How::Whole => return,
                }
                self.visits.remove(id);
            }
            What::Ended { place: Place::Call, id, how } => {
                let Some(call) = self.calls.remove(id) else { return };
                let Some(visit) = call.answered else { return };
                self.visits.remove(&visit);
                match how {
                    How::Whole => self.model.succeeded(visit, now),
                    How::Failed(facts) => self.model.failed(visit, facts, now),
                    How::Left => self.model.left(visit, now),
                }
            }
            What::Looked { targets: Some(targets), .. } => {
                if let Some(what) = self.model.differs(targets, now, self.began) {
                    self.broken(format!("at {now:?}: {what}"));
                }
            }
            What::Reset => self.model.reset(),
            _ => {}
        }
    }

    fn broken(&self, what: String) {
        self.court.broken(Law::CooldownsAgree, what);
    }
}
