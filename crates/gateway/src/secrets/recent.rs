//! The keys that callers presented lately, for the log: its lines belong to no request any more.

use std::{
    collections::{HashSet, VecDeque, hash_map::RandomState},
    hash::BuildHasher,
    sync::{
        Arc, LazyLock, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
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
    /// again takes no lock.
    hashes: [AtomicU64; KEYS],
    hasher: RandomState,
    keys: Mutex<Keys>,
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
            hashes: [const { AtomicU64::new(0) }; KEYS],
            hasher: RandomState::new(),
            keys: Mutex::default(),
        }
    }
}

impl Recent {
    /// Keeps `key`, and lets go of the oldest ones if it is one too many.
    pub(super) fn keep(&self, key: &[u8]) {
        let (position, hash) = self.hash(key);
        if position.load(Ordering::Relaxed) == hash {
            return;
        }
        let mut keys = self.keys.lock();
        // Under the lock, so that it is not there when the key is gone.
        position.store(hash, Ordering::Relaxed);
        if keys.all.contains(key) {
            return;
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
                let (position, hash) = self.hash(key);
                let _ = position.compare_exchange(hash, 0, Ordering::Relaxed, Ordering::Relaxed);
            }
        }
    }

    fn hash(&self, key: &[u8]) -> (&AtomicU64, u64) {
        // 0 is no key's.
        let hash = self.hasher.hash_one(key).max(1);
        (&self.hashes[(hash % KEYS as u64) as usize], hash)
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
        recent.keep(key(0).as_bytes());
        assert!(is_found(&recent, &key(0)) && is_found(&recent, &key(KEYS)));
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
