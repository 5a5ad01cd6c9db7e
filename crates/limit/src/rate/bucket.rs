//! A rate limit as one word: the generic cell rate algorithm. Pure: times are arguments, in nanoseconds.

use std::time::Duration;

use steadfast_core::shared::WHOLE;

/// So many units in a period, refilled evenly; all of them may be taken at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Quota {
    pub(super) limit: u64,
    /// Nanoseconds, not zero.
    pub(super) period: u64,
    /// The most that is taken for one call: the limit, of which this may be a part.
    pub(super) most: u64,
}

impl Quota {
    pub(super) const MINUTE: u64 = 60_000_000_000;
    pub(super) const HOUR: u64 = 60 * Self::MINUTE;
    pub(super) const DAY: u64 = 24 * Self::HOUR;

    pub(super) const fn new(limit: u64, period: u64) -> Self {
        Self { limit, period, most: limit }
    }

    pub(super) const fn a_minute(limit: u64) -> Self {
        Self::new(limit, Self::MINUTE)
    }

    /// This part of it, in parts per million: so much less may be taken at once, and is refilled. Of nothing one unit can be taken
    /// in a time in which nobody waits.
    pub(super) fn part(self, ppm: u32) -> Self {
        if ppm >= WHOLE {
            return self;
        }
        let millionths = u128::from(self.limit) * u128::from(ppm);
        let limit = (millionths / u128::from(WHOLE)).max(1);
        // In so much time that the rate is exact.
        let period = u128::from(self.period) * limit * u128::from(WHOLE) / millionths.max(1);
        let whole = |value: u128| u64::try_from(value).unwrap_or(u64::MAX);
        Self { limit: whole(limit), period: whole(period).max(1), most: self.most }
    }

    /// The time in which `amount` is refilled, rounded up.
    pub(super) fn time(self, amount: u64) -> u64 {
        let time = u128::from(amount) * u128::from(self.period);
        u64::try_from(time.div_ceil(u128::from(self.limit.max(1)))).unwrap_or(u64::MAX)
    }

    /// What is refilled in `time`, rounded down.
    fn amount(self, time: u64) -> u64 {
        let amount = u128::from(time) * u128::from(self.limit) / u128::from(self.period.max(1));
        u64::try_from(amount).unwrap_or(u64::MAX)
    }
}

/// A bucket: when it will be full again, if nothing more is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Bucket {
    full_at: u64,
}

impl Bucket {
    /// How long until `amount` can be taken, when `ahead` is taken before; what is larger than the quota waits
    /// for a full bucket.
    pub(super) fn wait(self, quota: Quota, ahead: u64, amount: u64, now: u64) -> u64 {
        let used = self.full_at.saturating_sub(now);
        let cost = quota.time(amount.min(quota.limit));
        used.saturating_add(quota.time(ahead)).saturating_add(cost).saturating_sub(quota.period)
    }

    /// Takes `actual` instead of what was taken before, whether or not there is so much: below zero, what follows
    /// waits longer. Of what is larger than the quota it takes the quota: who has waited for all of it is no debtor.
    pub(super) fn correct(&mut self, quota: Quota, taken: u64, actual: u64, now: u64) {
        let (taken, actual) = (taken.min(quota.most), actual.min(quota.most));
        if actual > taken {
            self.full_at = self.full_at.max(now).saturating_add(quota.time(actual - taken));
        } else {
            self.full_at = self.full_at.saturating_sub(quota.time(taken - actual));
        }
    }

    /// What can be taken; zero in debt.
    pub(super) fn available(self, quota: Quota, now: u64) -> u64 {
        let used = self.full_at.saturating_sub(now);
        quota.amount(quota.period.saturating_sub(used))
    }

    /// Sets what can be taken, at most the quota.
    pub(super) fn set_available(&mut self, quota: Quota, available: u64, now: u64) {
        let used = quota.limit.saturating_sub(available);
        self.full_at = now.saturating_add(quota.time(used));
    }

    /// It is another part of the same quota: of what is left, a smaller one has its part, and a larger one no more than
    /// that, since nobody says what another part had left. A debt stays what it was.
    pub(super) fn repart(&mut self, old: Quota, new: Quota, now: u64) {
        let used = self.full_at.saturating_sub(now);
        let debt = old.amount(used.saturating_sub(old.period));
        if debt > 0 {
            self.full_at = now.saturating_add(new.period).saturating_add(new.time(debt));
            return;
        }
        let left = u128::from(self.available(old, now));
        let kept = match new.limit < old.limit {
            true => left * u128::from(new.limit) / u128::from(old.limit.max(1)),
            false => left,
        };
        self.set_available(new, u64::try_from(kept).unwrap_or(u64::MAX), now);
    }

    /// The quota has changed: what is used of the old one is used of the new one.
    pub(super) fn requote(&mut self, old: Quota, new: Quota, now: u64) {
        let used = old.amount(self.full_at.saturating_sub(now));
        self.full_at = now.saturating_add(new.time(used));
    }
}

/// A time as the buckets count it.
pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn all_at_once_and_then_at_the_rate() {
        let (quota, mut bucket, now) = (Quota::a_minute(60), Bucket::default(), 5_000_000_000);
        for _ in 0..60 {
            assert_eq!(bucket.wait(quota, 0, 1, now), 0);
            bucket.correct(quota, 0, 1, now);
        }
        assert_eq!(bucket.wait(quota, 0, 1, now), 1_000_000_000);
        assert_eq!(bucket.wait(quota, 0, 1, now + 999_999_999), 1);
        assert_eq!(bucket.wait(quota, 0, 1, now + 1_000_000_000), 0);
        assert_eq!(bucket.wait(quota, 4, 1, now), 5_000_000_000);
        bucket.correct(quota, 10, 0, now);
        assert_eq!(bucket.available(quota, now), 10);
        bucket.set_available(quota, 3, now);
        assert_eq!(bucket.available(quota, now), 3);
        bucket.requote(quota, Quota::a_minute(600), now);
        assert_eq!(bucket.available(Quota::a_minute(600), now), 543, "57 are used");
    }

    #[test]
    fn more_than_the_quota_waits_for_a_full_bucket_and_takes_no_more_than_that() {
        let (quota, mut bucket) = (Quota::a_minute(100), Bucket::default());
        assert_eq!(bucket.wait(quota, 0, 1_000, 0), 0);
        bucket.correct(quota, 0, 1_000, 0);
        assert_eq!(bucket.wait(quota, 0, 100, 0), Quota::MINUTE);
        bucket.correct(quota, 1_000, 40, 0);
        assert_eq!(bucket.available(quota, 0), 60);
        bucket.correct(quota, 40, 1_000, 0);
        assert_eq!(bucket.available(quota, 0), 0);
        assert_eq!(bucket.available(quota, Quota::MINUTE), 100);
    }

    #[test]
    fn parts_have_the_rate_of_the_whole_together() {
        let whole = Quota::new(1_000, Quota::MINUTE);
        assert_eq!(whole.part(WHOLE), whole);
        assert_eq!(whole.part(250_000), Quota { limit: 250, period: Quota::MINUTE, most: 1_000 });
        // Of three a minute four nodes have one in 80 s each.
        let part = Quota::new(3, Quota::MINUTE).part(250_000);
        assert_eq!((part.limit, part.period), (1, 80_000_000_000));
        assert!(whole.part(0).time(1) > Quota::DAY, "nothing is nothing");
        // Of what is left a smaller part has its part, and a larger one no more.
        let mut bucket = Bucket::default();
        bucket.correct(whole, 0, 200, 0);
        bucket.repart(whole, whole.part(500_000), 0);
        assert_eq!(bucket.available(whole.part(500_000), 0), 400);
        bucket.repart(whole.part(500_000), whole, 0);
        assert_eq!(bucket.available(whole, 0), 400);
        // A call that is larger than the part takes all that it takes.
        let (part, mut bucket) = (whole.part(100_000), Bucket::default());
        assert_eq!(bucket.wait(part, 0, 300, 0), 0);
        bucket.correct(part, 0, 300, 0);
        assert_eq!(bucket.wait(part, 0, 1, 0), part.time(201));
        bucket.repart(part, whole, 0);
        assert_eq!(bucket.wait(whole, 0, 1, 0), whole.time(201), "a debt stays");
    }

    #[derive(Clone, Debug)]
    enum Action {
        Wait(u64),
        Take(u64),
        Give(u64),
        Set(u64),
    }

    fn actions() -> impl Strategy<Value = Vec<Action>> {
        let one = prop_oneof![
            (0_u64..40_000).prop_map(Action::Wait),
            (1_u64..50).prop_map(Action::Take),
            (0_u64..20).prop_map(Action::Give),
            (0_u64..120).prop_map(Action::Set),
        ];
        prop::collection::vec(one, 1..100)
    }

    proptest! {
        /// A level that is refilled at each step, as one would write it down.
        #[test]
        fn agrees_with_a_level(actions in actions(), limit in 1_u64..100) {
            let quota = Quota::a_minute(limit);
            let (mut bucket, mut level, mut now) = (Bucket::default(), limit as f64, 0_u64);
            for action in actions {
                match action {
                    Action::Wait(ms) => {
                        now += ms * 1_000_000;
                        level = (level + limit as f64 * ms as f64 / 60_000.0).min(limit as f64);
                    }
                    Action::Take(amount) => {
                        let missing = amount.min(limit) as f64 - level;
                        let wait = bucket.wait(quota, 0, amount, now) as f64 / 1e9;
                        let expected = missing.max(0.0) * 60.0 / limit as f64;
                        prop_assert!((wait - expected).abs() < 1e-3, "{} for {}", wait, expected);
                        if wait == 0.0 {
                            bucket.correct(quota, 0, amount, now);
                            level -= amount.min(limit) as f64;
                        }
                    }
                    Action::Give(amount) => {
                        bucket.correct(quota, amount, 0, now);
                        level = (level + amount as f64).min(limit as f64);
                    }
                    Action::Set(available) => {
                        bucket.set_available(quota, available, now);
                        level = available.min(limit) as f64;
                    }
                }
                let available = bucket.available(quota, now) as f64;
                prop_assert!((available - level.max(0.0)).abs() <= 1.001, "{} for {}", available, level);
            }
        }
    }
}
