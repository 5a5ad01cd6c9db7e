//! The keys of what was delivered: bounded by number and age.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use steadfast_core::time::millis;

use crate::LedgerPolicy;

/// A pure state machine: it is given the time.
#[derive(Debug)]
pub(crate) struct LedgerKeys {
    keys: usize,
    age_ms: u64,
    delivered: HashMap<Arc<str>, u64>,
    /// The oldest first.
    order: VecDeque<(Arc<str>, u64)>,
}

impl LedgerKeys {
    pub(crate) fn new(policy: &LedgerPolicy) -> Self {
        let age_ms = millis(policy.age);
        Self { keys: policy.keys, age_ms, delivered: HashMap::new(), order: VecDeque::new() }
    }

    /// When the message was delivered, if that is known.
    pub(crate) fn get(&self, key: &str, now: u64) -> Option<u64> {
        let at = *self.delivered.get(key)?;
        (now.saturating_sub(at) < self.age_ms).then_some(at)
    }

    /// It was delivered `at`; false if that was known. The first time counts.
    pub(crate) fn insert(&mut self, key: Arc<str>, at: u64, now: u64) -> bool {
        self.forget_old(now);
        if self.delivered.contains_key(&key) || now.saturating_sub(at) >= self.age_ms {
            return false;
        }
        self.delivered.insert(key.clone(), at);
        self.order.push_back((key, at));
        while self.order.len() > self.keys {
            self.forget_first();
        }
        true
    }

    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }

    pub(crate) fn clear(&mut self) {
        self.delivered.clear();
        self.order.clear();
    }

    fn forget_old(&mut self, now: u64) {
        while self.order.front().is_some_and(|(_, at)| now.saturating_sub(*at) >= self.age_ms) {
            self.forget_first();
        }
    }

    fn forget_first(&mut self) {
        if let Some((key, _)) = self.order.pop_front() {
            self.delivered.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn as_a_list_that_forgets(
            events in proptest::collection::vec((0..12_u8, 0..40_u64), 0..80),
            keys in 1..8_usize,
        ) {
            let policy = LedgerPolicy { keys, age: Duration::from_millis(100), ..LedgerPolicy::default() };
            let (mut ledger, mut naive, mut now) = (LedgerKeys::new(&policy), Vec::<(u8, u64)>::new(), 0);
            for (key, wait) in events {
                now += wait;
                naive.retain(|(_, at)| now - at < 100);
                let known = naive.iter().any(|(one, _)| *one == key);
                if !known {
                    naive.push((key, now));
                    naive.drain(..naive.len().saturating_sub(keys));
                }
                prop_assert_eq!(ledger.insert(key.to_string().into(), now, now), !known);
                for other in 0..12_u8 {
                    let expected = naive.iter().find(|(one, _)| *one == other).map(|(_, at)| *at);
                    prop_assert_eq!(ledger.get(&other.to_string(), now), expected);
                }
                prop_assert_eq!(ledger.len(), naive.len());
            }
        }
    }
}
