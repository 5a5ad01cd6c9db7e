//! Compares breakers and cooldowns with naive models that are fed from the timeline.

use std::{collections::BTreeMap, time::Duration};

use steadfast::{Reason, Target, breaker::BreakerPolicy, failover::FailoverPolicy};
use tokio::time::Instant;

use crate::{
    breaker_model::{Breaker, Decision},
    failover_model::Cooldowns,
    invariants::{Invariant, Violations},
    timeline::{Boundary, EndState, Facts, TraceEntry, TraceEvent},
};

/// Feeds the timeline to both models and compares their expectations with it.
pub(crate) fn compare(
    violations: &Violations,
    notes: &[TraceEntry],
    began: Instant,
    breaker: Option<&BreakerPolicy>,
    failover: Option<&FailoverPolicy>,
) {
    if let Some(policy) = breaker {
        let mut checker = Breakers {
            violations,
            began,
            policy,
            all: BTreeMap::new(),
            decisions: BTreeMap::new(),
            pending: None,
            admitted: BTreeMap::new(),
        };
        notes.iter().for_each(|note| checker.apply(note));
        for (key, breaker) in &mut checker.all {
            if let Some(overdue) = breaker.overdue() {
                violations.add(Invariant::BreakerAgrees, format!("{key}: {overdue}"));
            }
        }
    }
    if let Some(policy) = failover {
        let mut checker = Failovers {
            violations,
            began,
            model: Cooldowns::new(policy),
            calls: BTreeMap::new(),
            visits: BTreeMap::new(),
        };
        notes.iter().for_each(|note| checker.apply(note));
    }
}

struct Breakers<'a> {
    violations: &'a Violations,
    began: Instant,
    policy: &'a BreakerPolicy,
    all: BTreeMap<String, Breaker>,
    /// Attempts that reached the breaker: its key, and the model's decision.
    decisions: BTreeMap<u64, (String, Decision)>,
    /// The attempt that the breaker is deciding.
    pending: Option<u64>,
    /// What it admitted: the attempt, and when its first content arrived.
    admitted: BTreeMap<u64, (u64, Option<Duration>)>,
}

fn name(target: &Option<Target>) -> String {
    target.as_ref().map_or_else(|| "-".to_owned(), Target::to_string)
}

impl Breakers<'_> {
    fn apply(&mut self, note: &TraceEntry) {
        let now = note.at;
        match &note.what {
            TraceEvent::Started { boundary: Boundary::Attempt, id, target, alone, .. } => {
                let key = name(target);
                let new = || Breaker::new(self.policy, now);
                let breaker = self.all.entry(key.clone()).or_insert_with(new);
                let decision = breaker.decide(*id, now, *alone);
                self.decisions.insert(*id, (key, decision));
                self.pending = Some(*id);
            }
            TraceEvent::Started { boundary: Boundary::Admitted, id, .. } => {
                let Some(attempt) = self.pending.take() else {
                    return self.mismatch(format!("{id} was admitted without an attempt"));
                };
                self.admitted.insert(*id, (attempt, None));
                let (key, decision) = &self.decisions[&attempt];
                if let Decision::Refused(_) = decision {
                    self.mismatch(format!("{key}: {attempt} was admitted, should be refused"));
                }
            }
            TraceEvent::BreakerChanged(turn) => {
                let key = name(&turn.key);
                let result = match self.all.get_mut(&key) {
                    Some(breaker) => breaker.changed(turn, self.began),
                    None => Err("it changed before the first attempt".to_owned()),
                };
                if let Err(what) = result {
                    self.mismatch(format!("{key} at {now:?}: {what}"));
                }
            }
            TraceEvent::Content { id } => {
                if let Some((_, content)) = self.admitted.get_mut(id) {
                    *content = Some(now);
                }
            }
            TraceEvent::Ended { boundary: Boundary::Admitted, id, how } => {
                let Some((attempt, content)) = self.admitted.remove(id) else { return };
                let (key, _) = &self.decisions[&attempt];
                self.all.get_mut(key).unwrap().end(attempt, now, how, content);
            }
            TraceEvent::Ended { boundary: Boundary::Attempt, id, how: EndState::Failed(facts) } => {
                self.refused(*id, facts);
            }
            TraceEvent::Snapshot { breakers, .. } => {
                for seen in breakers {
                    let key = name(&seen.key);
                    let Some(own) = self.all.get_mut(&key) else { continue };
                    if let Some(what) = own.differs(seen, now, self.began) {
                        let text = format!("{key} at {now:?}: {what}; {own:?}");
                        self.mismatch(text);
                    }
                }
            }
            TraceEvent::Reset => self.all.values_mut().for_each(Breaker::reset),
            _ => {}
        }
    }

    fn refused(&self, id: u64, facts: &Facts) {
        let (key, decision) = &self.decisions[&id];
        match (decision, facts.reason) {
            (Decision::Refused(wait), Reason::CircuitOpen) if facts.hint == Some(*wait) => {}
            (Decision::Refused(wait), Reason::CircuitOpen) => {
                let hint = facts.hint;
                self.mismatch(format!("{key}: {id} got the hint {hint:?}, not {wait:?}"));
            }
            (Decision::Passes(_) | Decision::Observed, Reason::CircuitOpen) => {
                self.mismatch(format!("{key}: {id} was refused, should be admitted: {decision:?}"));
            }
            (Decision::Refused(_), other) => {
                self.mismatch(format!("{key}: {id} should have been refused, and got {other}"));
            }
            _ => {}
        }
    }

    fn mismatch(&self, what: String) {
        self.violations.add(Invariant::BreakerAgrees, what);
    }
}

struct Failovers<'a> {
    violations: &'a Violations,
    began: Instant,
    model: Cooldowns,
    calls: BTreeMap<u64, Call>,
    /// Calls of targets that have not ended, and the call of each.
    visits: BTreeMap<u64, (u64, Target)>,
}

/// A call in flight, and the target call that answered it.
#[derive(Debug, Default)]
struct Call {
    caller: Option<usize>,
    insisted: bool,
    answered: Option<u64>,
}

impl Failovers<'_> {
    fn apply(&mut self, note: &TraceEntry) {
        let now = note.at;
        match &note.what {
            TraceEvent::Started { boundary: Boundary::Call, id, caller, .. } => {
                self.calls.insert(*id, Call { caller: *caller, ..Call::default() });
            }
            TraceEvent::Started { boundary: Boundary::Target, id, caller, target, .. } => {
                let Some(target) = target else {
                    return self.mismatch(format!("visit {id} goes nowhere"));
                };
                // A caller makes one call at a time.
                let Some((call, state)) =
                    self.calls.iter_mut().rfind(|(_, call)| call.caller == *caller)
                else {
                    return self.mismatch(format!("visit {id} is for no call"));
                };
                self.visits.insert(*id, (*call, target.clone()));
                match self.model.visited(*id, target, now, state.insisted) {
                    Ok(insisted) => state.insisted |= insisted,
                    Err(what) => self.mismatch(format!("visit {id} at {now:?}: {what}")),
                }
            }
            TraceEvent::Answered { id, target } => {
                let Some(call) = self.calls.get_mut(id) else { return };
                let mut of_call = self.visits.iter().rev().filter(|(_, (call, _))| call == id);
                let visit = of_call.find(|(_, (_, at))| Some(at) == target.as_ref());
                call.answered = visit.map(|(visit, _)| *visit);
                if call.answered.is_none() {
                    self.mismatch(format!(
                        "call {id} was answered by {target:?}, which was not asked"
                    ));
                }
            }
            TraceEvent::Ended { boundary: Boundary::Target, id, how } => {
                let Some((call, _)) = self.visits.get(id) else { return };
                // The one that answers the call ends with the call.
                if self.calls.get(call).is_some_and(|call| call.answered == Some(*id)) {
                    return;
                }
                match how {
                    EndState::Failed(facts) => self.model.failed(*id, facts, now),
                    EndState::Dropped => self.model.dropped(*id, now),
                    // It was buffered to its end before it was forwarded.
                    EndState::Complete => return,
                }
                self.visits.remove(id);
            }
            TraceEvent::Ended { boundary: Boundary::Call, id, how } => {
                let Some(call) = self.calls.remove(id) else { return };
                let Some(visit) = call.answered else { return };
                self.visits.remove(&visit);
                match how {
                    EndState::Complete => self.model.succeeded(visit, now),
                    EndState::Failed(facts) => self.model.failed(visit, facts, now),
                    EndState::Dropped => self.model.dropped(visit, now),
                }
            }
            TraceEvent::Snapshot { targets: Some(targets), .. } => {
                if let Some(what) = self.model.differs(targets, now, self.began) {
                    self.mismatch(format!("at {now:?}: {what}"));
                }
            }
            TraceEvent::Reset => self.model.reset(),
            _ => {}
        }
    }

    fn mismatch(&self, what: String) {
        self.violations.add(Invariant::CooldownsAgree, what);
    }
}
