//! Failures in a row, in the order in which their calls began.

use crate::Witness;

/// The longest row of failures that a policy may ask for: so many calls are remembered, a bit each.
pub const MAX_ROW: u32 = 64;

const REMEMBERED: usize = MAX_ROW as usize;

/// The last calls of a circuit by their order, not by that of their ends.
///
/// Failures are often known long before successes: of twenty streams that begin in a second, the one
/// that is refused ends first. So a call that is still under way breaks a row, as a success does, and
/// a success ends the rows of all calls that began before it.
#[derive(Clone, Debug)]
pub(super) struct Row {
    /// The latest call that is noted.
    latest: u64,
    /// A bit for each call, `latest` the lowest: it failed.
    failed: u64,
    /// The same: it has ended and says nothing.
    void: u64,
    /// The latest call that succeeded.
    succeeded: u64,
    /// Who made the calls that failed, by their order.
    witnesses: [Witness; REMEMBERED],
}

/// A row of failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failures {
    pub(super) count: u32,
    /// More than one witness has seen them.
    pub(super) corroborated: bool,
}

impl Default for Row {
    fn default() -> Self {
        Self { latest: 0, failed: 0, void: 0, succeeded: 0, witnesses: [Witness::NONE; REMEMBERED] }
    }
}

impl Row {
    /// No call is remembered that began as the `order`th or before.
    pub(super) fn after(order: u64) -> Self {
        Self { succeeded: order, ..Self::default() }
    }

    /// The last `count` of `order` calls have failed, each for another witness; there may be fewer of them here, when
    /// they were another process's.
    pub(super) fn failing(order: u64, count: u32) -> Self {
        let failed = 1_u64.checked_shl(count).map_or(u64::MAX, |bit| bit - 1);
        Self { latest: order, failed, ..Self::default() }
    }

    /// Call `order` has failed: the row that it is in. One that began before a success, or too long
    /// ago, is a row by itself and is not remembered.
    pub(super) fn failed(&mut self, order: u64, witness: Witness) -> Failures {
        let Some(bit) = self.note(order) else {
            return Failures { count: 1, corroborated: false };
        };
        self.failed |= 1 << bit;
        self.witnesses[slot(order)] = witness;
        self.around(bit)
    }

    /// Call `order` has succeeded.
    #[inline]
    pub(super) fn succeeded(&mut self, order: u64) {
        self.succeeded = self.succeeded.max(order);
        if self.failed | self.void != 0 {
            // Calls that began later have lower bits.
            let later = self.latest.saturating_sub(order);
            let mask = if later < 64 { (1 << later) - 1 } else { u64::MAX };
            (self.failed, self.void) = (self.failed & mask, self.void & mask);
        }
    }

    /// Call `order` has ended and says nothing: a row goes past it.
    pub(super) fn void(&mut self, order: u64) {
        if let Some(bit) = self.note(order) {
            self.void |= 1 << bit;
        }
    }

    /// Whether any failure is remembered.
    pub(super) fn is_degraded(&self) -> bool {
        self.failed != 0
    }

    /// How many failures the latest row has.
    pub(super) fn count(&self) -> u32 {
        match self.failed {
            0 => 0,
            failed => self.around(failed.trailing_zeros()).count,
        }
    }

    /// The bit of a call; `None` when it began before a success or too long ago.
    fn note(&mut self, order: u64) -> Option<u32> {
        if order <= self.succeeded {
            return None;
        }
        if order > self.latest {
            let by = u32::try_from(order - self.latest).unwrap_or(u32::MAX);
            self.failed = self.failed.checked_shl(by).unwrap_or(0);
            self.void = self.void.checked_shl(by).unwrap_or(0);
            self.latest = order;
        }
        u32::try_from(self.latest - order).ok().filter(|bit| *bit < u64::BITS)
    }

    /// The row of the failure at `bit`.
    fn around(&self, bit: u32) -> Failures {
        let ended = self.failed | self.void;
        let from = bit + 1 - (!(ended << (63 - bit))).leading_zeros().min(bit + 1);
        let until = bit + (!(ended >> bit)).trailing_zeros().min(64 - bit);
        let mut failures = Failures { count: 0, corroborated: false };
        let mut first = None;
        for bit in (from..until).filter(|bit| self.failed & (1 << bit) != 0) {
            failures.count += 1;
            let witness = self.witnesses[slot(self.latest.wrapping_sub(u64::from(bit)))];
            let first = *first.get_or_insert(witness);
            failures.corroborated |= failures.count > 1 && !witness.is_same(first);
        }
        failures
    }
}

fn slot(order: u64) -> usize {
    (order % REMEMBERED as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CallContext;

    fn by(session: &str) -> Witness {
        Witness::new(&CallContext::new().with_session(session), None)
    }

    fn row(ends: &str) -> Row {
        let mut row = Row::default();
        for (order, end) in (1..).zip(ends.chars()) {
            match end {
                'x' => _ = row.failed(order, Witness::NONE),
                'o' => row.succeeded(order),
                '-' => row.void(order),
                _ => {}
            }
        }
        row
    }

    #[test]
    fn failures_stand_in_the_order_of_their_calls() {
        for (ends, count) in [
            ("", 0),
            ("x", 1),
            ("xxx", 3),
            ("xx.x", 1),
            ("xx-x", 3),
            ("--x--", 1),
            ("xxo", 0),
            ("xox", 1),
            (".x.", 1),
        ] {
            assert_eq!(row(ends).count(), count, "{ends}");
        }
        let mut late = row("x.x");
        assert_eq!(late.failed(2, Witness::NONE), Failures { count: 3, corroborated: true });
        late.succeeded(2);
        assert_eq!((late.count(), late.failed(1, Witness::NONE).count, late.count()), (1, 1, 1));
    }

    #[test]
    fn only_the_last_calls_are_remembered() {
        let mut long = row(&"x".repeat(200));
        assert_eq!(long.count(), 64);
        assert_eq!(long.failed(136, Witness::NONE), Failures { count: 1, corroborated: false });
        assert_eq!(long.count(), 64);
        assert_eq!(long.failed(1_000, Witness::NONE), Failures { count: 1, corroborated: false });
        long.succeeded(1_000);
        assert!(!long.is_degraded());
    }

    #[test]
    fn a_row_goes_on_where_it_was_left() {
        for (order, count) in [(0, 0), (0, 3), (7, 3), (0, 64), (2, 900)] {
            let mut row = Row::failing(order, count);
            assert_eq!(row.count(), count.min(64));
            let failures = row.failed(order + 1, by("7"));
            assert_eq!(failures.count, (count + 1).min(64), "{order}, {count}");
            assert_eq!(failures.corroborated, count > 0);
            row.succeeded(order + 2);
            assert_eq!(row.count(), 0);
        }
    }

    #[test]
    fn failures_of_one_witness_are_not_corroborated() {
        let mut row = Row::default();
        assert_eq!(row.failed(1, by("7")), Failures { count: 1, corroborated: false });
        assert_eq!(row.failed(2, by("7")), Failures { count: 2, corroborated: false });
        assert_eq!(row.failed(4, by("8")), Failures { count: 1, corroborated: false });
        assert_eq!(row.failed(3, by("7")), Failures { count: 4, corroborated: true });
    }
}
