//! A bounded memory of what was seen.

use std::collections::{HashMap, VecDeque};

use foldhash::fast::RandomState;

/// Things remembered of one kind. Loops of a longer period end at the limits; a kilobyte for every
/// 32 of them is the price.
pub(crate) const MOST: usize = 512;

/// What is remembered of one thing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entry {
    /// How often since the count last began.
    pub(crate) count: u32,
    /// The time of the world's last change, when the count began.
    pub(crate) barrier: u32,
    /// How much that was new had been learned when it was last seen.
    pub(crate) news: u32,
    /// One more than the round in which advice was given; 0 for none.
    pub(crate) warned: u32,
}

impl Entry {
    /// Counts one more; from one, when the world has changed or enough was learned in between.
    pub(crate) fn again(&mut self, barrier: u32, news: u32, forget_after: u32) {
        if self.barrier != barrier || news.saturating_sub(self.news) > forget_after {
            *self = Entry { barrier, ..Entry::default() };
        }
        self.count += 1;
        self.news = news;
    }
}

/// The last [`MOST`] things that were new.
#[derive(Clone, Debug, Default)]
pub(crate) struct Memory {
    known: HashMap<u64, Entry, RandomState>,
    order: VecDeque<u64>,
}

impl Memory {
    pub(crate) fn get(&mut self, key: u64) -> Option<&mut Entry> {
        self.known.get_mut(&key)
    }

    pub(crate) fn add(&mut self, key: u64, entry: Entry) {
        if self.order.len() >= MOST
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
        if self.known.insert(key, entry).is_none() {
            self.order.push_back(key);
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.known.len().max(self.order.len())
    }
}
