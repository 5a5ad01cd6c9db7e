//! The chains in force, and the candidates of each for a model that was asked for.

use std::{collections::HashMap, fmt, sync::Arc};

use foldhash::fast::RandomState;
use parking_lot::RwLock;
use steadfast_core::Target;

use crate::{book::Book, chain::Chain, slot::Slot};

/// Models remembered per chain. Their names come from callers; beyond this the memory starts over,
/// which costs each model in use one rebuild.
const MAX_ROUTES: usize = 512;

/// The candidates for one model that was asked for, in order of preference.
pub(crate) struct Route {
    pub(crate) slots: Box<[Arc<Slot>]>,
    /// Some candidate can do less than everything, so the request's needs matter.
    pub(crate) choosy: bool,
    /// How many providers there are.
    pub(crate) providers: u8,
}

/// The chains in force.
#[derive(Debug)]
pub(crate) struct Chains {
    named: RwLock<Vec<Named>>,
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
        Self { named: RwLock::new(all.map(|(name, chain)| Named::new(name, chain)).collect()) }
    }

    /// The candidates for `model` in the chain `name`, or in the default chain when there is none
    /// of that name; the flag says so.
    pub(crate) fn route(
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
                    slots.push(Arc::new(Slot::new(spec, place, target, book)));
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
        let choosy = slots.iter().any(|slot| slot.is_choosy());
        let providers = slots.last().map_or(0, |slot| slot.spec + 1);
        Self { slots: slots.into(), choosy, providers }
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
