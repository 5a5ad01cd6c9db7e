//! A model of the cooldowns from their documentation, as simple as possible.

use std::{collections::BTreeMap, time::Duration};

use steadfast::{
    Failover, FaultSide, PermitKind, Reason, Scope, Target,
    circuit::{Blame, CircuitPolicy, CircuitState, CircuitVerdict, Readmission, Weight},
    failover::{FailoverPolicy, FailoverSnapshot, WhenExhausted},
};
use tokio::time::Instant;

use crate::{circuit_model::CircuitModel, timeline::Facts};

/// The state of one provider, model or credential.
#[derive(Debug)]
struct Record {
    circuit: CircuitModel,
    errors: u64,
    /// Failures in a row.
    row: u32,
    /// Why it cools.
    reason: Reason,
}

/// A call of one target.
#[derive(Debug)]
struct Visit {
    target: Target,
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

/// The record that a failure of `target` in this scope counts for. A part without a name is the
/// provider's only one.
fn blamed(target: &Target, scope: Scope, reason: Reason) -> Option<String> {
    let provider = Target::new(target.provider());
    let model = target.model().map(|model| provider.with_model(model));
    let credential = target.credential().map(|name| provider.with_credential(name));
    let found = match scope {
        Scope::Provider => Some(provider),
        // Without a name it is unknown which model is missing, so no record is changed.
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
    fn new(policy: &FailoverPolicy, now: Duration) -> Self {
        let circuit = CircuitPolicy {
            consecutive: Some(1),
            second_witness: false,
            window: Duration::from_secs(60),
            min_calls: u32::MAX,
            failure_rate: None,
            slow: None,
            content_is_success: false,
            cooldown: Duration::ZERO,
            growth: 1.0,
            max_cooldown: policy.longest_hint,
            permanent_cooldown: policy.permanent,
            max_permanent: policy.permanent_cap,
            probe_lead: policy.probe_window,
            probe_limit: policy.probe_limit,
            probes: 1,
            successes: 1,
            recovery: Readmission::Everyone,
            lone: None,
        };
        let circuit = CircuitModel::new(circuit, now);
        Self { circuit, errors: 0, row: 0, reason: Reason::Cooling }
    }

    /// Until when it cools, from when on it may be probed, and whether the provider asked for it.
    fn cooling(&self, now: Duration) -> Option<(Duration, Duration, bool)> {
        let (until, probe_from) = self.circuit.rest().filter(|(until, _)| *until > now)?;
        Some((until, probe_from, self.circuit.is_hinted()))
    }

    fn probing(&self, now: Duration) -> bool {
        self.circuit.under_way(PermitKind::Probe, now) > 0
    }

    fn end(&mut self, id: u64, now: Duration, verdict: CircuitVerdict) {
        self.circuit.end(id, now, verdict, None);
        // Cooldowns do not report transitions.
        while self.circuit.take_change().is_some() {}
    }
}

impl Cooldowns {
    pub(crate) fn new(policy: &FailoverPolicy) -> Self {
        Self { policy: policy.clone(), records: BTreeMap::new(), visits: BTreeMap::new() }
    }

    fn record(&mut self, key: String, now: Duration) -> &mut Record {
        let Self { policy, records, .. } = self;
        records.entry(key).or_insert_with(|| Record::new(policy, now))
    }

    /// Target `target` is called; `insisted` if this call has called a cooling target before.
    /// Returns whether it is cooling and this is no probe, or an error if that is not allowed.
    pub(crate) fn visited(
        &mut self,
        id: u64,
        target: &Target,
        now: Duration,
        insisted: bool,
    ) -> Result<bool, String> {
        self.visits.insert(id, Visit { target: target.clone() });
        let mut rests = Vec::new();
        let mut free = true;
        for key in records_of(target) {
            let record = self.record(key, now);
            if let Some(rest) = record.cooling(now) {
                free &= !record.probing(now);
                rests.push(rest);
            }
        }
        let ready = rests.iter().all(|(_, probe_from, _)| *probe_from <= now);
        let probe = !rests.is_empty() && ready && free;
        for key in records_of(target) {
            let record = self.record(key, now);
            let kind = match record.cooling(now) {
                Some(_) if probe => PermitKind::Probe,
                _ => PermitKind::Ordinary,
            };
            record.circuit.begin(id, kind, now);
        }
        if rests.is_empty() || probe {
            return Ok(false);
        }
        let asked = rests.iter().any(|(_, _, hinted)| *hinted);
        if self.policy.when_exhausted == WhenExhausted::TrySoonest && !asked && !insisted {
            return Ok(true);
        }
        Err(format!("{target} was asked while it cooled: {rests:?}, free for a probe: {free}"))
    }

    /// The call of the target failed.
    pub(crate) fn failed(&mut self, id: u64, facts: &Facts, now: Duration) {
        let Some(visit) = self.visits.remove(&id) else { return };
        self.count(id, &visit, facts, now);
        self.release(id, &visit, now);
    }

    fn count(&mut self, id: u64, visit: &Visit, facts: &Facts, now: Duration) {
        let policy = &self.policy;
        let (rule, standard) = (policy.table.rule(facts.reason), facts.reason.rule());
        // Where the table differs from the default, it has precedence over the failure.
        let scope = if rule.scope == standard.scope { facts.scope } else { rule.scope };
        let fault = if rule.fault == standard.fault { facts.fault } else { rule.fault };
        let permanent = match rule.permanent == standard.permanent {
            true => facts.permanent,
            false => rule.permanent,
        };
        let hint = facts.hint.filter(|hint| !hint.is_zero());
        let to_blame = facts.failover != Failover::Forbidden
            && fault == FaultSide::Provider
            && facts.limit.is_none_or(|limit| limit.blames_provider())
            && !matches!(scope, Scope::Request | Scope::Task | Scope::Local);
        if !to_blame {
            // An open breaker reports when it will admit a probe.
            if let (Reason::CircuitOpen, Some(wait)) = (facts.reason, hint) {
                let key = blamed(&visit.target, Scope::ModelCredential, facts.reason).unwrap();
                let record = self.record(key, now);
                if record.cooling(now).is_none_or(|(until, ..)| until <= now) {
                    record.reason = facts.reason;
                }
                record.circuit.rest_for(now, wait);
            }
            return;
        }
        let Some(key) = blamed(&visit.target, scope, facts.reason) else { return };
        let own = rule.cooldown.unwrap_or_default();
        let blame = Blame {
            weight: Weight::Hard,
            reason: facts.reason,
            cooldown: hint.map_or(own, |hint| hint.min(policy.longest_hint)),
            hinted: hint.is_some(),
            permanent,
        };
        let record = self.record(key, now);
        record.errors += 1;
        let current = record.circuit.is_current(id);
        if !current && record.cooling(now).is_none() {
            return;
        }
        record.row += 1;
        let generation = record.circuit.generation();
        record.end(id, now, CircuitVerdict::Failure(blame));
        if record.circuit.generation() != generation {
            record.reason = facts.reason;
        }
    }

    /// The answer of the target ended.
    pub(crate) fn succeeded(&mut self, id: u64, now: Duration) {
        let Some(visit) = self.visits.remove(&id) else { return };
        for key in records_of(&visit.target) {
            let record = self.record(key, now);
            // The success of a healthy target is not noted.
            let healthy = record.row == 0
                && record.circuit.state() == CircuitState::Closed
                && record.circuit.row() == 0;
            if record.circuit.is_current(id) {
                record.row = 0;
            }
            let success = CircuitVerdict::Success;
            record.end(id, now, if healthy { CircuitVerdict::Nothing } else { success });
        }
    }

    /// It was dropped, which does not count.
    pub(crate) fn dropped(&mut self, id: u64, now: Duration) {
        let Some(visit) = self.visits.remove(&id) else { return };
        self.release(id, &visit, now);
    }

    fn release(&mut self, id: u64, visit: &Visit, now: Duration) {
        for key in records_of(&visit.target) {
            self.record(key, now).end(id, now, CircuitVerdict::Nothing);
        }
    }

    pub(crate) fn reset(&mut self) {
        for record in self.records.values_mut() {
            record.circuit.reset();
            (record.errors, record.row) = (0, 0);
        }
    }

    /// How `seen` differs from the model, if it does.
    pub(crate) fn differs(
        &self,
        seen: &FailoverSnapshot,
        now: Duration,
        began: Instant,
    ) -> Option<String> {
        seen.targets().iter().find_map(|target| {
            let since = |at: Instant| at.saturating_duration_since(began);
            let record = self.records.get(&target.target.to_string());
            let cooling = record.and_then(|record| {
                let (until, probe_from, hinted) = record.cooling(now)?;
                Some((until, probe_from, hinted, record.reason))
            });
            let expected = (
                cooling,
                record.map_or(0, |record| record.row),
                record.map_or(0, |record| record.errors),
                record.is_some_and(|record| record.probing(now)),
            );
            let found = (
                target
                    .cooling
                    .map(|it| (since(it.until), since(it.probe_from), it.hinted, it.reason)),
                target.consecutive,
                target.errors,
                target.probing,
            );
            let name = &target.target;
            (expected != found)
                .then(|| format!("{name}: expected {expected:?}, and it is {found:?}"))
        })
    }
}
