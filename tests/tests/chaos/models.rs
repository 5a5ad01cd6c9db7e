//! Compares breakers and cooldowns with naive models that are fed from the timeline.

use std::{collections::BTreeMap, time::Duration};

use steadfast::{Reason, Target, breaker::BreakerPolicy};
use tokio::time::Instant;

use crate::{
    breaker_model::{Asking, Breaker, Decision},
    invariants::{Invariant, Violations},
    timeline::{Boundary, EndState, Facts, TraceEntry, TraceEvent},
    visits,
    world::World,
};

/// Feeds the timeline to both models and compares their expectations with it.
pub(crate) fn compare(world: &World) {
    let notes = world.timeline.notes();
    if world.layers.breaker {
        let mut checker = Breakers {
            violations: &world.violations,
            began: world.timeline.began(),
            policy: &world.policies.breaker,
            routed: world.layers.failover,
            witnesses: world.policies.witnesses,
            all: BTreeMap::new(),
            decisions: BTreeMap::new(),
            pending: None,
            admitted: BTreeMap::new(),
            asked: BTreeMap::new(),
        };
        notes.iter().for_each(|note| checker.apply(note));
        for (key, breaker) in &mut checker.all {
            if let Some(overdue) = breaker.overdue() {
                world.violations.add(Invariant::BreakerAgrees, format!("{key}: {overdue}"));
            }
        }
    }
    if world.layers.failover {
        visits::compare(world, &notes);
    }
}

struct Breakers<'a> {
    violations: &'a Violations,
    began: Instant,
    policy: &'a BreakerPolicy,
    /// There is a failover around it.
    routed: bool,
    witnesses: usize,
    all: BTreeMap<String, Breaker>,
    /// Attempts that reached the breaker: its key, and the model's decision.
    decisions: BTreeMap<u64, (String, Decision)>,
    /// The attempt that the breaker is deciding.
    pending: Option<u64>,
    /// What it admitted: the attempt, and when its first content arrived.
    admitted: BTreeMap<u64, (u64, Option<Duration>)>,
    /// How often each caller's call has asked each target.
    asked: BTreeMap<(Option<usize>, String), u32>,
}

fn name(target: &Option<Target>) -> String {
    target.as_ref().map_or_else(|| "-".to_owned(), Target::to_string)
}

impl Breakers<'_> {
    fn apply(&mut self, note: &TraceEntry) {
        let now = note.at;
        match &note.what {
            TraceEvent::Started { boundary: Boundary::Call, caller, .. } => {
                self.asked.retain(|(other, _), _| other != caller);
            }
            TraceEvent::Started {
                boundary: Boundary::Attempt,
                id,
                caller,
                target,
                alternatives,
                repeats,
                ..
            } => {
                let key = name(target);
                let asked = self.asked.get(&(*caller, key.clone())).copied().unwrap_or(0);
                if *repeats != self.routed.then_some(asked) {
                    self.mismatch(format!("{key}: {id} says {repeats:?}, was asked {asked} times"));
                }
                let new = || Breaker::new(self.policy, self.routed, now);
                let breaker = self.all.entry(key.clone()).or_insert_with(new);
                let witness = caller.map(|caller| (caller % self.witnesses) as u64);
                let asking = Asking { alone: *alternatives == 0, first: asked == 0, witness };
                let decision = breaker.decide(*id, now, asking);
                self.decisions.insert(*id, (key, decision));
                self.pending = Some(*id);
            }
            TraceEvent::Started { boundary: Boundary::Admitted, id, caller, target, .. } => {
                *self.asked.entry((*caller, name(target))).or_default() += 1;
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
                if let Some((attempt, content)) = self.admitted.get_mut(id) {
                    *content = Some(now);
                    let (key, _) = &self.decisions[attempt];
                    self.all.get_mut(key).unwrap().content(*attempt, now);
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
