//! Long results that were read before.

use std::collections::{HashMap, VecDeque};

use foldhash::fast::RandomState;
use parking_lot::Mutex;

/// Locks the memo is spread over.
const SHARDS: usize = 16;

/// Results remembered under one lock: sixteen thousand in all, in less than a megabyte.
const MOST: usize = 1_024;

/// Shorter texts are read again sooner than looked up.
const LONG: usize = 256;

/// What long texts were found to say, by a hash of their bytes. A history comes again with every
/// request, and its results are read once.
#[derive(Debug, Default)]
pub(crate) struct Memo([Mutex<Shard>; SHARDS]);

#[derive(Debug, Default)]
struct Shard {
    known: HashMap<u64, u64, RandomState>,
    order: VecDeque<u64>,
}

impl Memo {
    /// What `text` says, by `read` when it is new. `hash` is of all its bytes.
    pub(crate) fn get(
        &self,
        text: &str,
        hash: impl FnOnce(&str) -> u64,
        read: impl FnOnce(&str) -> u64,
    ) -> u64 {
        if text.len() < LONG {
            return read(text);
        }
        let key = hash(text);
        // The top bits: the maps use the low ones.
        let shard = &self.0[usize::try_from(key >> 60).unwrap_or(0) % SHARDS];
        if let Some(known) = shard.lock().known.get(&key) {
            return *known;
        }
        let found = read(text);
        let mut shard = shard.lock();
        if shard.known.insert(key, found).is_none() {
            shard.order.push_back(key);
        }
        if shard.order.len() > MOST
            && let Some(oldest) = shard.order.pop_front()
        {
            shard.known.remove(&oldest);
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_read_once_and_few_are_kept() {
        let memo = Memo::default();
        let long = "x".repeat(LONG);
        let mut reads = 0;
        for _ in 0..3 {
            let said = memo.get(
                &long,
                |_| 7,
                |_| {
                    reads += 1;
                    42
                },
            );
            assert_eq!(said, 42);
        }
        assert_eq!(reads, 1);
        assert_eq!(memo.get("short", |_| 7, |_| 1), 1, "not even looked up");
        for at in 0..5_000 {
            memo.get(&long, |_| at, |_| at);
        }
        let kept = memo.0.iter().map(|shard| shard.lock().known.len()).max();
        assert_eq!(kept, Some(MOST));
    }
}
