//! What was spent in a rolling window, in buckets. Pure: the time is an argument, in seconds since
//! 1970.

use std::collections::VecDeque;

use super::Spend;

/// What was spent in a rolling window: forgotten up to a bucket late, never early.
#[derive(Clone, Debug)]
pub(crate) struct RollingSum {
    /// Seconds of a bucket.
    width: u64,
    /// Buckets of the window.
    count: u64,
    /// The buckets in which something was spent, by their number since 1970, oldest first.
    buckets: VecDeque<(u64, Spend)>,
    total: Spend,
}

impl RollingSum {
    pub(crate) const fn new(width: u64, count: u64) -> Self {
        Self { width, count, buckets: VecDeque::new(), total: Spend::ZERO }
    }

    /// Forgets what is older than the window, and returns the sum of the rest.
    pub(crate) fn total(&mut self, now: u64) -> Spend {
        let bucket = now / self.width;
        while let Some((at, spent)) = self.buckets.front().copied()
            && at.saturating_add(self.count) < bucket
        {
            self.total = self.total.minus(spent);
            self.buckets.pop_front();
        }
        self.total
    }

    pub(crate) fn add(&mut self, spent: Spend, now: u64) {
        if spent == Spend::ZERO {
            return;
        }
        let bucket = now / self.width;
        match self.buckets.back_mut() {
            // A clock that was read earlier by another task.
            Some((last, sum)) if *last >= bucket => *sum = sum.plus(spent),
            _ => self.buckets.push_back((bucket, spent)),
        }
        self.total = self.total.plus(spent);
    }

    /// When so much of what `amount` reads has been forgotten, in seconds since 1970; `None` when there is
    /// less in the window.
    pub(crate) fn frees(&self, need: u64, amount: impl Fn(&Spend) -> u64) -> Option<u64> {
        let mut freed = 0_u64;
        self.buckets.iter().find_map(|(at, spent)| {
            freed = freed.saturating_add(amount(spent));
            let end = at.saturating_add(self.count).saturating_add(1).saturating_mul(self.width);
            (freed >= need).then_some(end)
        })
    }

    /// Each bucket, by its start in seconds since 1970.
    pub(super) fn buckets(&self) -> impl Iterator<Item = (u64, Spend)> {
        self.buckets.iter().map(|(at, spent)| (at.saturating_mul(self.width), *spent))
    }

    /// Adds what an earlier process has spent; what it thinks is in the future counts as spent now.
    pub(super) fn restore(&mut self, start: u64, spent: Spend, now: u64) {
        let bucket = start.min(now) / self.width;
        let at = self.buckets.partition_point(|(known, _)| *known < bucket);
        match self.buckets.get_mut(at) {
            Some((known, sum)) if *known == bucket => *sum = sum.plus(spent),
            _ => self.buckets.insert(at, (bucket, spent)),
        }
        self.total = self.total.plus(spent);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The sum is at least that of the window to the second, and at most that of a window which
        /// is longer by a bucket.
        #[test]
        fn agrees_with_a_list_of_all_that_was_spent(
            spends in prop::collection::vec((0_u64..400, 0_u64..100, 0_u64..9), 1..80),
            width in 1_u64..90,
            count in 1_u64..20,
        ) {
            let mut sum = RollingSum::new(width, count);
            let mut all: Vec<(u64, Spend)> = Vec::new();
            let mut now = 1_000_000;
            for (wait, tokens, cost) in spends {
                now += wait;
                sum.add(Spend::new(tokens, cost), now);
                all.push((now, Spend::new(tokens, cost)));
                let inside = |length: u64| {
                    let inside = all.iter().filter(|(at, _)| at + length > now);
                    inside.fold(Spend::ZERO, |sum, (_, spent)| sum.plus(*spent))
                };
                let (least, most) = (inside(width * count), inside(width * (count + 1)));
                let total = sum.total(now);
                prop_assert!(least.tokens <= total.tokens && total.tokens <= most.tokens);
                prop_assert!(least.cost <= total.cost && total.cost <= most.cost);
                let held = sum.buckets().fold(Spend::ZERO, |sum, (_, spent)| sum.plus(spent));
                prop_assert_eq!(held, total, "the running sum is that of the buckets");
                // When it frees, it is free, and a second before it is not.
                if total.tokens > 0 {
                    let at = sum.frees(total.tokens, |spent| spent.tokens).unwrap();
                    prop_assert!(sum.clone().total(at - 1).tokens > 0);
                    prop_assert_eq!(sum.clone().total(at).tokens, 0);
                }
            }
        }
    }
}
