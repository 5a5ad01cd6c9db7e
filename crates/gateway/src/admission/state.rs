//! What is held, by whom, and who waits for it.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use tokio::sync::oneshot;

use super::limits::{Limits, Room, Size};

/// A tenant, where there are any.
type Tenant = Option<Arc<str>>;

/// What somebody holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) requests: u64,
    /// What small bodies are charged, in bytes.
    pub(super) small: u64,
    /// What large ones are.
    pub(super) large: u64,
}

impl Held {
    fn bytes(&mut self, size: Size) -> &mut u64 {
        match size {
            Size::Small => &mut self.small,
            Size::Large => &mut self.large,
        }
    }
}

/// Somebody who waits for memory.
#[derive(Debug)]
struct Waiting {
    tenant: Tenant,
    size: Size,
    bytes: u64,
    /// Wakes it when this is dropped, which is when it has been given them.
    _given: oneshot::Sender<()>,
}

/// What is held and who waits.
#[derive(Debug)]
pub(super) struct State {
    limits: Limits,
    all: Held,
    /// Those who hold something.
    tenants: HashMap<Arc<str>, Held>,
    /// By age, the oldest request first: what is given to it lets one end, where a part for each would let none.
    waiting: BTreeMap<u64, Waiting>,
    entered: u64,
}

impl State {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            all: Held::default(),
            tenants: HashMap::new(),
            waiting: BTreeMap::new(),
            entered: 0,
        }
    }

    pub(super) fn limits(&self) -> &Limits {
        &self.limits
    }

    pub(super) fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
        self.give();
    }

    pub(super) fn held(&self) -> Held {
        self.all
    }

    /// How many wait.
    pub(super) fn waiting(&self) -> u64 {
        self.waiting.len() as u64
    }

    /// Lets a request in; its number, if there is room for it.
    pub(super) fn enter(&mut self, tenant: Option<&Arc<str>>) -> Option<u64> {
        let own = tenant.and_then(|tenant| self.tenants.get(tenant)).map_or(0, |own| own.requests);
        let Limits { requests, .. } = self.limits;
        if self.limits.room(requests, self.all.requests, own, 1) != Room::Free {
            return None;
        }
        self.all.requests += 1;
        if let Some(tenant) = tenant {
            self.tenants.entry(tenant.clone()).or_default().requests += 1;
        }
        self.entered += 1;
        Some(self.entered)
    }

    /// A request has ended, and gives back what its body was charged.
    pub(super) fn leave(&mut self, tenant: Option<&Arc<str>>, size: Size, bytes: u64) {
        self.all.requests = self.all.requests.saturating_sub(1);
        if let Some(tenant) = tenant
            && let Some(own) = self.tenants.get_mut(tenant)
        {
            own.requests = own.requests.saturating_sub(1);
        }
        self.give_back(tenant, size, bytes);
    }

    /// Takes `bytes` for the request of this number, or has it wait until it is given them.
    pub(super) fn ask(
        &mut self,
        order: u64,
        tenant: &Tenant,
        size: Size,
        bytes: u64,
    ) -> Option<oneshot::Receiver<()>> {
        if self.waiting.is_empty() && self.take(tenant.as_ref(), size, bytes) == Room::Free {
            return None;
        }
        let (_given, given) = oneshot::channel();
        self.waiting.insert(order, Waiting { tenant: tenant.clone(), size, bytes, _given });
        self.give();
        Some(given)
    }

    /// It waits no more; whether it still did.
    pub(super) fn withdraw(&mut self, order: u64) -> bool {
        let waited = self.waiting.remove(&order).is_some();
        if waited {
            // It may have been the one that others waited behind.
            self.give();
        }
        waited
    }

    pub(super) fn give_back(&mut self, tenant: Option<&Arc<str>>, size: Size, bytes: u64) {
        let all = self.all.bytes(size);
        *all = all.saturating_sub(bytes);
        if let Some(tenant) = tenant
            && let Some(own) = self.tenants.get_mut(tenant)
        {
            let bytes_held = own.bytes(size);
            *bytes_held = bytes_held.saturating_sub(bytes);
            if *own == Held::default() {
                self.tenants.remove(tenant);
            }
        }
        self.give();
    }

    /// Gives to those who wait, the oldest first. For who is behind one that there is no room for there is none
    /// either; a tenant that holds its share keeps nobody but itself waiting.
    fn give(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        let mut full = [false; 2];
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.retain(|_, one| {
            let full = &mut full[one.size as usize];
            if *full {
                return true;
            }
            let room = self.take(one.tenant.as_ref(), one.size, one.bytes);
            *full = room == Room::None;
            room != Room::Free
        });
        self.waiting = waiting;
    }

    /// Takes `bytes`, if there is room.
    fn take(&mut self, tenant: Option<&Arc<str>>, size: Size, bytes: u64) -> Room {
        let own = tenant.and_then(|tenant| self.tenants.get_mut(tenant));
        let own = own.map_or(0, |own| *own.bytes(size));
        let total = self.limits.memory_for(size);
        let room = self.limits.room(total, *self.all.bytes(size), own, bytes);
        if room == Room::Free {
            *self.all.bytes(size) += bytes;
            if let Some(tenant) = tenant {
                *self.tenants.entry(tenant.clone()).or_default().bytes(size) += bytes;
            }
        }
        room
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(memory: u64, shared: bool) -> Limits {
        Limits { requests: 8, memory, shared }
    }

    fn named(name: usize) -> Tenant {
        Some(format!("tenant-{name}").into())
    }

    #[test]
    fn the_oldest_goes_first_and_nobody_passes_it() {
        let mut state = State::new(limits(800, false));
        let large =
            |state: &mut State, order, bytes| state.ask(order, &None, Size::Large, bytes).is_none();
        assert!(large(&mut state, 1, 650));
        assert!(!large(&mut state, 3, 100), "50 are left");
        assert!(!large(&mut state, 4, 10), "there would be room, but for one that is older");
        assert!(!large(&mut state, 2, 60));
        assert!(state.ask(5, &None, Size::Small, 10).is_some() && state.held().small == 10);
        for (given_back, waiting) in [(9, 3), (1, 2), (99, 2), (1, 1), (10, 0)] {
            state.give_back(None, Size::Large, given_back);
            assert_eq!(state.waiting(), waiting, "{state:?}");
        }
        assert_eq!(state.held().large, 700);
    }

    #[test]
    fn who_gives_up_lets_those_behind_it_go_on() {
        let mut state = State::new(limits(800, false));
        assert!(state.ask(1, &None, Size::Large, 600).is_none());
        assert!(state.ask(2, &None, Size::Large, 200).is_some());
        let mut behind = state.ask(3, &None, Size::Large, 100).unwrap();
        assert!(behind.try_recv() == Err(oneshot::error::TryRecvError::Empty));
        assert!(state.withdraw(2) && !state.withdraw(2));
        assert!(behind.try_recv() == Err(oneshot::error::TryRecvError::Closed), "it is woken");
        assert!(!state.withdraw(3), "it has it");
    }

    #[test]
    fn a_tenant_that_holds_its_share_keeps_nobody_else_waiting() {
        let mut state = State::new(limits(800, true));
        assert!(state.ask(1, &named(1), Size::Large, 525).is_none());
        assert!(state.ask(2, &named(1), Size::Large, 10).is_some());
        assert!(state.ask(3, &named(2), Size::Large, 100).is_some());
        assert_eq!((state.waiting(), state.held().large), (1, 625));
        for expected in [true, true, true, true, true, true, false] {
            assert_eq!(state.enter(named(1).as_ref()).is_some(), expected);
        }
        assert!(state.enter(named(2).as_ref()).is_some());
        assert!(state.enter(named(3).as_ref()).is_none(), "all are taken, but for one");
    }

    #[test]
    fn nothing_is_lost_or_given_twice() {
        let mut random = fastrand::Rng::with_seed(12);
        for shared in [false, true] {
            let mut state = State::new(limits(8_000, shared));
            // Each request: its tenant, what it holds, what it waits for.
            let mut open: BTreeMap<u64, (Tenant, u64, Option<oneshot::Receiver<()>>)> =
                BTreeMap::new();
            for _ in 0..20_000 {
                let some = open.keys().copied().nth(random.usize(..open.len().max(1)));
                match (random.u8(..10), some) {
                    (0..3, _) => {
                        let tenant = named(random.usize(..3));
                        if let Some(order) = state.enter(tenant.as_ref()) {
                            open.insert(order, (tenant, 0, None));
                        }
                    }
                    (3..8, Some(order)) => {
                        let (tenant, held, wait) = open.get_mut(&order).unwrap();
                        let bytes = 1 + random.u64(..2_000);
                        if wait.is_none() {
                            *wait = state.ask(order, tenant, Size::Large, bytes);
                            *held += bytes;
                        }
                    }
                    (8, Some(order)) => {
                        let (tenant, held, wait) = open.remove(&order).unwrap();
                        drop(wait);
                        let bytes = held;
                        let waited = state.waiting.get(&order).map(|one| one.bytes);
                        let waits = state.withdraw(order);
                        assert_eq!(waits, waited.is_some());
                        state.leave(tenant.as_ref(), Size::Large, bytes - waited.unwrap_or(0));
                    }
                    _ => state.set_limits(limits(7_000 + random.u64(..2_000), shared)),
                }
                for (order, (_, _, wait)) in &mut open {
                    if wait.as_mut().is_some_and(|wait| {
                        wait.try_recv() == Err(oneshot::error::TryRecvError::Closed)
                    }) {
                        assert!(!state.waiting.contains_key(order));
                        *wait = None;
                    }
                }
                let holds: u64 = open
                    .iter()
                    .map(|(order, (_, held, _))| {
                        held - state.waiting.get(order).map_or(0, |one| one.bytes)
                    })
                    .sum();
                assert_eq!((state.all.requests, state.all.large), (open.len() as u64, holds));
                let by_tenant: u64 = state.tenants.values().map(|own| own.large).sum();
                assert_eq!(by_tenant, holds);
            }
            for (order, (tenant, held, _)) in std::mem::take(&mut open) {
                let waited = state.waiting.get(&order).map_or(0, |one| one.bytes);
                state.withdraw(order);
                state.leave(tenant.as_ref(), Size::Large, held - waited);
            }
            assert!(state.tenants.is_empty() && state.all == Held::default(), "{state:?}");
        }
    }
}
