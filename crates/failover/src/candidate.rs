//! One candidate: a model with a credential of a provider, and the health records it has.

use std::{sync::Arc, time::Duration};

use steadfast_core::{Needs, Permit, PermitKind, Profile, Reason, Scope, Target, Witness};
use tokio::time::Instant;

use crate::{
    chain::TargetSpec,
    health::ProbePermit,
    policy::FailoverPolicy,
    registry::{Cooling, HealthRegistry, Record},
    select::{CandidateRest, CandidateView, Lacks, ProviderState},
    service::FailoverState,
};

/// An attempt that finds out whether its target is back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Probing {
    /// Its target rests because it did not answer in time.
    pub(crate) hangs: bool,
    /// The probes before it that another target's answer outran.
    pub(crate) outrun: u32,
}

/// Bits of a permit's tag that say which candidate; those above say which of its records are probed.
const INDEX_BITS: usize = 8;

/// The position in its route of the candidate that `permit` is for.
pub(crate) fn index(permit: &Permit) -> usize {
    (permit.tag[0] & ((1 << INDEX_BITS) - 1)) as usize
}

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
    pub(crate) policy: Arc<FailoverPolicy>,
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

/// How lately a target has to have answered to be disbelieved: twice the usual rate window.
const BELIEF: Duration = Duration::from_secs(120);

impl Candidate {
    pub(crate) fn new(
        spec: &TargetSpec,
        at: u8,
        (index, rank, credential): (u8, u8, u8),
        target: Target,
        FailoverState { registry, rules, .. }: &FailoverState,
    ) -> Self {
        Self {
            native: spec.profile(target.clone(), false),
            foreign: spec.profile(target.clone(), true),
            records: Records::new(&target, registry),
            registry: registry.clone(),
            policy: rules.policy.clone(),
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
        let (mut yields, mut model_cools) = (false, false);
        for (at, record) in self.records.all.iter().enumerate() {
            let Some(cooling) = record.cooling(witness, now) else { continue };
            let Cooling { cooldown, probing, yields: own } = cooling;
            let this = CandidateRest {
                until: cooldown.until,
                probe_from: cooldown.probe_from,
                probing,
                // Once it is over, a probe decides, and those who have nobody else do not wait for it.
                refuses: cooldown.refuses && cooldown.until > now,
                reason: cooldown.reason,
            };
            rest = Some(rest.map_or(this, |other| other.later(this)));
            let Records { model, both, .. } = self.records;
            model_cools |= [model, both].contains(&u8::try_from(at).ok());
            yields |= own && self.records.model.is_some_and(|model| usize::from(model) == at);
        }
        CandidateView {
            mostly_fails: self.policy.reliable_first && self.narrowest().mostly_fails(now),
            spec: self.spec,
            rank: self.rank,
            lacks: Lacks::of(&self.native, needs),
            window: self.native.can.window,
            rest,
            model_cools,
            yields,
            position: self.spec,
            health: ProviderState::Well,
            probe_due: false,
        }
    }

    /// Its message when it refused for this reason, while it rests for that.
    pub(crate) fn refusal(&self, reason: Reason) -> Option<Box<str>> {
        self.records.all.iter().find_map(|record| record.refusal(reason))
    }

    /// Whether anything is wrong with it.
    pub(crate) fn is_degraded(&self) -> bool {
        self.records.all.iter().any(|record| record.is_degraded())
    }

    /// What is known of its provider.
    pub(crate) fn provider(&self) -> &Record {
        &self.records.all[0]
    }

    /// What is known of this very target: the record with most parts.
    pub(crate) fn narrowest(&self) -> &Record {
        let Records { all, model, credential, both } = &self.records;
        &all[usize::from(both.or(*model).or(*credential).unwrap_or(0))]
    }

    /// The record in which a failure of `scope` is counted, with the permit as that gave it.
    pub(crate) fn blamed(
        &self,
        permit: &Permit,
        scope: Scope,
        reason: Reason,
    ) -> Option<(&Record, Permit)> {
        self.each(permit).nth(self.records.blamed(scope, reason)?)
    }

    /// Whether anybody has got content from this very target so lately that it is not believed when it
    /// asks for a wait that is longer than calls take.
    pub(crate) fn has_answered_lately(&self, now: Instant) -> bool {
        let last = self.narrowest().last_success();
        last.is_some_and(|last| now.saturating_duration_since(last) <= BELIEF)
    }

    /// What the last failure of it was for.
    pub(crate) fn last_reason(&self) -> Option<Reason> {
        let failures = self.records.all.iter().filter_map(|record| record.last_failure());
        failures.max_by_key(|(at, _)| *at).map(|(_, reason)| reason)
    }

    /// Whether anything of it rests.
    pub(crate) fn rests(&self, witness: Witness) -> bool {
        let now = Instant::now();
        self.records.all.iter().any(|record| record.cooling(witness, now).is_some())
    }

    /// What is known of a probe that begins here.
    pub(crate) fn probing(&self, witness: Witness, now: Instant) -> Probing {
        let resting = self.records.all.iter().filter_map(|record| record.cooling(witness, now));
        let latest = resting.max_by_key(|cooling| cooling.cooldown.until);
        Probing {
            hangs: latest.is_some_and(|cooling| cooling.cooldown.reason == Reason::Timeout),
            outrun: self.narrowest().outrun(),
        }
    }

    /// Its answer to a probe was outrun.
    pub(crate) fn note_outrun(&self) {
        self.narrowest().change(Instant::now(), |health, _| health.outrun += 1);
    }

    /// The permit of a call that goes here now.
    #[inline]
    pub(crate) fn permit(&self, witness: Witness) -> Permit {
        let mut permit = Permit::new(PermitKind::Ordinary, 0);
        permit.tag[0] = u32::from(self.at);
        permit.witness = witness;
        for (record, order) in self.records.all.iter().zip(&mut permit.tag[1..]) {
            // Its lowest bits say which call it is.
            let position = record.begin();
            *order = position as u32;
            record.began(position, witness);
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

    /// A call is not made, or is over and says nothing: a row of failures goes past it. Noted of healthy
    /// targets too, since calls before and after it may be under way that will have failed in a row.
    pub(crate) fn release(&self, permit: &Permit) {
        let at = Instant::now();
        for (record, permit) in self.each(permit) {
            record.change(at, |health, now| health.release(now, &permit));
        }
    }

    /// The records with the position that a call has in the order of each.
    #[inline]
    pub(crate) fn positions(&self, permit: &Permit) -> impl Iterator<Item = (&Record, u64)> {
        let tags = permit.tag[1..].iter();
        self.records.all.iter().zip(tags).map(|(record, tag)| (&**record, record.position(*tag)))
    }

    /// The records with the permit as each of them gave it.
    pub(crate) fn each(&self, permit: &Permit) -> impl Iterator<Item = (&Record, Permit)> {
        self.positions(permit).enumerate().map(move |(at, (record, order))| {
            let probes = permit.tag[0] & (1 << (INDEX_BITS + at)) != 0;
            let kind = if probes { PermitKind::Probe } else { PermitKind::Ordinary };
            (record, Permit { kind, order, ..*permit })
        })
    }

    /// Those of which something is wrong, in the same way.
    pub(crate) fn degraded(&self, permit: &Permit) -> impl Iterator<Item = (&Record, Permit)> {
        self.each(permit).filter(|(record, _)| record.is_degraded())
    }
}
