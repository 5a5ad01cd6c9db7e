//! What has not been written yet, bounded.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;
use foldhash::fast::RandomState;
use steadfast_core::shared::FactRow;

/// Facts that wait, at most: as many as a node knows. Beyond it all that it has found is written again instead.
const FACTS: usize = 16_384;

/// Values and releases that wait, at most. A store that is behind by thousands is of no use for a value.
const WRITES: usize = 4_096;

/// And their bytes.
const BYTES: usize = 16 * 1_024 * 1_024;

/// What waits to be written.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// By kind and key, the latest.
    facts: HashMap<(Box<str>, Box<str>), FactRow, RandomState>,
    /// Facts were left out.
    is_incomplete: bool,
    writes: VecDeque<Write>,
    bytes: usize,
    dropped: u64,
}

/// What is written without anybody waiting for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Write {
    Put { key: String, value: Bytes, lasts_ms: u64 },
    Release { key: String, token: u64 },
}

impl Outbox {
    /// This node has found something.
    pub(crate) fn fact(&mut self, row: FactRow) {
        let key = (row.kind.clone(), row.key.clone());
        if self.facts.len() >= FACTS && !self.facts.contains_key(&key) {
            self.is_incomplete = true;
            return;
        }
        self.facts.insert(key, row);
    }

    /// All facts that wait; `None` when there were too many, and all that the node has found is to be written.
    pub(crate) fn take_facts(&mut self) -> Option<Vec<FactRow>> {
        let facts = std::mem::take(&mut self.facts).into_values().collect();
        (!std::mem::take(&mut self.is_incomplete)).then_some(facts)
    }

    /// A value or a release. What is too much is dropped and counted.
    pub(crate) fn write(&mut self, write: Write) {
        let bytes = write.bytes();
        if self.writes.len() >= WRITES || self.bytes + bytes > BYTES {
            self.dropped += 1;
            return;
        }
        self.bytes += bytes;
        self.writes.push_back(write);
    }

    /// A value that could not be written, since the store is away.
    pub(crate) fn drop_put(&mut self) {
        self.dropped += 1;
    }

    /// The first of what waits.
    pub(crate) fn take_writes(&mut self, most: usize) -> Vec<Write> {
        let taken: Vec<_> = self.writes.drain(..most.min(self.writes.len())).collect();
        self.bytes -= taken.iter().map(Write::bytes).sum::<usize>();
        taken
    }

    /// The store is away: values that wait are of no use when it is back. Releases are.
    pub(crate) fn drop_puts(&mut self) {
        let before = self.writes.len();
        self.writes.retain(|write| matches!(write, Write::Release { .. }));
        self.bytes = self.writes.iter().map(Write::bytes).sum();
        self.dropped += (before - self.writes.len()) as u64;
    }

    /// How many changes wait.
    pub(crate) fn len(&self) -> usize {
        self.facts.len() + self.writes.len()
    }

    /// How many values were lost.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }
}

impl Write {
    fn bytes(&self) -> usize {
        match self {
            Self::Put { key, value, .. } => key.len() + value.len(),
            Self::Release { key, .. } => key.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use steadfast_core::shared::Fact;

    use super::*;

    fn put(size: usize) -> Write {
        Write::Put { key: "key".to_owned(), value: vec![0; size].into(), lasts_ms: 1 }
    }

    #[test]
    fn of_a_key_only_the_latest_waits() {
        let mut outbox = Outbox::default();
        for number in 0..1_000_u64 {
            let mut fact = Fact::default();
            fact.number = number;
            outbox.fact(FactRow::new("rests", format!("key {}", number % 3), "own", fact));
        }
        assert_eq!(outbox.len(), 3);
        let facts = outbox.take_facts().unwrap();
        assert!(facts.iter().all(|row| row.fact.number >= 997));
        assert_eq!(outbox.len(), 0);
    }

    #[test]
    fn too_many_facts_are_known_to_be_incomplete() {
        let mut outbox = Outbox::default();
        for number in 0..20_000 {
            let key = format!("key {number}");
            outbox.fact(FactRow::new("rests", key, "own", Fact::default()));
        }
        assert_eq!(outbox.len(), FACTS);
        assert!(outbox.take_facts().is_none());
        assert_eq!(outbox.take_facts(), Some(vec![]));
    }

    #[test]
    fn values_are_bounded_by_number_and_size() {
        let mut outbox = Outbox::default();
        for _ in 0..5_000 {
            outbox.write(put(10));
        }
        assert_eq!((outbox.len(), outbox.dropped()), (WRITES, 5_000 - WRITES as u64));
        outbox.take_writes(usize::MAX);
        outbox.write(put(BYTES));
        assert_eq!(outbox.len(), 0, "with its key it is too large");
        outbox.write(put(BYTES / 2));
        outbox.write(Write::Release { key: "claim".to_owned(), token: 1 });
        outbox.drop_puts();
        let left = outbox.take_writes(7);
        assert_eq!(left, [Write::Release { key: "claim".to_owned(), token: 1 }]);
        outbox.write(put(BYTES / 2));
        assert_eq!(outbox.len(), 1, "the room is free again");
    }
}
