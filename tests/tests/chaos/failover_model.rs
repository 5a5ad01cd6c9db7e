//! A model of the cooldowns from their documentation, as simple as possible.

use std::{collections::BTreeMap, time::Duration};

use steadfast::{
    Failover, FaultSide, PermitKind, Reason, Retry, Scope, Target, TimeLimit,
    circuit::{Blame, CircuitPolicy, CircuitVerdict, Weight},
    failover::{FailoverPolicy, FailoverSnapshot},
};
use tokio::time::Instant;

use crate::{
    circuit_model::{CircuitModel, Resting},
    timeline::Facts,
};

/// The state of one provider, model or credential.
#[derive(Debug)]
struct Record {
    circuit: CircuitModel,
    errors: u64,
    /// Failures since the last content.
    row: u32,
    /// Why it cools.
    reason: Reason,
}

/// A call of one target.
#[derive(Debug)]
struct Visit {
    target: Target,
    witness: Option<u64>,
    /// The records that it finds out about.
    probes: Vec<String>,
    /// It finds out whether a target that did not answer in time is back.
    hung: bool,
}

/// Which failure is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// One attempt's; the call goes on, or says so when it is over.
    Attempt,
    /// The last attempt's, which has been reported as such: the call is over.
    Last,
    /// The call's.
    Whole,
    /// That of an answer, after its first content.
    Broken,
}

/// How a target stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Eligibility {
    Well,
    /// It rests, and a call may find out if it is back.
    ProbeIsDue,
    /// It rests until then.
    Rests(Duration),
    /// It rests, and asking is in vain.
    Refuses,
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
            consecutive: Some(policy.rest_after),
            // One failure has one witness.
            second_witness: policy.rest_after > 1,
            trusted_for: policy.trusted_for,
            window: Duration::from_secs(60),
            min_calls: u32::MAX,
            failure_rate: None,
            slow: None,
            content_is_success: true,
            cooldown: Duration::ZERO,
            first_rest: policy.first_rest,
            growth: policy.rest_growth,
            max_cooldown: policy.longest_hint,
            permanent_cooldown: policy.permanent,
            max_permanent: policy.permanent_cap,
            probe_lead: policy.probe_window,
            probe_limit: policy.probe_limit,
            probes: 1,
            successes: 1,
            lone: None,
            turns: None,
        };
        let circuit = CircuitModel::new(circuit, now);
        Self { circuit, errors: 0, row: 0, reason: Reason::Cooling }
    }

    fn probing(&self, now: Duration) -> bool {
        self.circuit.under_way(PermitKind::Probe, now) > 0
    }

    fn end(&mut self, id: u64, now: Duration, verdict: CircuitVerdict) {
        self.circuit.end(id, now, verdict, Some(Duration::ZERO));
        self.take_changes();
    }

    /// Cooldowns do not report transitions.
    fn take_changes(&mut self) {
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

    /// How `target` stands for a call of this witness: all of its records together.
    pub(crate) fn eligibility(
        &self,
        target: &Target,
        witness: Option<u64>,
        now: Duration,
    ) -> Eligibility {
        let records = || records_of(target).into_iter().filter_map(|key| self.records.get(&key));
        let rests: Vec<Resting> =
            records().filter_map(|record| record.circuit.resting_for(witness, now)).collect();
        let Some(until) = rests.iter().map(|rest| rest.until).max() else {
            return Eligibility::Well;
        };
        let ready = rests.iter().all(|rest| rest.probe_from <= now);
        let free = || {
            let mut resting =
                records().filter(|record| record.circuit.resting_for(witness, now).is_some());
            !resting.any(|record| record.probing(now))
        };
        if ready && free() {
            Eligibility::ProbeIsDue
        } else if self.refuses(target, witness, now) {
            Eligibility::Refuses
        } else {
            Eligibility::Rests(until)
        }
    }

    /// Whether asking `target` is in vain for a call of this witness, except as a probe.
    pub(crate) fn refuses(&self, target: &Target, witness: Option<u64>, now: Duration) -> bool {
        let records = records_of(target).into_iter().filter_map(|key| self.records.get(&key));
        let mut rests = records.filter_map(|record| record.circuit.resting_for(witness, now));
        rests.any(|rest| rest.refuses && rest.until > now)
    }

    /// Target `target` is called; as a probe, when that is due.
    pub(crate) fn visited(
        &mut self,
        id: u64,
        target: &Target,
        witness: Option<u64>,
        now: Duration,
    ) {
        let probe = self.eligibility(target, witness, now) == Eligibility::ProbeIsDue;
        let hung = probe && self.longest_rest(target, witness, now) == Some(Reason::Timeout);
        let mut probes = Vec::new();
        for key in records_of(target) {
            let record = self.record(key.clone(), now);
            let kind = match record.circuit.resting() {
                Some(_) if probe => PermitKind::Probe,
                _ => PermitKind::Ordinary,
            };
            record.circuit.begin(id, kind, now, witness);
            record.take_changes();
            if kind == PermitKind::Probe {
                probes.push(key);
            }
        }
        self.visits.insert(id, Visit { target: target.clone(), witness, probes, hung });
    }

    /// Why `target` rests for a call of this witness, by what rests longest.
    fn longest_rest(&self, target: &Target, witness: Option<u64>, now: Duration) -> Option<Reason> {
        let records = records_of(target).into_iter().filter_map(|key| self.records.get(&key));
        let resting = records.filter_map(|record| {
            Some((record.circuit.resting_for(witness, now)?.until, record.reason))
        });
        resting.max_by_key(|(until, _)| *until).map(|(_, reason)| reason)
    }

    /// Whether the call's target rests for it.
    pub(crate) fn rests(&self, id: u64, now: Duration) -> bool {
        let Some(Visit { target, witness, .. }) = self.visits.get(&id) else { return false };
        self.eligibility(target, *witness, now) != Eligibility::Well
    }

    pub(crate) fn is_probe(&self, id: u64) -> bool {
        self.visits.get(&id).is_some_and(|visit| !visit.probes.is_empty())
    }

    /// Whether it finds out about a target that did not answer in time.
    pub(crate) fn probes_a_hung_one(&self, id: u64) -> bool {
        self.visits.get(&id).is_some_and(|visit| visit.hung)
    }

    /// Its first content came.
    pub(crate) fn content(&mut self, id: u64, now: Duration) {
        let Some(visit) = self.visits.get(&id) else { return };
        for key in records_of(&visit.target) {
            let record = self.record(key, now);
            if record.circuit.is_current(id) {
                record.row = 0;
            }
            record.circuit.content(id, now, Duration::ZERO);
            record.take_changes();
        }
    }

    /// An attempt of the call failed, and it is not known yet whether another one follows.
    pub(crate) fn attempt_failed(&mut self, id: u64, facts: &Facts, now: Duration) {
        self.count(id, facts, Report::Attempt, now);
    }

    /// The call of the target failed.
    pub(crate) fn failed(&mut self, id: u64, facts: &Facts, report: Report, now: Duration) {
        self.count(id, facts, report, now);
        self.over(id, now);
    }

    fn count(&mut self, id: u64, facts: &Facts, report: Report, now: Duration) {
        let Some(visit) = self.visits.get(&id) else { return };
        let target = visit.target.clone();
        let (scope, blame) = verdict(&self.policy, facts);
        let hint = facts.hint.filter(|hint| !hint.is_zero());
        let Some(blame) = blame else {
            // An open breaker reports when it will admit a call.
            if let (Reason::CircuitOpen, Some(wait), false) =
                (facts.reason, hint, facts.out_of_turn)
            {
                let key = blamed(&target, Scope::ModelCredential, facts.reason).unwrap();
                let record = self.record(key, now);
                if record.circuit.resting().is_none() {
                    record.reason = facts.reason;
                }
                record.circuit.rest_for(now, wait);
                record.take_changes();
            }
            return;
        };
        let Some(key) = blamed(&target, scope, facts.reason) else { return };
        if report == Report::Last && !visit.probes.contains(&key) {
            return;
        }
        let record = self.record(key, now);
        if report != Report::Last {
            record.errors += 1;
            // It has recovered since, or has had its rest.
            if !record.circuit.is_current(id) && record.circuit.resting().is_none() {
                return;
            }
            record.row += 1;
        }
        let generation = record.circuit.generation();
        let failure = CircuitVerdict::Failure(blame);
        match report {
            Report::Attempt => record.circuit.attempt_failed(id, now, blame),
            Report::Last | Report::Whole => record.circuit.end(id, now, failure, None),
            Report::Broken => record.circuit.end(id, now, failure, Some(Duration::ZERO)),
        }
        record.take_changes();
        if record.circuit.generation() != generation {
            record.reason = facts.reason;
        }
    }

    /// The answer of the target ended.
    pub(crate) fn succeeded(&mut self, id: u64, now: Duration) {
        let Some(visit) = self.visits.remove(&id) else { return };
        for key in records_of(&visit.target) {
            self.record(key, now).end(id, now, CircuitVerdict::Success);
        }
    }

    /// It is over and says no more: what it finds out about is free again.
    pub(crate) fn over(&mut self, id: u64, now: Duration) {
        let Some(visit) = self.visits.remove(&id) else { return };
        for key in records_of(&visit.target) {
            self.record(key, now).end(id, now, CircuitVerdict::Nothing);
        }
    }

    pub(crate) fn reset(&mut self) {
        for record in self.records.values_mut() {
            record.circuit.forget();
            record.take_changes();
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
            let cooling =
                record.and_then(|record| Some((record.circuit.resting()?, record.reason)));
            let expected = (
                cooling,
                record.map_or(0, |record| record.row),
                record.map_or(0, |record| record.errors),
                record.is_some_and(|record| record.probing(now)),
            );
            let resting = target.cooling.map(|it| {
                let (until, probe_from) = (since(it.until), since(it.probe_from));
                let (hinted, refuses) = (it.hinted, it.refuses);
                (Resting { until, probe_from, hinted, refuses }, it.reason)
            });
            let found = (resting, target.consecutive, target.errors, target.probing);
            let name = &target.target;
            (expected != found)
                .then(|| format!("{name}: expected {expected:?}, and it is {found:?}"))
        })
    }
}

/// Where a call may go after a failure.
pub(crate) fn direction(policy: &FailoverPolicy, facts: &Facts) -> Failover {
    let (rule, standard) = (policy.table.rule(facts.reason), facts.reason.rule());
    if facts.failover == Failover::Forbidden {
        Failover::Forbidden
    } else if facts.limit == Some(TimeLimit::Pipeline) {
        Failover::Never
    } else if rule.failover == standard.failover {
        facts.failover
    } else {
        rule.failover
    }
}

/// Whether a failure speaks for the whole provider, and that is to blame.
pub(crate) fn blames_provider(policy: &FailoverPolicy, facts: &Facts) -> bool {
    matches!(verdict(policy, facts), (Scope::Provider, Some(_)))
}

/// What a failure speaks for, and what it says of that; `None` when the target is not to blame.
fn verdict(policy: &FailoverPolicy, facts: &Facts) -> (Scope, Option<Blame>) {
    let (rule, standard) = (policy.table.rule(facts.reason), facts.reason.rule());
    // Where the table differs from the default, it has precedence over the failure.
    let scope = if rule.scope == standard.scope { facts.scope } else { rule.scope };
    let fault = if rule.fault == standard.fault { facts.fault } else { rule.fault };
    let permanent = match rule.permanent == standard.permanent {
        true => facts.permanent,
        false => rule.permanent,
    };
    let to_blame = facts.failover != Failover::Forbidden
        && fault == FaultSide::Provider
        && facts.limit.is_none_or(|limit| limit.blames_provider())
        && !matches!(scope, Scope::Request | Scope::Task | Scope::Local);
    // A key refused, a bill unpaid, a model gone.
    let throttled = matches!(facts.reason, Reason::RateLimit | Reason::Overloaded);
    let narrow = matches!(scope, Scope::Model | Scope::Credential | Scope::ModelCredential);
    let proves = permanent || (narrow && facts.retry == Retry::No && !throttled);
    let hint = facts.hint.filter(|hint| !hint.is_zero());
    let own = rule.cooldown.unwrap_or_default();
    let blame = Blame {
        weight: if proves { Weight::Proof } else { Weight::Hard },
        reason: facts.reason,
        cooldown: hint.map_or(own, |hint| hint.min(policy.longest_hint)),
        hinted: hint.is_some(),
        permanent,
    };
    (scope, to_blame.then_some(blame))
}
