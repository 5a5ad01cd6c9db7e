//! Which contents are kept, within a number of bytes.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use super::Entry;

/// The contents that there are, of each tenant the oldest first: who goes on from a response makes a newer one with
/// all of it. The tenant that holds most loses first.
#[derive(Debug, Default)]
pub(super) struct Contents {
    tenants: HashMap<u64, Queue>,
    bytes: usize,
}

#[derive(Debug, Default)]
struct Queue {
    entries: VecDeque<(Arc<Entry>, usize)>,
    bytes: usize,
}

impl Contents {
    /// Adds that of `entry`, which has `bytes`, and drops what is more than `most` bytes.
    pub(super) fn add(&mut self, entry: Arc<Entry>, bytes: usize, most: usize) {
        let queue = self.tenants.entry(entry.owner).or_default();
        queue.entries.push_back((entry, bytes));
        queue.bytes += bytes;
        self.bytes += bytes;
        while self.bytes > most {
            let Some(fullest) = self.tenants.values_mut().max_by_key(|queue| queue.bytes) else {
                break;
            };
            let Some((entry, bytes)) = fullest.entries.pop_front() else { break };
            entry.content.lock().take();
            fullest.bytes -= bytes;
            self.bytes -= bytes;
        }
        self.tenants.retain(|_, queue| !queue.entries.is_empty());
    }

    /// How many there are, and their bytes.
    pub(super) fn size(&self) -> (usize, usize) {
        (self.tenants.values().map(|queue| queue.entries.len()).sum(), self.bytes)
    }
}
