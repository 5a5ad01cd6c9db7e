//! Parts of something that is limited, such as a provider's rate: leased to nodes, a little while each.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;

use crate::time::later;

/// All of it, in parts per million.
pub const WHOLE: u32 = 1_000_000;

/// How long a part is leased: a node that dies gives it back after that.
pub const LEASED_FOR: Duration = Duration::from_secs(2);

/// What part of something a node wants to have leased.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WantedShare {
    /// What is limited.
    pub key: Box<str>,
    /// In parts per million; 0 gives back what it has.
    pub ppm: u32,
}

impl WantedShare {
    /// So many parts per million of `key`.
    pub fn new(key: impl Into<Box<str>>, ppm: u32) -> Self {
        Self { key: key.into(), ppm: ppm.min(WHOLE) }
    }
}

/// Who has which part of one thing: pure.
///
/// A node that wants less than an equal part gets what it wants, the others share the rest equally, and what nobody
/// wants is shared equally, too, so that a node whose use grows need not ask first. A part is never given twice: who has to
/// get less gives it back when it asks the next time, and only then it is another's.
#[derive(Clone, Debug, Default)]
pub(super) struct ShareTable {
    nodes: BTreeMap<Box<str>, ShareRow>,
}

#[derive(Clone, Copy, Debug)]
struct ShareRow {
    wanted: u32,
    granted: u32,
    until: Instant,
}

impl ShareTable {
    /// What `node` has leased from now on.
    pub(super) fn lease(&mut self, node: &str, ppm: u32, now: Instant) -> u32 {
        self.nodes.retain(|_, row| row.until > now);
        self.nodes.remove(node);
        if ppm == 0 {
            return 0;
        }
        let wanted: Vec<u32> = self.nodes.values().map(|row| row.wanted).chain([ppm]).collect();
        let taken: u32 = self.nodes.values().map(|row| row.granted).sum();
        let granted = fair(&wanted).min(WHOLE.saturating_sub(taken));
        let row = ShareRow { wanted: ppm, granted, until: later(now, LEASED_FOR) };
        self.nodes.insert(node.into(), row);
        granted
    }

    pub(super) fn is_empty(&self, now: Instant) -> bool {
        self.nodes.values().all(|row| row.until <= now)
    }
}

/// The part of the last of those who want these parts.
fn fair(wanted: &[u32]) -> u32 {
    let own = wanted.last().copied().unwrap_or(0);
    let sum: u64 = wanted.iter().copied().map(u64::from).sum();
    let count = wanted.len().max(1);
    if sum <= u64::from(WHOLE) {
        let spare = (u64::from(WHOLE) - sum) / count as u64;
        return own.saturating_add(u32::try_from(spare).unwrap_or(0));
    }
    let mut sorted = wanted.to_vec();
    sorted.sort_unstable();
    let (mut left, mut nodes) = (WHOLE, u32::try_from(count).unwrap_or(u32::MAX));
    for want in sorted {
        let level = left / nodes;
        if want > level {
            return own.min(level);
        }
        left -= want;
        nodes -= 1;
    }
    own
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn small_wants_are_met_and_the_rest_is_shared() {
        for (wanted, part) in [
            (&[100_000][..], 1_000_000),
            (&[100_000, 100_000], 500_000),
            (&[1_000_000, 100_000], 100_000),
            (&[100_000, 1_000_000], 900_000),
            (&[1_000_000, 1_000_000, 100_000, 1_000_000], 300_000),
            (&[1_000_000; 64], 15_625),
        ] {
            assert_eq!(fair(wanted), part, "{wanted:?}");
        }
    }

    #[test]
    fn a_part_is_given_on_when_its_holder_asks_again_or_its_time_is_over() {
        let (mut table, start) = (ShareTable::default(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!(table.lease("a", WHOLE, at(0)), WHOLE);
        assert_eq!(table.lease("b", WHOLE, at(100)), 0);
        assert_eq!(table.lease("a", WHOLE, at(500)), WHOLE / 2);
        assert_eq!(table.lease("b", WHOLE, at(600)), WHOLE / 2);
        // `a` dies.
        assert_eq!(table.lease("b", WHOLE, at(2_499)), WHOLE / 2);
        assert_eq!(table.lease("b", WHOLE, at(2_500)), WHOLE);
        assert_eq!(table.lease("b", 0, at(2_600)), 0);
        assert!(table.is_empty(at(2_600)));
    }

    proptest! {
        #[test]
        fn never_more_than_all_of_it_is_leased_and_wants_are_met_in_time(
            asked in proptest::collection::vec((0..6_usize, 0..=WHOLE, 0..700_u64), 1..200),
        ) {
            let (mut table, mut now) = (ShareTable::default(), Instant::now());
            for (node, ppm, wait) in asked {
                now += Duration::from_millis(wait);
                table.lease(["a", "b", "c", "d", "e", "f"][node], ppm, now);
                let sum: u64 = table.nodes.values().map(|row| u64::from(row.granted)).sum();
                prop_assert!(sum <= u64::from(WHOLE), "{sum}");
            }
            // All ask twice more: then each has its fair part.
            let wants: Vec<_> = table.nodes.iter().map(|(node, row)| (node.clone(), row.wanted)).collect();
            for _ in 0..2 {
                for (node, wanted) in &wants {
                    table.lease(node, *wanted, now);
                }
            }
            let granted: u64 = table.nodes.values().map(|row| u64::from(row.granted)).sum();
            if !wants.is_empty() {
                prop_assert!(granted + 64 >= u64::from(WHOLE), "{granted} of all is used");
            }
            let equal = WHOLE / u32::try_from(wants.len().max(1)).unwrap();
            for row in table.nodes.values() {
                prop_assert!(row.granted >= row.wanted.min(equal).saturating_sub(64));
            }
        }
    }
}
