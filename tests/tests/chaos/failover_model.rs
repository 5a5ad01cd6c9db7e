//! The cooldowns as the documentation tells them, written down as plainly as can be.

use std::{collections::BTreeMap, time::Duration};

use steadfast::{
    Failover, Fault, Reason, Scope, Target,
    failover::{FailoverPolicy, Snapshot, WhenExhausted},
};
use tokio::time::Instant;

use crate::timeline::Facts;

/// What is known of one provider, model or credential.
#[derive(Clone, Debug, Default)]
struct Record {
    errors: u64,
    /// Failures in a row.
    row: u32,
    /// Those of them that do not pass by themselves.
    permanent: u32,
    /// The latest cooldown, over or not, until something succeeds.
    cooldown: Option<Cooldown>,
    /// The number of the note at which it last cooled or recovered: whoever began before decides
    /// nothing.
    turned: usize,
    /// The visit that sees whether it is back, and how long it may be silent.
    probe: Option<(u64, Duration)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cooldown {
    until: Duration,
    probe_from: Duration,
    asked: bool,
    reason: Reason,
}

/// One target, visited for one call.
#[derive(Clone, Debug)]
struct Visit {
    target: Target,
    /// The number of the note at which it began.
    began: usize,
}

#[derive(Debug)]
pub(crate) struct Cooldowns {
    policy: FailoverPolicy,
    records: BTreeMap<String, Record>,
    visits: BTreeMap<u64, Visit>,
}

/// Provider; provider and model; provider and credential; all three: as far as the target has
/// them.
fn records_of(target: &Target) -> Vec<String> {
    let provider = Target::new(target.provider());
    let model = target.model().map(|model| provider.with_model(model));
    let credential = target.credential().map(|name| provider.with_credential(name));
    let both = (model.is_some() && credential.is_some()).then(|| target.clone());
    let all = [Some(provider), model, credential, both];
    all.into_iter().flatten().map(|target| target.to_string()).collect()
}

/// What a failure of `target` in this scope is written on. A part without a name is the
/// provider's only one.
fn blamed(target: &Target, scope: Scope, reason: Reason) -> Option<String> {
    let provider = Target::new(target.provider());
    let model = target.model().map(|model| provider.with_model(model));
    let credential = target.credential().map(|name| provider.with_credential(name));
    let found = match scope {
        Scope::Provider => Some(provider),
        // Which model is missing is not known, so nothing is known of any other.
        Scope::Model if reason == Reason::ModelNotFound => model,
        Scope::Model => model.or(Some(provider)),
        Scope::Credential => credential.or(Some(provider)),
        Scope::ModelCredential => match (model, credential) {
            (Some(_), Some(_)) => Some(target.clone()),
            (model, credential) => model.or(credential).or(Some(provider)),
        },
        _ => None,
    };
    found.map(|target| target.to_string())
}

impl Record {
    fn cooling(&self, now: Duration) -> Option<Cooldown> {
        self.cooldown.filter(|cooldown| cooldown.until > now)
    }

    fn probing(&self, now: Duration) -> bool {
        self.probe.is_some_and(|(_, until)| until > now)
    }

    fn extend(&mut self, new: Cooldown) {
        if self.cooldown.is_none_or(|old| old.until < new.until) {
            self.cooldown = Some(new);
        }
    }
}

impl Cooldowns {
    pub(crate) fn new(policy: &FailoverPolicy) -> Self {
        Self { policy: policy.clone(), records: BTreeMap::new(), visits: BTreeMap::new() }
    }

    /// Target `target` is visited for the call that has `insisted` so often before. What is wrong
    /// with that, if anything is; else whether it was cooling and no probe.
    pub(crate) fn visited(
        &mut self,
        id: u64,
        target: &Target,
        number: usize,
        now: Duration,
        insisted: bool,
    ) -> Result<bool, String> {
        let visit = Visit { target: target.clone(), began: number };
        self.visits.insert(id, visit);
        let keys = records_of(target);
        let cooling: Vec<_> = keys
            .iter()
            .filter(|key| self.records.get(*key).is_some_and(|it| it.cooling(now).is_some()))
            .collect();
        if cooling.is_empty() {
            return Ok(false);
        }
        let of = |key: &String| &self.records[key];
        let rests: Vec<_> = cooling.iter().filter_map(|key| of(key).cooling(now)).collect();
        let ready = rests.iter().all(|rest| rest.probe_from <= now);
        let free = cooling.iter().all(|key| !of(key).probing(now));
        if ready && free {
            let until = now + self.policy.probe_limit;
            for key in cooling {
                let record = self.records.get_mut(key).unwrap();
                // Whoever was to see before was not heard of for too long.
                if record.probe.replace((id, until)).is_some() {
                    record.turned = number;
                }
            }
            return Ok(false);
        }
        let asked = rests.iter().any(|rest| rest.asked);
        if self.policy.when_exhausted == WhenExhausted::TrySoonest && !asked && !insisted {
            return Ok(true);
        }
        Err(format!("{target} was asked while it cooled: {rests:?}, free for a probe: {free}"))
    }

    /// The visit failed.
    pub(crate) fn failed(&mut self, id: u64, facts: &Facts, number: usize, now: Duration) {
        let Some(visit) = self.visits.remove(&id) else { return };
        self.write(&visit, facts, number, now);
        self.release(id);
    }

    fn write(&mut self, visit: &Visit, facts: &Facts, number: usize, now: Duration) {
        let policy = &self.policy;
        let (rule, standard) = (policy.table.rule(facts.reason), facts.reason.rule());
        // Whatever the table says otherwise than by default outranks the failure's own word.
        let scope = if rule.scope == standard.scope { facts.scope } else { rule.scope };
        let fault = if rule.fault == standard.fault { facts.fault } else { rule.fault };
        let permanent = match rule.permanent == standard.permanent {
            true => facts.permanent,
            false => rule.permanent,
        };
        let hint = facts.hint.filter(|hint| !hint.is_zero());
        let to_blame = facts.failover != Failover::Forbidden
            && fault == Fault::Provider
            && facts.limit.is_none_or(|limit| limit.blames_provider())
            && !matches!(scope, Scope::Request | Scope::Task | Scope::Local);
        if !to_blame {
            // An open breaker says when it will let somebody through.
            if let (Reason::CircuitOpen, Some(wait)) = (facts.reason, hint) {
                let key = blamed(&visit.target, Scope::ModelCredential, facts.reason).unwrap();
                let until = now + wait;
                self.records.entry(key).or_default().extend(Cooldown {
                    until,
                    probe_from: until,
                    asked: false,
                    reason: facts.reason,
                });
            }
            return;
        }
        let Some(key) = blamed(&visit.target, scope, facts.reason) else { return };
        let record = self.records.entry(key).or_default();
        record.errors += 1;
        let late = visit.began < record.turned;
        if late && record.cooling(now).is_none() {
            return;
        }
        record.row += 1;
        let own = rule.cooldown.unwrap_or_default();
        let mut wait = hint.map_or(own, |hint| hint.min(policy.longest_hint));
        if permanent {
            if !late || record.permanent == 0 {
                record.permanent += 1;
            }
            let doubled = 1u32.checked_shl(record.permanent - 1).unwrap_or(u32::MAX);
            let long = policy.permanent.saturating_mul(doubled).min(policy.permanent_cap);
            wait = wait.max(long).min(policy.longest_hint.max(policy.permanent_cap));
        }
        if wait.is_zero() {
            return;
        }
        let asked = hint.is_some();
        let early = if asked { Duration::ZERO } else { policy.probe_window.min(wait / 2) };
        let until = now + wait;
        record.extend(Cooldown { until, probe_from: until - early, asked, reason: facts.reason });
        if !late {
            (record.turned, record.probe) = (number, None);
        }
    }

    /// The answer of the visit came to its end.
    pub(crate) fn succeeded(&mut self, id: u64, number: usize) {
        let Some(visit) = self.visits.remove(&id) else { return };
        for key in records_of(&visit.target) {
            let Some(record) = self.records.get_mut(&key) else { continue };
            if visit.began < record.turned {
                continue;
            }
            (record.row, record.permanent) = (0, 0);
            if record.cooldown.take().is_some() {
                (record.turned, record.probe) = (number, None);
            }
        }
        self.release(id);
    }

    /// It was dropped: it says nothing.
    pub(crate) fn left(&mut self, id: u64) {
        self.visits.remove(&id);
        self.release(id);
    }

    fn release(&mut self, id: u64) {
        for record in self.records.values_mut() {
            record.probe = record.probe.filter(|(probe, _)| *probe != id);
        }
    }

    pub(crate) fn reset(&mut self, number: usize) {
        for record in self.records.values_mut() {
            *record = Record { turned: number, ..Record::default() };
        }
    }

    /// What is different in `seen`, if anything is.
    pub(crate) fn differs(&self, seen: &Snapshot, now: Duration, began: Instant) -> Option<String> {
        seen.targets().iter().find_map(|target| {
            let since = |at: Instant| at.saturating_duration_since(began);
            let record = self.records.get(&target.target.to_string()).cloned().unwrap_or_default();
            let own = (
                record.cooling(now).map(|it| (it.until, it.probe_from, it.asked, it.reason)),
                record.row,
                record.errors,
                record.probing(now),
            );
            let told = (
                target
                    .cooling
                    .map(|it| (since(it.until), since(it.probe_from), it.asked, it.reason)),
                target.consecutive,
                target.errors,
                target.probing,
            );
            let name = &target.target;
            (own != told).then(|| format!("{name}: expected {own:?}, and it is {told:?}"))
        })
    }
}
