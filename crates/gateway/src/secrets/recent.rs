//! The keys that callers presented lately, for the log: its lines belong to no request any more.

use std::{
    collections::{HashSet, VecDeque, hash_map::RandomState},
    hash::BuildHasher,
    sync::{Arc, LazyLock, OnceLock},
};

use parking_lot::Mutex;

use super::Secrets;

/// How many different keys are kept: 1,024, the newest.
const KEYS: usize = GROUPS * GROUP;

/// Groups of keys that came after each other. Each is searched for by itself, so that a flood of new keys has a small search
/// built again and again, and not a large one.
const GROUPS: usize = 16;

/// The most keys of a group.
const GROUP: usize = 64;

/// From how many bytes of keys on a group takes no more: 4 KiB, which is 64 keys of the usual length.
const GROUP_BYTES: usize = 4 * 1024;

/// Keys that requests presented.
pub(super) static RECENT: LazyLock<Recent> = LazyLock::new(Recent::default);

/// The newest distinct keys.
pub(super) struct Recent {
    /// Hashes of keys that are kept, each at its own position: a caller that comes with the same key again and
    /// again takes no lock that others take.
    slots: [Mutex<Slot>; KEYS],
    hasher: RandomState,
    keys: Mutex<Keys>,
}

#[derive(Default)]
struct Slot {
    /// 0 is no key's.
    hash: u64,
    /// Since the key came for the second time: a flood of new keys leaves nothing here.
    key: Option<Arc<RecentKey>>,
}

/// A key that came more than once.
pub(super) struct RecentKey {
    key: Box<[u8]>,
    /// Finds it; made for the first text that is searched for it. It takes a third of the instructions of a call.
    secrets: OnceLock<Secrets>,
}

impl RecentKey {
    pub(super) fn key(&self) -> &[u8] {
        &self.key
    }

    pub(super) fn secrets(&self) -> &Secrets {
        self.secrets.get_or_init(|| Secrets::of([&self.key]))
    }
}

#[derive(Default)]
struct Keys {
    oldest_first: VecDeque<Arc<Group>>,
    all: HashSet<Arc<[u8]>>,
}

#[derive(Default)]
struct Group {
    keys: Vec<Arc<[u8]>>,
    /// Finds them; made for the first line of the log after the last of them came.
    secrets: OnceLock<Secrets>,
}

impl Group {
    fn is_full(&self) -> bool {
        let bytes: usize = self.keys.iter().map(|key| key.len()).sum();
        self.keys.len() >= GROUP || bytes >= GROUP_BYTES
    }
}

impl Default for Recent {
    fn default() -> Self {
        Self {
            slots: std::array::from_fn(|_| Mutex::default()),
            hasher: RandomState::new(),
            keys: Mutex::default(),
        }
    }
}

impl Recent {
    /// Keeps `key`, and lets go of the oldest ones if it is one too many. Returns it if it was there.
    pub(super) fn keep(&self, key: &[u8]) -> Option<Arc<RecentKey>> {
        let (slot, hash) = self.slot(key);
        {
            let mut slot = slot.lock();
            if slot.hash == hash {
                let made = || Arc::new(RecentKey { key: key.into(), secrets: OnceLock::new() });
                let known = slot.key.get_or_insert_with(made);
                return (*known.key == *key).then(|| known.clone());
            }
        }
        let mut keys = self.keys.lock();
        // Under the lock, so that it is not there when the key is gone.
        *slot.lock() = Slot { hash, key: None };
        if keys.all.contains(key) {
            return None;
        }
        let key: Arc<[u8]> = key.into();
        keys.all.insert(key.clone());
        let has_room = keys.oldest_first.back().is_some_and(|newest| !newest.is_full());
        let newest = if has_room { keys.oldest_first.pop_back() } else { None };
        let mut group = newest.map_or_else(Vec::new, |newest| newest.keys.clone());
        group.push(key);
        keys.oldest_first.push_back(Arc::new(Group { keys: group, secrets: OnceLock::new() }));
        if keys.oldest_first.len() > GROUPS
            && let Some(oldest) = keys.oldest_first.pop_front()
        {
            for key in &oldest.keys {
                keys.all.remove(key);
                let (slot, hash) = self.slot(key);
                let mut slot = slot.lock();
                if slot.hash == hash {
                    *slot = Slot::default();
                }
            }
        }
        None
    }

    fn slot(&self, key: &[u8]) -> (&Mutex<Slot>, u64) {
        let hash = self.hasher.hash_one(key).max(1);
        (&self.slots[(hash % KEYS as u64) as usize], hash)
    }

    /// Calls `with` with what finds some of them, until it was called for all.
    pub(super) fn each(&self, mut with: impl FnMut(&Secrets)) {
        let groups = self.keys.lock().oldest_first.clone();
        for group in groups {
            // Requests do not wait for it.
            with(group.secrets.get_or_init(|| Secrets::of(&group.keys)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_found(recent: &Recent, key: &str) -> bool {
        let mut found = false;
        recent.each(|secrets| found |= secrets.mask(key.as_bytes()) == &b"[redacted]"[..]);
        found
    }

    #[test]
    fn the_newest_keys_are_kept_once() {
        let recent = Recent::default();
        let key = |n: usize| format!("caller-key-{n:08}");
        for n in 0..KEYS {
            recent.keep(key(n).as_bytes());
            recent.keep(key(n).as_bytes());
        }
        assert_eq!(recent.keys.lock().all.len(), KEYS);
        assert!(is_found(&recent, &key(0)) && is_found(&recent, &key(KEYS - 1)));
        recent.keep(key(KEYS).as_bytes());
        assert!(!is_found(&recent, &key(GROUP - 1)) && is_found(&recent, &key(GROUP)));
        assert_eq!(recent.keys.lock().all.len(), KEYS - GROUP + 1);
        // One that was let go of is kept when it comes again.
        assert!(recent.keep(key(0).as_bytes()).is_none());
        assert!(is_found(&recent, &key(0)) && is_found(&recent, &key(KEYS)));
    }

    #[test]
    fn what_finds_a_key_is_made_once_and_for_keys_that_come_again() {
        let recent = Recent::default();
        assert!(recent.keep(b"caller-key-1").is_none());
        let again = recent.keep(b"caller-key-1").unwrap();
        assert_eq!(&*again.secrets().mask(b"a caller-key-1"), b"a [redacted]");
        assert!(Arc::ptr_eq(&again, &recent.keep(b"caller-key-1").unwrap()));
        // Of a flood nothing stays but what the log is masked by.
        for n in 0..2 * KEYS {
            assert!(recent.keep(format!("another-key-{n:08}").as_bytes()).is_none());
        }
        assert!(recent.slots.iter().all(|slot| slot.lock().key.is_none()));
    }

    #[test]
    fn long_keys_take_no_more_memory() {
        let recent = Recent::default();
        for n in 0..2_000u16 {
            recent.keep(&[&[b'x'; 250][..], &n.to_be_bytes()].concat());
        }
        let bytes: usize = recent.keys.lock().all.iter().map(|key| key.len()).sum();
        assert!(bytes <= GROUPS * (GROUP_BYTES + 256), "{bytes}");
        recent.keep(b"a-usual-caller-key");
        assert!(is_found(&recent, "a-usual-caller-key"));
    }
}
