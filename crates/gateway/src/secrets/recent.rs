//! The keys that callers presented lately, for the log: its lines belong to no request any more.

use std::{
    collections::{HashSet, VecDeque, hash_map::RandomState},
    hash::BuildHasher,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;

use super::Secrets;

/// How many different keys are kept: 1,024, the newest.
const KEYS: usize = 1_024;

/// How many bytes of them: 64 KiB, which is 1,024 keys of the usual length. What is made to find them is some ten
/// times as large.
const BYTES: usize = 64 * 1024;

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
    oldest_first: VecDeque<Arc<[u8]>>,
    all: HashSet<Arc<[u8]>>,
    bytes: usize,
    /// What finds them, until others come.
    secrets: Option<Arc<Secrets>>,
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
        if !keys.all.contains(key) {
            let key: Arc<[u8]> = key.into();
            keys.bytes += key.len();
            keys.all.insert(key.clone());
            keys.oldest_first.push_back(key);
            keys.secrets = None;
        }
        while keys.oldest_first.len() > KEYS || keys.bytes > BYTES {
            let Some(oldest) = keys.oldest_first.pop_front() else { break };
            keys.bytes -= oldest.len();
            keys.all.remove(&oldest);
            let (position, hash) = self.hash(&oldest);
            let _ = position.compare_exchange(hash, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
        // Under the lock, so that it is not there when the key is gone.
        if keys.all.contains(key) {
            position.store(hash, Ordering::Relaxed);
        }
    }

    fn hash(&self, key: &[u8]) -> (&AtomicU64, u64) {
        // 0 is no key's.
        let hash = self.hasher.hash_one(key).max(1);
        (&self.hashes[(hash % KEYS as u64) as usize], hash)
    }

    /// What finds them.
    pub(super) fn secrets(&self) -> Arc<Secrets> {
        let mut keys = self.keys.lock();
        if let Some(secrets) = &keys.secrets {
            return secrets.clone();
        }
        let all = keys.oldest_first.clone();
        drop(keys);
        // It takes long, and requests do not wait for it.
        let secrets = Arc::new(Secrets::of(&all));
        keys = self.keys.lock();
        if keys.oldest_first.back() == all.back() {
            keys.secrets = Some(secrets.clone());
        }
        secrets
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_found(recent: &Recent, key: &str) -> bool {
        recent.secrets().mask(key.as_bytes()) == &b"[redacted]"[..]
    }

    #[test]
    fn the_newest_keys_are_kept_once() {
        let recent = Recent::default();
        let key = |n: usize| format!("caller-key-{n:08}");
        for n in 0..KEYS + 10 {
            recent.keep(key(n).as_bytes());
            recent.keep(key(n).as_bytes());
        }
        assert_eq!(recent.keys.lock().all.len(), KEYS);
        assert!(!is_found(&recent, &key(9)) && is_found(&recent, &key(10)));
        // One that was let go of is kept when it comes again.
        recent.keep(key(9).as_bytes());
        assert!(is_found(&recent, &key(9)) && !is_found(&recent, &key(10)));
    }

    #[test]
    fn long_keys_take_no_more_memory() {
        let recent = Recent::default();
        for n in 0..100u8 {
            recent.keep(&[n; 4_000]);
        }
        assert!(recent.keys.lock().bytes <= BYTES);
        recent.keep(b"a-usual-caller-key");
        assert!(is_found(&recent, "a-usual-caller-key"));
        recent.keep(&vec![b'x'; BYTES + 1]);
        assert_eq!(recent.keys.lock().bytes, 0);
    }
}
