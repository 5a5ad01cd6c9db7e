//! Per-key state of bounded size.

use std::{
    borrow::Borrow,
    cmp::Reverse,
    collections::HashMap,
    fmt,
    hash::{BuildHasher, Hash},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use foldhash::quality::RandomState;
use parking_lot::RwLock;
use tokio::time::Instant;

use crate::time::millis;

/// Locks the keys are spread over, so that an insertion blocks only some of the readers.
const SHARDS: usize = 8;

/// How many keys are kept and for how long. A configuration says how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(from = "usize", into = "usize"))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct KeyedPolicy {
    /// The most keys kept. Beyond it the owner of most keys loses its longest unused one, even one that is
    /// held: memory is bounded even when keys come from callers.
    pub capacity: usize,
    /// How long an unused key is kept.
    pub idle: Duration,
}

impl Default for KeyedPolicy {
    /// 4,096 keys, far more than targets or models there are, and enough for the tenants of one
    /// process; an hour, so that a state outlives the longest cooldown that is usual.
    fn default() -> Self {
        Self { capacity: 4_096, idle: Duration::from_secs(3_600) }
    }
}

impl From<usize> for KeyedPolicy {
    fn from(capacity: usize) -> Self {
        Self { capacity, ..Self::default() }
    }
}

impl From<KeyedPolicy> for usize {
    fn from(policy: KeyedPolicy) -> Self {
        policy.capacity
    }
}

/// A bounded map from keys to shared state, which evicts idle keys.
///
/// A value that is held (by a lease, a handle) or for which [`Keep::keep`] is true is not evicted for
/// being idle. When there are too many keys, their [owners](Keep::owner) share the room fairly: who has most
/// of them loses first, what is kept last and the longest unused before the others. A lookup of an existing key takes a shared lock and allocates nothing.
pub struct Keyed<K, V> {
    shards: [RwLock<HashMap<K, Entry<V>, RandomState>>; SHARDS],
    hasher: RandomState,
    /// Read when a key is new.
    policy: RwLock<KeyedPolicy>,
    epoch: Instant,
}

struct Entry<V> {
    value: Arc<V>,
    /// Milliseconds since the map's epoch; written at most once a second.
    used: AtomicU64,
}

/// State of a [`Keyed`] map that decides whether it may be evicted.
pub trait Keep {
    /// Whether this must not be evicted for being idle: an open breaker, for example, whose key is
    /// not used because it is open.
    fn keep(&self, now: Instant) -> bool {
        let _ = now;
        false
    }

    /// Whose it is, as a hash: a tenant's, for example. An owner who has more keys than others loses them
    /// before the others lose any. By default all keys have one owner.
    fn owner(&self) -> u64 {
        0
    }

    /// Called when the map has evicted it, possibly under the map's lock: holders should get the key
    /// again.
    fn evicted(&self) {}
}

impl<K, V> Keyed<K, V>
where
    K: Hash + Eq + Clone,
    V: Keep,
{
    /// An empty map.
    pub fn new(policy: KeyedPolicy) -> Self {
        let hasher = RandomState::default();
        Self {
            shards: std::array::from_fn(|_| RwLock::new(HashMap::with_hasher(hasher.clone()))),
            hasher,
            policy: RwLock::new(policy),
            epoch: Instant::now(),
        }
    }

    /// Keeps as many keys as `policy` says from now on; what is too many is evicted by the next new keys.
    pub fn set_policy(&self, policy: KeyedPolicy) {
        *self.policy.write() = policy;
    }

    /// The state of `key`, made by `make` when there is none yet.
    pub fn get_or_insert_with(&self, key: &K, now: Instant, make: impl FnOnce() -> V) -> Arc<V> {
        self.get_or_insert_by(key, now, || (key.clone(), make()))
    }

    /// The same by a borrowed key, such as a `&str`; `make` makes the key too, so that a lookup of an existing
    /// one allocates nothing.
    pub fn get_or_insert_by<Q>(
        &self,
        key: &Q,
        now: Instant,
        make: impl FnOnce() -> (K, V),
    ) -> Arc<V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let shard = self.shard(key);
        let tick = self.tick(now);
        if let Some(entry) = shard.read().get(key) {
            entry.touch(tick);
            return entry.value.clone();
        }
        let mut map = shard.write();
        if let Some(entry) = map.get(key) {
            entry.touch(tick);
            return entry.value.clone();
        }
        let policy = *self.policy.read();
        let capacity = (policy.capacity / SHARDS).max(1);
        if map.len() >= capacity {
            self.evict(&mut map, capacity, policy.idle, now);
        }
        let (key, value) = make();
        let value = Arc::new(value);
        map.insert(key, Entry { value: value.clone(), used: AtomicU64::new(tick) });
        value
    }

    /// The state of `key`, if there is any. Does not count as use.
    pub fn get(&self, key: &K) -> Option<Arc<V>> {
        self.get_by(key)
    }

    /// The same by a borrowed key.
    pub fn get_by<Q>(&self, key: &Q) -> Option<Arc<V>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.shard(key).read().get(key).map(|entry| entry.value.clone())
    }

    /// Removes `key`.
    pub fn remove(&self, key: &K) -> Option<Arc<V>> {
        let entry = self.shard(key).write().remove(key)?;
        entry.value.evicted();
        Some(entry.value)
    }

    /// Removes every key for which `keep` is false.
    pub fn retain(&self, mut keep: impl FnMut(&K, &Arc<V>) -> bool) {
        for shard in &self.shards {
            shard.write().retain(|key, entry| {
                let kept = keep(key, &entry.value);
                if !kept {
                    entry.value.evicted();
                }
                kept
            });
        }
    }

    /// Every key with its state, in no order.
    pub fn entries(&self) -> Vec<(K, Arc<V>)> {
        self.shards
            .iter()
            .flat_map(|shard| {
                shard
                    .read()
                    .iter()
                    .map(|(key, entry)| (key.clone(), entry.value.clone()))
                    .collect::<Vec<_>>()
            })
            .collect()
    }

    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.read().len()).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.shards.iter().all(|shard| shard.read().is_empty())
    }

    /// Evicts idle keys, and when those are too few, so many of the owners who have most that an eighth is
    /// free.
    fn evict(
        &self,
        map: &mut HashMap<K, Entry<V>, RandomState>,
        capacity: usize,
        idle: Duration,
        now: Instant,
    ) {
        let tick = self.tick(now);
        let idle = millis(idle);
        map.retain(|_, entry| {
            let kept = tick.saturating_sub(entry.used.load(Ordering::Relaxed)) < idle
                || Arc::strong_count(&entry.value) > 1
                || entry.value.keep(now);
            if !kept {
                entry.value.evicted();
            }
            kept
        });
        if map.len() < capacity {
            return;
        }
        let room = capacity - 1 - capacity / 8;
        let uses = map.iter().map(|(key, entry)| KeyUse {
            owner: entry.value.owner(),
            kept: Arc::strong_count(&entry.value) > 1 || entry.value.keep(now),
            used: entry.used.load(Ordering::Relaxed),
            key: key.clone(),
        });
        for KeyUse { key, .. } in surplus(uses.collect(), room) {
            if let Some(entry) = map.remove(&key) {
                entry.value.evicted();
            }
        }
    }

    fn shard<Q: Hash + ?Sized>(&self, key: &Q) -> &RwLock<HashMap<K, Entry<V>, RandomState>> {
        // The top bits, since the maps use the low ones.
        let hash = self.hasher.hash_one(key);
        let index = usize::try_from(hash >> 61).unwrap_or(0);
        &self.shards[index % SHARDS]
    }

    fn tick(&self, now: Instant) -> u64 {
        millis(now.saturating_duration_since(self.epoch))
    }
}

/// What decides whether a key stays.
#[derive(Clone, Debug)]
struct KeyUse<K> {
    owner: u64,
    /// Something depends on it.
    kept: bool,
    used: u64,
    key: K,
}

impl<K> KeyUse<K> {
    /// Its position among those of its owner, the best first.
    fn position(&self) -> (bool, Reverse<u64>) {
        (!self.kept, Reverse(self.used))
    }
}

/// Those that have to go when `room` of them can stay. Each owner's best stay before any owner's second best,
/// and so on: nobody who loses one had fewer than another has left.
fn surplus<K>(mut uses: Vec<KeyUse<K>>, room: usize) -> Vec<KeyUse<K>> {
    uses.sort_unstable_by_key(|one| (one.owner, one.position()));
    let mut last = None;
    let ranks = uses.into_iter().map(|one| {
        let rank = match last {
            Some((owner, rank)) if owner == one.owner => rank + 1,
            _ => 0_usize,
        };
        last = Some((one.owner, rank));
        (rank, one)
    });
    let mut ranked: Vec<_> = ranks.collect();
    ranked.sort_unstable_by_key(|(rank, one)| (*rank, one.position()));
    ranked.into_iter().skip(room).map(|(_, one)| one).collect()
}

impl<V> Entry<V> {
    fn touch(&self, tick: u64) {
        // A resolution of a second is enough for eviction and saves readers a write.
        if tick.saturating_sub(self.used.load(Ordering::Relaxed)) >= 1_000 {
            self.used.store(tick, Ordering::Relaxed);
        }
    }
}

impl<K, V> fmt::Debug for Keyed<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keyed").field("policy", &*self.policy.read()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, sync::atomic::AtomicBool};

    use proptest::prelude::*;

    use super::*;

    /// A key of an owner, which may have to be kept.
    struct Owned {
        owner: u64,
        kept: bool,
    }

    impl Keep for Owned {
        fn keep(&self, _: Instant) -> bool {
            self.kept
        }

        fn owner(&self) -> u64 {
            self.owner
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_one_owner_evicts_nothing_of_another() {
        let map = Keyed::new(KeyedPolicy { capacity: 4_096, idle: Duration::from_secs(3_600) });
        let add = |owner: u64, name: u64, kept: bool| {
            map.get_or_insert_with(&(owner, name), Instant::now(), || Owned { owner, kept });
        };
        for name in 0..200 {
            add(1, name, name == 7);
        }
        tokio::time::advance(Duration::from_secs(60)).await;
        // Newer, and each one of them wants to be kept.
        for name in 0..12_000 {
            add(2, name, true);
        }
        for name in 0..200 {
            assert!(map.get(&(1, name)).is_some(), "{name}");
        }
        // The other owner's first flood: what is kept goes last, the longest unused first.
        for name in 200..20_000 {
            add(1, name, false);
        }
        assert!(map.get(&(1, 7)).is_some());
        assert!(map.len() <= 4_096);
    }

    proptest! {
        #[test]
        fn room_is_shared_fairly(
            given in proptest::collection::vec((0..4_u64, any::<bool>(), 0..20_u64), 0..60),
            room in 0..70_usize,
        ) {
            let uses: Vec<_> = given
                .iter()
                .enumerate()
                .map(|(key, &(owner, kept, used))| KeyUse { owner, kept, used, key })
                .collect();
            let gone = surplus(uses.clone(), room);
            prop_assert_eq!(gone.len(), uses.len().saturating_sub(room));
            let keys: BTreeSet<_> = gone.iter().map(|one| one.key).collect();
            prop_assert_eq!(keys.len(), gone.len(), "each goes once");
            let left: Vec<_> = uses.iter().filter(|one| !keys.contains(&one.key)).collect();
            let count = |owner| left.iter().filter(|one| one.owner == owner).count();
            for loser in &gone {
                for one in &left {
                    // Who has lost one has at most one less than anybody has left.
                    prop_assert!(count(one.owner) <= count(loser.owner) + 1);
                    if one.owner == loser.owner {
                        prop_assert!(one.position() <= loser.position(), "{:?} before {:?}", one, loser);
                    }
                }
            }
        }
    }

    #[derive(Default)]
    struct State(AtomicBool);

    impl Keep for State {
        fn keep(&self, _: Instant) -> bool {
            self.0.load(Ordering::Relaxed)
        }
    }

    fn keyed(capacity: usize) -> Keyed<u32, State> {
        Keyed::new(KeyedPolicy { capacity, idle: Duration::from_secs(60) })
    }

    #[tokio::test(start_paused = true)]
    async fn one_state_a_key() {
        let map = keyed(64);
        let now = Instant::now();
        let first = map.get_or_insert_with(&1, now, State::default);
        let again = map.get_or_insert_with(&1, now, || unreachable!("there is one"));
        assert!(Arc::ptr_eq(&first, &again));
        assert_eq!(map.len(), 1);
        assert!(map.remove(&1).is_some() && map.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_borrowed_key_finds_the_same_state() {
        let map: Keyed<Box<str>, State> = Keyed::new(KeyedPolicy::default());
        let make = |key: &str| (Box::from(key), State::default());
        let first = map.get_or_insert_by("a", Instant::now(), || make("a"));
        let again = map.get_or_insert_by("a", Instant::now(), || unreachable!("there is one"));
        assert!(Arc::ptr_eq(&first, &again));
        assert!(map.get_by("a").is_some() && map.get_by("b").is_none() && map.len() == 1);
    }

    #[tokio::test(start_paused = true)]
    async fn never_holds_more_than_its_capacity() {
        let map = keyed(80);
        for key in 0..10_000 {
            // Even when `keep` is true for every state.
            let state = map.get_or_insert_with(&key, Instant::now(), State::default);
            state.0.store(true, Ordering::Relaxed);
            assert!(map.len() <= 80, "{} at {key}", map.len());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_smaller_capacity_holds_from_the_next_keys_on() {
        let map = keyed(800);
        for key in 0..500 {
            map.get_or_insert_with(&key, Instant::now(), State::default);
        }
        map.set_policy(KeyedPolicy { capacity: 80, idle: Duration::from_secs(60) });
        assert_eq!(map.len(), 500, "nothing is lost by that alone");
        for key in 500..1_000 {
            map.get_or_insert_with(&key, Instant::now(), State::default);
        }
        assert!(map.len() <= 80, "{}", map.len());
    }

    #[tokio::test(start_paused = true)]
    async fn state_is_notified_of_its_eviction() {
        #[derive(Default)]
        struct Evicted(AtomicBool);
        impl Keep for Evicted {
            fn evicted(&self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let map = Keyed::new(KeyedPolicy { capacity: 8, idle: Duration::from_secs(60) });
        let mut held = vec![];
        for key in 0..200u32 {
            held.push(map.get_or_insert_with(&key, Instant::now(), Evicted::default));
            match key % 50 {
                10 => drop(map.remove(&key)),
                20 => map.retain(|other, _| *other != key),
                30 => tokio::time::advance(Duration::from_secs(61)).await,
                _ => {}
            }
            for (older, state) in held.iter().enumerate() {
                let evicted = map.get(&u32::try_from(older).unwrap()).is_none();
                assert_eq!(state.0.load(Ordering::Relaxed), evicted, "{older} after {key}");
            }
        }
        assert!(map.len() <= 8);
    }

    #[tokio::test(start_paused = true)]
    async fn idle_keys_are_evicted_first_and_held_ones_kept() {
        let map = keyed(800);
        let held = map.get_or_insert_with(&0, Instant::now(), State::default);
        let kept = map.get_or_insert_with(&1, Instant::now(), State::default);
        kept.0.store(true, Ordering::Relaxed);
        drop(kept);
        for key in 2..400 {
            map.get_or_insert_with(&key, Instant::now(), State::default);
        }
        tokio::time::advance(Duration::from_secs(61)).await;
        for key in 1_000..1_750 {
            map.get_or_insert_with(&key, Instant::now(), State::default);
        }
        assert!(map.get(&0).is_some_and(|state| Arc::ptr_eq(&state, &held)));
        assert!(map.get(&1).is_some());
        let survivors = (2..400).filter(|key| map.get(key).is_some()).count();
        assert!(survivors < 398, "some idle keys are evicted");
        let fresh = (1_000..1_750).filter(|key| map.get(key).is_some()).count();
        assert!(fresh > 600, "most fresh keys are kept: {fresh}");
    }
}
