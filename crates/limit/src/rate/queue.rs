//! Who waits, by tenant: the first of each tenant in turn. Pure.

use std::collections::VecDeque;

/// Waiters in one queue for each tenant; the tenants take turns.
#[derive(Debug, Default)]
pub(super) struct FairQueue {
    /// Whose turn it is first; none is empty.
    tenants: VecDeque<TenantQueue>,
    len: usize,
}

#[derive(Debug)]
struct TenantQueue {
    /// A hash of the tenant's name.
    tenant: u64,
    waiters: VecDeque<u64>,
}

impl FairQueue {
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Who is next.
    pub(super) fn first(&self) -> Option<u64> {
        self.tenants.front()?.waiters.front().copied()
    }

    pub(super) fn push(&mut self, tenant: u64, waiter: u64) {
        self.len += 1;
        match self.tenants.iter_mut().find(|queue| queue.tenant == tenant) {
            Some(queue) => queue.waiters.push_back(waiter),
            None => {
                self.tenants.push_back(TenantQueue { tenant, waiters: VecDeque::from([waiter]) });
            }
        }
    }

    /// Takes who is next; the turn goes to the next tenant.
    pub(super) fn pop(&mut self) -> Option<u64> {
        let mut queue = self.tenants.pop_front()?;
        let waiter = queue.waiters.pop_front();
        if !queue.waiters.is_empty() {
            self.tenants.push_back(queue);
        }
        self.len -= usize::from(waiter.is_some());
        waiter
    }

    /// Takes `waiter` out, wherever it waits. Whether it did.
    pub(super) fn remove(&mut self, waiter: u64) -> bool {
        for (at, queue) in self.tenants.iter_mut().enumerate() {
            if let Some(found) = queue.waiters.iter().position(|one| *one == waiter) {
                queue.waiters.remove(found);
                if queue.waiters.is_empty() {
                    self.tenants.remove(at);
                }
                self.len -= 1;
                return true;
            }
        }
        false
    }

    /// Whom a new waiter of `tenant` replaces where there is no room for both: the last one of the tenant
    /// with the most, if that has more than `tenant` would have then.
    pub(super) fn replaced_by(&self, tenant: u64) -> Option<u64> {
        let own = self.tenants.iter().find(|queue| queue.tenant == tenant);
        let own = own.map_or(0, |queue| queue.waiters.len());
        let most = self.tenants.iter().max_by_key(|queue| queue.waiters.len())?;
        (most.waiters.len() > own + 1).then(|| most.waiters.back().copied()).flatten()
    }

    /// Those who will be served before a new waiter of `tenant`: as many of each other tenant as it has
    /// itself, and one more, if they are so many.
    pub(super) fn ahead(&self, tenant: u64) -> impl Iterator<Item = u64> {
        let own = self.tenants.iter().find(|queue| queue.tenant == tenant);
        let rounds = own.map_or(0, |queue| queue.waiters.len()) + 1;
        self.tenants.iter().flat_map(move |queue| queue.waiters.iter().take(rounds).copied())
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
            queue.push(7, waiter);
        }
        queue.push(8, 10);
        queue.push(8, 11);
        assert_eq!(queue.ahead(9).collect::<Vec<_>>(), [0, 10]);
        assert_eq!(queue.ahead(8).collect::<Vec<_>>(), [0, 1, 2, 10, 11]);
        assert_eq!(queue.replaced_by(9), Some(4), "the last of whoever has most");
        assert_eq!(queue.replaced_by(7), None);
        assert!(queue.remove(1) && !queue.remove(1));
        let order: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order, [0, 10, 2, 11, 3, 4]);
        assert!(queue.is_empty());
    }

    proptest! {
        /// Between two turns of a tenant that waits, no other has two.
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
                        queue.push(tenant, waiter as u64);
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
