//! Who waits, by tenant, in turns that weigh what calls take. Pure.

use std::collections::VecDeque;

/// Waiters in one queue for each tenant. Whoever has taken least is next (start-time fair queueing): a tenant
/// of large calls has fewer turns than one of small calls, and as much in all.
#[derive(Debug, Default)]
pub(super) struct FairQueue {
    /// Of two that have taken the same the first is next.
    tenants: VecDeque<TenantQueue>,
    /// What tenants had taken when they had the last turn.
    clock: u64,
    len: usize,
}

#[derive(Debug)]
struct TenantQueue {
    /// A hash of the tenant's name.
    tenant: u64,
    /// What it has taken, counted from what others had when it came. Empty, it is kept until the others have as
    /// much.
    taken: u64,
    waiters: VecDeque<QueuedCall>,
}

#[derive(Clone, Copy, Debug)]
struct QueuedCall {
    id: u64,
    weight: u64,
}

impl FairQueue {
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn next(&self) -> Option<usize> {
        let waiting =
            self.tenants.iter().enumerate().filter(|(_, queue)| !queue.waiters.is_empty());
        waiting.min_by_key(|(_, queue)| queue.taken).map(|(at, _)| at)
    }

    /// Who is next.
    pub(super) fn first(&self) -> Option<u64> {
        self.tenants[self.next()?].waiters.front().map(|call| call.id)
    }

    /// Queues a call that takes `weight`, in any unit that is the same for all.
    pub(super) fn push(&mut self, tenant: u64, id: u64, weight: u64) {
        self.len += 1;
        let known = self.tenants.iter().position(|queue| queue.tenant == tenant);
        let mut queue = match known {
            Some(at) if !self.tenants[at].waiters.is_empty() => {
                self.tenants[at].waiters.push_back(QueuedCall { id, weight });
                return;
            }
            Some(at) => self.tenants.remove(at),
            None => None,
        }
        .unwrap_or(TenantQueue { tenant, taken: 0, waiters: VecDeque::new() });
        queue.taken = queue.taken.max(self.clock);
        queue.waiters.push_back(QueuedCall { id, weight });
        self.tenants.push_back(queue);
    }

    /// Takes who is next.
    pub(super) fn pop(&mut self) -> Option<u64> {
        let mut queue = self.tenants.remove(self.next()?)?;
        let call = queue.waiters.pop_front();
        self.clock = queue.taken;
        queue.taken = queue.taken.saturating_add(call.map_or(0, |call| call.weight));
        self.tenants.push_back(queue);
        self.len -= usize::from(call.is_some());
        self.forget();
        call.map(|call| call.id)
    }

    /// Forgets tenants that wait for nothing and have taken no more than the others.
    fn forget(&mut self) {
        if self.is_empty() {
            self.tenants.clear();
            self.clock = 0;
        } else {
            self.tenants.retain(|queue| !queue.waiters.is_empty() || queue.taken > self.clock);
        }
    }

    /// Takes `waiter` out, wherever it waits. Whether it did.
    pub(super) fn remove(&mut self, waiter: u64) -> bool {
        let waits = |queue: &TenantQueue| queue.waiters.iter().position(|call| call.id == waiter);
        let found = self.tenants.iter_mut().find_map(|queue| waits(queue).map(|at| (queue, at)));
        let Some((queue, at)) = found else { return false };
        queue.waiters.remove(at);
        self.len -= 1;
        self.forget();
        true
    }

    /// Whom a new waiter of `tenant` replaces where there is no room for both: the last one of the tenant
    /// with the most, if that has more than `tenant` would have then.
    pub(super) fn replaced_by(&self, tenant: u64) -> Option<u64> {
        let own = self.tenants.iter().find(|queue| queue.tenant == tenant);
        let own = own.map_or(0, |queue| queue.waiters.len());
        let most = self.tenants.iter().max_by_key(|queue| queue.waiters.len())?;
        (most.waiters.len() > own + 1).then(|| most.waiters.back().map(|call| call.id)).flatten()
    }

    /// Those who will be served before a new waiter of `tenant`: its own, and of each other tenant those whose
    /// turn comes until then.
    pub(super) fn ahead(&self, tenant: u64) -> impl Iterator<Item = u64> {
        let own = self.tenants.iter().find(|queue| queue.tenant == tenant);
        let begins = own.map_or(self.clock, |queue| {
            let weights = queue.waiters.iter().map(|call| call.weight);
            weights.fold(queue.taken.max(self.clock), u64::saturating_add)
        });
        self.tenants.iter().flat_map(move |queue| {
            let mut taken = queue.taken;
            let turns = queue.waiters.iter().take_while(move |call| {
                let before = taken;
                taken = taken.saturating_add(call.weight);
                queue.tenant == tenant || before <= begins
            });
            turns.map(|call| call.id)
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn tenants_take_turns_whatever_they_queue() {
        let mut queue = FairQueue::default();
        for waiter in 0..5 {
            queue.push(7, waiter, 1);
        }
        queue.push(8, 10, 1);
        queue.push(8, 11, 1);
        assert_eq!(queue.ahead(9).collect::<Vec<_>>(), [0, 10]);
        assert_eq!(queue.ahead(8).collect::<Vec<_>>(), [0, 1, 2, 10, 11]);
        assert_eq!(queue.replaced_by(9), Some(4), "the last of whoever has most");
        assert_eq!(queue.replaced_by(7), None);
        assert!(queue.remove(1) && !queue.remove(1));
        let order: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order, [0, 10, 2, 11, 3, 4]);
        assert!(queue.is_empty());
    }

    #[test]
    fn who_has_taken_much_and_comes_back_waits_for_the_others() {
        let mut queue = FairQueue::default();
        queue.push(1, 100, 50);
        for waiter in 0..100 {
            queue.push(2, waiter, 1);
        }
        assert_eq!(queue.pop(), Some(100));
        assert_eq!(queue.pop(), Some(0));
        // It has none waiting, and is not forgotten.
        queue.push(1, 101, 50);
        let before = std::iter::from_fn(|| queue.pop()).take_while(|id| *id != 101).count();
        assert_eq!(before, 49, "so that each has taken 50");
    }

    proptest! {
        /// Whoever always waits gets as much as anybody else, but for one call.
        #[test]
        fn shares_are_equal_in_what_calls_take(
            weights in prop::collection::vec(prop::collection::vec(1_u64..1_000, 1..20), 2..5),
        ) {
            let mut queue = FairQueue::default();
            let mut next = vec![0_usize; weights.len()];
            let weight = |tenant: usize, call: usize| weights[tenant][call % weights[tenant].len()];
            for tenant in 0..weights.len() {
                queue.push(tenant as u64, tenant as u64, weight(tenant, 0));
            }
            let mut taken = vec![0_u64; weights.len()];
            for _ in 0..500 {
                let tenant = queue.pop().unwrap() as usize;
                taken[tenant] += weight(tenant, next[tenant]);
                next[tenant] += 1;
                queue.push(tenant as u64, tenant as u64, weight(tenant, next[tenant]));
                let (least, most) = (taken.iter().min().unwrap(), taken.iter().max().unwrap());
                prop_assert!(most - least <= 1_000, "{:?}", taken);
            }
        }

        /// Of calls that take the same: between two turns of a tenant that waits, no other has two.
        #[test]
        fn nobody_has_two_turns_between_two_of_another(
            actions in prop::collection::vec(prop_oneof![
                3 => (0_u64..4).prop_map(Some),
                2 => Just(None),
            ], 1..200),
        ) {
            let mut queue = FairQueue::default();
            let mut waiting: Vec<(u64, u64)> = Vec::new();
            // Since when each tenant has waited without a turn: the turns of the others meanwhile.
            let mut turns: [[u32; 4]; 4] = [[0; 4]; 4];
            for (waiter, action) in actions.into_iter().enumerate() {
                match action {
                    Some(tenant) => {
                        if !waiting.iter().any(|(_, owner)| *owner == tenant) {
                            turns[tenant as usize] = [0; 4];
                        }
                        queue.push(tenant, waiter as u64, 1);
                        waiting.push((waiter as u64, tenant));
                    }
                    None => {
                        let popped = queue.pop();
                        prop_assert_eq!(popped.is_some(), !waiting.is_empty());
                        let Some(popped) = popped else { continue };
                        let at = waiting.iter().position(|(waiter, _)| *waiter == popped).unwrap();
                        let (_, served) = waiting.remove(at);
                        prop_assert!(!waiting[..at].iter().any(|(_, owner)| *owner == served), "first come");
                        for tenant in 0..4_u64 {
                            if tenant == served {
                                turns[tenant as usize] = [0; 4];
                            } else if waiting.iter().any(|(_, owner)| *owner == tenant) {
                                turns[tenant as usize][served as usize] += 1;
                                prop_assert!(turns[tenant as usize][served as usize] <= 1);
                            }
                        }
                    }
                }
                prop_assert_eq!(queue.len(), waiting.len());
                prop_assert!(queue.first().is_some() != waiting.is_empty());
            }
        }
    }
}
