//! One candidate: a model with a credential of a provider, and the health records it has.

use std::{sync::Arc, time::Duration};

use steadfast_core::{
    Failure, Lease, LeaseEnd, Needs, Observer, Outcome, Permit, PermitKind, Profile, Reason,
    RecoveryLog, RetryBudget, Scope, Target, Withdrawal,
    Witness,
};
use tokio::time::Instant;

use crate::{
    chain::TargetSpec,
    event,
    health::{Failed, FailedCall, ProbePermit},
    policy::FailureVerdict,
    registry::{Cooling, HealthRegistry, Record},
    route::Route,
    select::{CandidateRest, CandidateView, Lacks},
};

/// One candidate, made once for every request that may go there.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub(crate) target: Target,
    /// Its position in the route.
    at: u8,
    /// Which provider of the chain.
    pub(crate) spec: u8,
    /// 0 for the model that was asked for, n for the nth downgrade.
    pub(crate) rank: u8,
    /// Which of the provider's credentials.
    pub(crate) credential: u8,
    /// What a request is fitted to whose history the target wrote itself.
    native: Profile,
    /// What a request is fitted to whose history another one wrote.
    foreign: Profile,
    records: Records,
    pub(crate) registry: Arc<HealthRegistry>,
}

/// The records of a candidate: as many as its target has parts.
#[derive(Clone, Debug)]
struct Records {
    /// The provider's, which is the first, and those of the other parts.
    all: Box<[Arc<Record>]>,
    /// Places in `all`.
    model: Option<u8>,
    credential: Option<u8>,
    both: Option<u8>,
}

impl Records {
    fn new(target: &Target, registry: &HealthRegistry) -> Self {
        let provider = Target::new(target.provider());
        let model = target.model().map(|model| provider.with_model(model));
        let credential = target.credential().map(|name| provider.with_credential(name));
        let both = (model.is_some() && credential.is_some()).then(|| target.clone());
        let mut all = vec![registry.record(&provider, Scope::Provider)];
        let mut add = |key: Option<Target>, scope| {
            let key = key?;
            all.push(registry.record(&key, scope));
            u8::try_from(all.len() - 1).ok()
        };
        let model = add(model, Scope::Model);
        let credential = add(credential, Scope::Credential);
        let both = add(both, Scope::ModelCredential);
        Self { all: all.into(), model, credential, both }
    }

    /// Which record a failure of `scope` is counted in. A part that has no name is the provider's
    /// only one, and then it is the provider that rests.
    fn blamed(&self, scope: Scope, reason: Reason) -> Option<usize> {
        let at = match scope {
            // Which model is missing is not known, so nothing is known of any other.
            Scope::Model if reason == Reason::ModelNotFound => self.model?,
            Scope::Model => self.model.unwrap_or(0),
            Scope::Credential => self.credential.unwrap_or(0),
            Scope::ModelCredential => self.both.or(self.model).or(self.credential).unwrap_or(0),
            Scope::Provider => 0,
            _ => return None,
        };
        Some(usize::from(at))
    }
}

impl Candidate {
    pub(crate) fn new(
        spec: &TargetSpec,
        at: u8,
        (index, rank, credential): (u8, u8, u8),
        target: Target,
        registry: &Arc<HealthRegistry>,
    ) -> Self {
        Self {
            native: spec.profile(target.clone(), false),
            foreign: spec.profile(target.clone(), true),
            records: Records::new(&target, registry),
            registry: registry.clone(),
            at,
            spec: index,
            rank,
            credential,
            target,
        }
    }

    pub(crate) fn profile(&self, foreign: bool) -> &Profile {
        if foreign { &self.foreign } else { &self.native }
    }

    /// Whether it can do less than everything.
    pub(crate) fn is_choosy(&self) -> bool {
        !self.native.can.vision || !self.native.can.tools || self.native.can.window.is_some()
    }

    pub(crate) fn view(&self, needs: &Needs, witness: Witness, now: Instant) -> CandidateView {
        let mut rest: Option<CandidateRest> = None;
        let mut yields = false;
        for (at, record) in self.records.all.iter().enumerate() {
            let Some(Cooling { cooldown, probing, yields: own }) = record.cooling(witness, now) else {
                continue;
            };
            let this = CandidateRest {
                until: cooldown.until,
                probe_from: cooldown.probe_from,
                probing,
                hinted: cooldown.hinted,
                refuses: cooldown.refuses,
                reason: cooldown.reason,
            };
            rest = Some(rest.map_or(this, |other| other.later(this)));
            yields |= own && self.records.model.is_some_and(|model| usize::from(model) == at);
        }
        CandidateView {
            mostly_fails: self.narrowest().mostly_fails(now),
            spec: self.spec,
            rank: self.rank,
            lacks: Lacks::of(&self.native, needs),
            window: self.native.can.window,
            rest,
            yields,
        }
    }

    /// Whether anything is wrong with it.
    pub(crate) fn is_degraded(&self) -> bool {
        self.records.all.iter().any(|record| record.is_degraded())
    }

    /// What is known of this very target: the record with most parts.
    fn narrowest(&self) -> &Record {
        let Records { all, model, credential, both } = &self.records;
        &all[usize::from(both.or(*model).or(*credential).unwrap_or(0))]
    }

    /// Whether anybody has got content from this very target within `time`.
    pub(crate) fn has_answered(&self, time: Duration, now: Instant) -> bool {
        let last = self.narrowest().last_success();
        last.is_some_and(|last| now.saturating_duration_since(last) <= time)
    }

    /// Whether anything of it rests.
    pub(crate) fn rests(&self, witness: Witness) -> bool {
        let now = Instant::now();
        self.records.all.iter().any(|record| record.cooling(witness, now).is_some())
    }

    /// The permit of a call that goes here now.
    #[inline]
    pub(crate) fn permit(&self, witness: Witness) -> Permit {
        let mut permit = Permit::new(PermitKind::Ordinary, 0);
        permit.tag[0] = u32::from(self.at);
        permit.witness = witness;
        for (record, order) in self.records.all.iter().zip(&mut permit.tag[1..]) {
            // Its lowest bits say which call it is.
            let begun = record.begin();
            *order = begun as u32;
            record.began(begun, witness);
        }
        permit
    }

    /// The same for a call that is the only probe of everything that cools here; `None` when somebody
    /// else was faster.
    pub(crate) fn probe(&self, witness: Witness, now: Instant) -> Option<Permit> {
        let mut permit = Permit { kind: PermitKind::Probe, ..self.permit(witness) };
        for (at, record) in self.records.all.iter().enumerate() {
            match record.acquire_probe(now, record.position(permit.tag[1 + at])) {
                ProbePermit::NotNeeded => {}
                ProbePermit::Acquired => permit.tag[0] |= 1 << (INDEX_BITS + at),
                ProbePermit::Refused => {
                    self.release(&permit);
                    return None;
                }
            }
        }
        Some(permit)
    }

    /// A probe is not made, or says nothing.
    pub(crate) fn release(&self, permit: &Permit) {
        let at = Instant::now();
        for (record, permit) in self.each(permit) {
            if permit.kind == PermitKind::Probe || record.is_degraded() {
                record.change(at, |health, now| health.release(now, &permit));
            }
        }
    }

    /// The records with the permit as each of them gave it.
    #[inline]
    fn each(&self, permit: &Permit) -> impl Iterator<Item = (&Arc<Record>, Permit)> {
        let permit = *permit;
        self.records.all.iter().enumerate().map(move |(at, record)| {
            let probes = permit.tag[0] & (1 << (INDEX_BITS + at)) != 0;
            let kind = if probes { PermitKind::Probe } else { PermitKind::Ordinary };
            (record, Permit { kind, order: record.position(permit.tag[1 + at]), ..permit })
        })
    }

    /// Notes that a call has got its first content.
    fn content(&self, permit: &Permit, log: &RecoveryLog) {
        let at = Instant::now();
        for (record, permit) in self.each(permit) {
            record.note_content(permit.order, at);
            if record.is_degraded() {
                self.recover(record, at, &permit, log);
            }
        }
    }

    #[cold]
    fn recover(&self, record: &Record, at: Instant, permit: &Permit, log: &RecoveryLog) {
        let narrowest = std::ptr::eq(record, self.narrowest());
        let recovered = self.registry.change(record, at, |health, now| {
            if narrowest {
                health.count_call(at, false);
            }
            health.content(now, permit)
        });
        if recovered {
            event::recovered(log, &record.key);
        }
    }

    /// Notes how a call ended.
    fn ended(&self, end: &LeaseEnd<'_>) {
        match end.outcome {
            Outcome::Success => {
                let at = Instant::now();
                for (record, permit) in self.each(&end.permit) {
                    if record.is_degraded() {
                        self.answered(record, at, &permit);
                    }
                }
                return;
            }
            Outcome::Failure(failure) if !failure.is_recorded() => {
                let had_content = end.first_content.is_some();
                self.failed(failure, &end.permit, end.log, had_content, false);
            }
            _ => {}
        }
        self.release(&end.permit);
    }

    /// Notes that an answer has arrived whole.
    #[cold]
    fn answered(&self, record: &Record, at: Instant, permit: &Permit) {
        let narrowest = std::ptr::eq(record, self.narrowest());
        record.change(at, |health, now| {
            if narrowest {
                health.count_answer(at, false);
            }
            health.succeed(now, permit);
        });
    }

    /// Notes the failure of a call, or of an attempt of it that is not the last one (`goes_on`).
    fn failed(
        &self,
        failure: &Failure,
        permit: &Permit,
        log: &RecoveryLog,
        had_content: bool,
        goes_on: bool,
    ) {
        let FailureVerdict { scope, blame: Some(blame), downgrade, .. } =
            self.registry.policy.verdict(failure)
        else {
            self.rest(failure);
            return;
        };
        let at = Instant::now();
        self.narrowest().change(at, |health, _| match had_content {
            true => health.count_answer(at, true),
            false => health.count_call(at, true),
        });
        let Some(blamed) = self.records.blamed(scope, blame.reason) else { return };
        let Some((record, permit)) = self.each(permit).nth(blamed) else { return };
        let call = FailedCall {
            blame,
            yields: downgrade,
            message: failure.message(),
            had_content,
            goes_on,
        };
        let failed = self.registry.change(record, at, |health, now| health.fail(now, &permit, &call));
        let for_a_person = matches!(blame.reason, Reason::Auth | Reason::Billing);
        match failed {
            Failed::Cooled { wait, fresh } => {
                event::cooled(log, &record.key, blame.reason, wait, fresh);
                if for_a_person && fresh {
                    event::alarm(&record.key, failure);
                }
            }
            // With a cooldown of zero every one counts.
            Failed::Counted if for_a_person => event::alarm(&record.key, failure),
            Failed::Counted | Failed::Late => {}
        }
    }

    /// A breaker below refuses this target and says when it will let a call through: until then
    /// asking is in vain. It is no failure of the target's.
    fn rest(&self, failure: &Failure) {
        let (Reason::CircuitOpen, Some(wait)) = (failure.reason(), failure.retry_after()) else {
            return;
        };
        if let Some(blamed) = self.records.blamed(Scope::ModelCredential, Reason::CircuitOpen) {
            let record = &self.records.all[blamed];
            let at = Instant::now();
            self.registry.change(record, at, |health, _| health.rest(at, wait));
        }
    }
}

/// Bits of a permit's tag that say which candidate; those above say which of its records are probed.
const INDEX_BITS: usize = 8;

impl Route {
    /// The candidate that a permit is for.
    fn of(&self, permit: &Permit) -> Option<&Candidate> {
        self.candidates.get((permit.tag[0] & ((1 << INDEX_BITS) - 1)) as usize)
    }
}

impl Observer for Route {
    fn first_content(&self, permit: Permit, _: Duration, log: &RecoveryLog) {
        if let Some(candidate) = self.of(&permit) {
            candidate.content(&permit, log);
        }
    }

    fn attempt_failed(&self, permit: Permit, failure: &Failure, log: &RecoveryLog) {
        if let Some(candidate) = self.of(&permit) {
            candidate.failed(failure, &permit, log, false, true);
        }
    }

    fn rests(&self, permit: Permit) -> bool {
        self.of(&permit).is_some_and(|candidate| candidate.rests(permit.witness))
    }

    fn ended(&self, end: LeaseEnd<'_>) {
        if let Some(candidate) = self.of(&end.permit) {
            candidate.ended(&end);
        }
    }
}

/// A route, and what to put back into the budget when its candidate answers.
#[derive(Debug)]
struct Refunding {
    route: Arc<Route>,
    budget: RetryBudget,
    withdrawal: Withdrawal,
}

impl Observer for Refunding {
    fn first_content(&self, permit: Permit, after: Duration, log: &RecoveryLog) {
        self.route.first_content(permit, after, log);
    }

    fn ended(&self, end: LeaseEnd<'_>) {
        if let Outcome::Success = end.outcome {
            self.budget.refund(self.withdrawal);
        }
        self.route.ended(end);
    }
}

/// A lease on the candidate of `route` that `permit` is for. When the answer ends well it puts back into `budget` what
/// the failovers before it took out; a full one takes nothing back.
#[inline]
pub(crate) fn lease(
    route: &Arc<Route>,
    permit: Permit,
    log: RecoveryLog,
    budget: Option<&RetryBudget>,
    withdrawal: Option<Withdrawal>,
) -> Lease {
    let budget = budget.filter(|budget| withdrawal.is_some() || !budget.is_full());
    let observer: Arc<dyn Observer> = match budget {
        None => route.clone(),
        Some(budget) => {
            let withdrawal = withdrawal.unwrap_or_default();
            Arc::new(Refunding { route: route.clone(), budget: budget.clone(), withdrawal })
        }
    };
    Lease::new(observer, permit, log).observing_content(Instant::now())
}
