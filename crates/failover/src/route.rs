//! The chains in force, and the candidates of each for a model that was asked for.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use foldhash::fast::RandomState;
use parking_lot::RwLock;
use steadfast_core::{RetryBudget, Target};

use crate::{book::Book, chain::Chain, event, policy::FailoverPolicy, slot::Slot};

/// Models remembered per chain. Their names come from callers; beyond this the memory starts over,
/// which costs each model in use one rebuild.
const MAX_ROUTES: usize = 512;

/// The candidates for one model that was asked for, in order of preference.
pub(crate) struct Route {
    pub(crate) slots: Box<[Slot]>,
    /// What is drawn from for every target after the first.
    pub(crate) budget: Option<RetryBudget>,
    /// Some candidate can do less than everything, so the request's needs matter.
    pub(crate) choosy: bool,
    /// How many providers there are.
    pub(crate) providers: u8,
}

/// The chains in force.
#[derive(Debug)]
pub(crate) struct Chains {
    named: RwLock<Vec<Named>>,
    /// Moves on when a chain is replaced.
    version: AtomicU64,
}

/// The route a service used last.
#[derive(Clone, Debug, Default)]
pub(crate) struct LastRoute {
    /// One for this service and its clones alone: its pointers are counted where other cores do not
    /// meet. Made when a route is used for the second time in a row, so that a service which is used
    /// once, or goes from model to model, makes none.
    known: Option<Known>,
    /// The one looked up last.
    looked_up: Option<Arc<Route>>,
}

#[derive(Clone, Debug)]
struct Known {
    version: u64,
    chain: Option<Arc<str>>,
    model: Option<Arc<str>>,
    route: Arc<Route>,
}

impl Known {
    #[inline]
    fn is_for(&self, version: u64, chain: Option<&str>, model: Option<&str>) -> bool {
        self.version == version && self.chain.as_deref() == chain && self.model.as_deref() == model
    }
}

struct Named {
    name: Arc<str>,
    chain: Chain,
    routes: HashMap<Box<str>, Arc<Route>, RandomState>,
    /// For requests that name no model.
    unnamed: Option<Arc<Route>>,
}

impl Chains {
    /// The default chain, without a name, and others by name.
    pub(crate) fn new(default: Chain, others: Vec<(Arc<str>, Chain)>) -> Self {
        let all = std::iter::once((Arc::from(""), default)).chain(others);
        let named = all.map(|(name, chain)| Named::new(name, chain)).collect();
        Self { named: RwLock::new(named), version: AtomicU64::new(0) }
    }

    /// The candidates for `model` in the chain `name`, or in the default chain when there is none
    /// of that name: those of `last`, when it is that, without asking anybody else.
    #[inline]
    pub(crate) fn route(
        &self,
        last: &mut LastRoute,
        name: Option<&str>,
        model: Option<&str>,
        book: &Arc<Book>,
    ) -> Arc<Route> {
        // Before the look-up: what is replaced in between is looked up again.
        let version = self.version.load(Ordering::Acquire);
        if let Some(known) = &last.known
            && known.is_for(version, name, model)
        {
            return known.route.clone();
        }
        self.look_up(last, version, name, model, book)
    }

    #[cold]
    fn look_up(
        &self,
        last: &mut LastRoute,
        version: u64,
        name: Option<&str>,
        model: Option<&str>,
        book: &Arc<Book>,
    ) -> Arc<Route> {
        let (route, known) = self.find(name, model, book);
        match name {
            // Never remembered, so that each is told of.
            Some(name) if !known => event::unknown_chain(name),
            _ if last.looked_up.as_ref().is_some_and(|before| Arc::ptr_eq(before, &route)) => {
                let (chain, model) = (name.map(Arc::from), model.map(Arc::from));
                let own = Arc::new(route.renewed());
                *last = LastRoute {
                    known: Some(Known { version, chain, model, route: own.clone() }),
                    looked_up: None,
                };
                return own;
            }
            _ => last.looked_up = Some(route.clone()),
        }
        route
    }

    /// The candidates everybody shares; the flag says whether there is a chain of that name.
    fn find(
        &self,
        name: Option<&str>,
        model: Option<&str>,
        book: &Arc<Book>,
    ) -> (Arc<Route>, bool) {
        let chains = self.named.read();
        let (at, known) = position(&chains, name);
        if let Some(route) = chains[at].find(model) {
            return (route.clone(), known);
        }
        drop(chains);
        let mut chains = self.named.write();
        let (at, known) = position(&chains, name);
        (chains[at].build(model, book), known)
    }

    /// Every chain by name; the default one has none.
    pub(crate) fn list(&self) -> Vec<(Arc<str>, Chain)> {
        self.named.read().iter().map(|named| (named.name.clone(), named.chain.clone())).collect()
    }

    /// Puts `chain` in place of the one called `name`, or adds it. What is known of targets that
    /// are in no chain any more is dropped, of changed ones reset; the rest is kept.
    pub(crate) fn replace(&self, name: &str, chain: Chain, book: &Book) {
        let mut chains = self.named.write();
        let before: Vec<_> = chains.iter().map(|named| named.chain.clone()).collect();
        let new = Named::new(name.into(), chain);
        match chains.iter().position(|named| *named.name == *name) {
            Some(at) => chains[at] = new,
            None => chains.push(new),
        }
        // Other chains may share a provider that has changed in this one.
        chains.iter_mut().for_each(Named::forget);
        self.version.fetch_add(1, Ordering::Release);
        let after: Vec<_> = chains.iter().map(|named| named.chain.clone()).collect();
        // Under the lock: a route built in between would hold on to records that are going.
        book.retain(|key| is_kept(key, &before, &after));
    }
}

fn position(chains: &[Named], name: Option<&str>) -> (usize, bool) {
    match name.map(|name| chains.iter().position(|named| *named.name == *name)) {
        None => (0, true),
        Some(Some(at)) => (at, true),
        Some(None) => (0, false),
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
    if new.is_empty() {
        return false;
    }
    if old == new {
        return true;
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

impl Named {
    fn new(name: Arc<str>, chain: Chain) -> Self {
        Self { name, chain, routes: HashMap::default(), unnamed: None }
    }

    fn find(&self, model: Option<&str>) -> Option<&Arc<Route>> {
        match model {
            Some(model) => self.routes.get(model),
            None => self.unnamed.as_ref(),
        }
    }

    fn build(&mut self, model: Option<&str>, book: &Arc<Book>) -> Arc<Route> {
        if let Some(route) = self.find(model) {
            return route.clone();
        }
        let route = Arc::new(Route::new(&self.chain, model, book));
        match model {
            Some(model) => {
                if self.routes.len() >= MAX_ROUTES {
                    self.routes.clear();
                }
                self.routes.insert(model.into(), route.clone());
            }
            None => self.unnamed = Some(route.clone()),
        }
        route
    }

    fn forget(&mut self) {
        self.routes.clear();
        self.unnamed = None;
    }
}

impl Route {
    fn new(chain: &Chain, asked: Option<&str>, book: &Arc<Book>) -> Self {
        let mut slots = Vec::new();
        for (index, spec) in (0u8..).zip(chain.iter()) {
            let provider = Target::new(spec.provider.as_str());
            let first = spec.models.sent(asked);
            let others = spec.downgrades.of(first).iter().map(|model| Some(model.as_str()));
            // A list for every model may name the one it is asked about.
            let others = others.filter(|other| *other != first);
            for (rank, model) in (0u8..).zip(std::iter::once(first).chain(others)) {
                let target = model.map_or(provider.clone(), |model| provider.with_model(model));
                let mut add = |credential, target| {
                    let place = (index, rank, credential);
                    slots.push(Slot::new(spec, place, target, book));
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
        let choosy = slots.iter().any(Slot::is_choosy);
        let providers = slots.last().map_or(0, |slot| slot.spec + 1);
        Self { slots: slots.into(), budget: book.budget.clone(), choosy, providers }
    }

    /// The same candidates and the same books, with pointers counted apart from these.
    fn renewed(&self) -> Self {
        Self {
            slots: self.slots.iter().map(Slot::renewed).collect(),
            budget: self.budget.as_ref().map(RetryBudget::renewed),
            choosy: self.choosy,
            providers: self.providers,
        }
    }

    #[inline]
    pub(crate) fn book(&self) -> &Book {
        &self.slots[0].book
    }

    #[inline]
    pub(crate) fn policy(&self) -> &FailoverPolicy {
        &self.book().policy
    }

    /// Whether any candidate may be cooling.
    #[inline]
    pub(crate) fn may_cool(&self) -> bool {
        self.book().may_cool() && self.slots.iter().any(Slot::may_cool)
    }

    /// What is drawn from: the layer's budget, or the call's `own`.
    #[inline]
    pub(crate) fn budget<'a>(&'a self, own: Option<&'a RetryBudget>) -> Option<&'a RetryBudget> {
        self.budget.as_ref().or(own)
    }

    #[inline]
    pub(crate) fn slot(&self, at: u8) -> &Slot {
        &self.slots[usize::from(at)]
    }
}

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.slots.iter().map(|slot| &slot.target)).finish()
    }
}

impl fmt::Debug for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Named")
            .field("name", &self.name)
            .field("chain", &self.chain)
            .field("routes", &self.routes.len())
            .finish_non_exhaustive()
    }
}
