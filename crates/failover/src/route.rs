//! The chains in force, and the candidates of each for a model that was asked for.

use std::{
    fmt,
    hash::BuildHasher,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use foldhash::quality::RandomState;
use parking_lot::RwLock;
use smallvec::SmallVec;
use steadfast_core::{Keep, Keyed, KeyedPolicy, RetryBudget, Target};
use tokio::time::Instant;

use crate::{
    balance::{self, Equal},
    call::is_same_account,
    candidate::Candidate,
    chain::Chain,
    event,
    policy::FailoverPolicy,
    registry::HealthRegistry,
    select::CandidateView,
    service::{CallRules, FailoverState},
};

/// Models remembered. Their names come from callers; one that is forgotten is made again when it is
/// asked for.
const MAX_ROUTES: usize = 512;

/// The candidates for one model that was asked for, in order of preference.
pub(crate) struct Route {
    pub(crate) candidates: Box<[Candidate]>,
    pub(crate) rules: Arc<CallRules>,
    /// Some candidate can do less than everything, so the request's needs matter.
    pub(crate) choosy: bool,
    /// How many candidates there are beside the first one, without downgrades.
    pub(crate) spares: u32,
    /// Runs of two and more equal providers.
    groups: Box<[Group]>,
    /// How many providers the candidates are of.
    pub(crate) providers: u32,
    /// When it was made.
    pub(crate) began: Instant,
    /// What it is for; two may have the same key.
    chain: Arc<str>,
    model: Option<Box<str>>,
}

/// Equal providers: where each stands in the chain, and its weight.
type Group = Box<[(u8, u32)]>;

/// The chains in force.
#[derive(Debug)]
pub(crate) struct Chains {
    named: RwLock<Vec<Named>>,
    /// By a hash of version, chain and model. A route is made again when it has been forgotten.
    routes: Keyed<u64, Route>,
    hasher: RandomState,
    /// Moves on when a chain is replaced.
    version: AtomicU64,
}

#[derive(Debug)]
struct Named {
    name: Arc<str>,
    chain: Chain,
}

impl Keep for Route {}

impl Chains {
    /// The default chain, without a name, and others by name.
    pub(crate) fn new(default: Chain, others: Vec<(Arc<str>, Chain)>) -> Self {
        let all = std::iter::once((Arc::from(""), default)).chain(others);
        let named = all.map(|(name, chain)| Named { name, chain }).collect();
        let policy = KeyedPolicy { capacity: MAX_ROUTES, ..KeyedPolicy::default() };
        Self {
            named: RwLock::new(named),
            routes: Keyed::new(policy),
            hasher: RandomState::default(),
            version: AtomicU64::new(0),
        }
    }

    /// The candidates for `model` in the chain `name`, or in the default chain when there is none
    /// of that name.
    #[inline]
    pub(crate) fn route(
        &self,
        name: Option<&str>,
        model: Option<&str>,
        failover: &FailoverState,
    ) -> Arc<Route> {
        // Part of the key: a route of a chain that has been replaced is not found any more.
        let version = self.version.load(Ordering::Acquire);
        let name = name.unwrap_or_default();
        let key = self.hasher.hash_one((version, name, model));
        match self.routes.get(&key) {
            Some(route) if *route.chain == *name && route.model.as_deref() == model => route,
            _ => self.build(key, name, model, failover),
        }
    }

    #[cold]
    fn build(
        &self,
        key: u64,
        name: &str,
        model: Option<&str>,
        failover: &FailoverState,
    ) -> Arc<Route> {
        let chains = self.named.read();
        let at = chains.iter().position(|named| *named.name == *name);
        let named = &chains[at.unwrap_or(0)];
        let route = Route::new(named.name.clone(), &named.chain, model, failover);
        if at.is_none() {
            // Never remembered, so that each is reported.
            event::unknown_chain(name);
            return Arc::new(route);
        }
        // Under the lock: what replaces the chain meanwhile forgets this route too.
        self.routes.get_or_insert_with(&key, Instant::now(), || route)
    }

    /// Every chain by name; the default one has none.
    pub(crate) fn list(&self) -> Vec<(Arc<str>, Chain)> {
        self.named.read().iter().map(|named| (named.name.clone(), named.chain.clone())).collect()
    }

    /// Puts `chain` in place of the one called `name`, or adds it. What is known of targets that
    /// are in no chain any more is dropped, of changed ones reset; the rest is kept.
    pub(crate) fn replace(&self, name: &str, chain: Chain, registry: &HealthRegistry) {
        let mut chains = self.named.write();
        let before: Vec<_> = chains.iter().map(|named| named.chain.clone()).collect();
        let new = Named { name: name.into(), chain };
        match chains.iter().position(|named| *named.name == *name) {
            Some(at) => chains[at] = new,
            None => chains.push(new),
        }
        // Other chains may share a provider that has changed in this one.
        self.version.fetch_add(1, Ordering::Release);
        self.routes.retain(|_, _| false);
        let after: Vec<_> = chains.iter().map(|named| named.chain.clone()).collect();
        // Under the lock: a route built in between would hold on to records that are going.
        registry.retain(|key| is_kept(key, &before, &after));
    }
}

/// Whether what is known of `key` still holds.
fn is_kept(key: &Target, before: &[Chain], after: &[Chain]) -> bool {
    let specs = |chains: &[Chain]| -> Vec<_> {
        chains
            .iter()
            .flat_map(|chain| chain.iter())
            .filter(|spec| spec.provider == key.provider())
            .cloned()
            .collect()
    };
    let (old, new) = (specs(before), specs(after));
    // In none of these chains, before and after: it is of a layer that shares the records.
    if old == new {
        return true;
    }
    if new.is_empty() {
        return false;
    }
    // A key more or less says nothing about the others, unless it is the difference between having
    // names for them and having none.
    let without_keys = |specs: &[crate::TargetSpec]| -> Vec<_> {
        specs
            .iter()
            .map(|spec| {
                let mut spec = spec.clone();
                let named = !spec.credentials.is_empty();
                spec.credentials.clear();
                (spec, named)
            })
            .collect()
    };
    without_keys(&old) == without_keys(&new)
        && key.credential().is_none_or(|name| {
            new.iter().any(|spec| spec.credentials.iter().any(|other| other == name))
        })
}

impl Route {
    fn new(name: Arc<str>, chain: &Chain, asked: Option<&str>, failover: &FailoverState) -> Self {
        let mut candidates = Vec::new();
        for (index, spec) in (0u8..).zip(chain.iter()) {
            let provider = Target::new(spec.provider.as_str());
            let first = spec.models.sent(asked);
            let others = spec.downgrades.of(first).iter().map(|model| Some(model.as_str()));
            // A list for every model may name the one it is asked about.
            let others = others.filter(|other| *other != first);
            for (rank, model) in (0u8..).zip(std::iter::once(first).chain(others)) {
                let target = model.map_or(provider.clone(), |model| provider.with_model(model));
                let mut add = |credential, target| {
                    let position = (index, rank, credential);
                    // As many as fit, by `MAX_CANDIDATES`.
                    let at = u8::try_from(candidates.len()).unwrap_or(u8::MAX);
                    candidates.push(Candidate::new(spec, at, position, target, failover));
                };
                if spec.credentials.is_empty() {
                    add(0, target);
                    continue;
                }
                for (credential, name) in (0u8..).zip(&spec.credentials) {
                    add(credential, target.with_credential(name.as_str()));
                }
            }
        }
        Self {
            choosy: candidates.iter().any(Candidate::is_choosy),
            spares: candidates.iter().filter(|candidate: &&Candidate| candidate.rank == 0).count()
                as u32
                - 1,
            groups: groups(chain),
            providers: candidates.last().map_or(0, |last| u32::from(last.spec) + 1),
            candidates: candidates.into(),
            began: Instant::now(),
            rules: failover.rules.clone(),
            chain: name,
            model: asked.map(Box::from),
        }
    }

    /// Whether some of its providers are equal and share the calls.
    #[inline]
    pub(crate) fn is_shared(&self) -> bool {
        !self.groups.is_empty()
    }

    /// Whether it is of the provider that is asked first, or of an equal one that is sent the same model in
    /// the same dialect, which reads what that one has written.
    pub(crate) fn is_first(&self, candidate: &Candidate) -> bool {
        let first = &self.candidates[0];
        let group = self.groups.first().filter(|group| group[0].0 == 0);
        let equals = group.map_or(1, |group| group.len());
        candidate.spec == 0
            || (usize::from(candidate.spec) < equals
                && candidate.target.model() == first.target.model()
                && candidate.profile(false).dialect == first.profile(false).dialect)
    }

    /// Whether a conversation of which nothing is known goes to candidate `at`, or to its key for another model: as long as nothing
    /// fails.
    pub(crate) fn is_as_ever(&self, at: u8) -> bool {
        let (first, candidate) = (&self.candidates[0], self.candidate(at));
        let is_equal = || self.is_shared() && candidate.credential == 0 && self.is_first(candidate);
        is_same_account(&first.target, &candidate.target) || is_equal()
    }

    /// Where each provider of the chain comes for one call: where it stands, except beside its equals.
    pub(crate) fn share(&self, views: &mut [CandidateView], now: Instant) {
        let CallRules { policy, draws, .. } = &*self.rules;
        for group in &self.groups {
            let equal = |(spec, weight): &(u8, u32)| {
                let of_spec = self.candidates.iter().find(|candidate| candidate.spec == *spec);
                let provider = of_spec.map(Candidate::provider);
                Equal {
                    spec: *spec,
                    weight: *weight,
                    in_flight: provider.map_or(0, |provider| provider.load().in_flight()),
                    first_content: provider.and_then(|provider| provider.first_content(now)),
                }
            };
            let mut equals: SmallVec<[Equal; 8]> = group.iter().map(equal).collect();
            balance::order(policy.balance, &mut equals, draws.next());
            for (&(position, _), equal) in group.iter().zip(&equals) {
                let of_spec = views.iter_mut().filter(|view| view.spec == equal.spec);
                of_spec.for_each(|view| view.position = position);
            }
        }
    }

    #[inline]
    pub(crate) fn policy(&self) -> &FailoverPolicy {
        &self.rules.policy
    }

    /// What is drawn from: the layer's budget, or the call's `own`.
    #[inline]
    pub(crate) fn budget<'a>(&'a self, own: Option<&'a RetryBudget>) -> Option<&'a RetryBudget> {
        self.rules.budget.as_ref().or(own)
    }

    #[inline]
    pub(crate) fn candidate(&self, at: u8) -> &Candidate {
        &self.candidates[usize::from(at)]
    }
}

/// The runs of equals in `chain`.
fn groups(chain: &Chain) -> Box<[Group]> {
    let specs: Vec<_> = (0u8..).zip(chain.iter()).collect();
    let runs = specs.chunk_by(|_, (_, next)| next.equal).filter(|run| run.len() > 1);
    runs.map(|run| run.iter().map(|(at, spec)| (*at, spec.weight)).collect()).collect()
}

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let targets = self.candidates.iter().map(|candidate| &candidate.target);
        f.debug_list().entries(targets).finish()
    }
}
