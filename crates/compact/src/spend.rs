//! What summaries may cost. Pure: it is told the time.
//!
//! Summaries are paid for by the tenant who waits for an answer, not for them: a loop of
//! compactions must not eat a budget. A [`SpendCap`] is asked before a call with what the call may
//! cost, and told afterwards what it did cost.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

/// The most tokens of summaries in an hour and in a day, both rolling; 0 for no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct SpendPolicy {
    /// Tokens in any hour. 500,000: a few compactions of a large window.
    #[cfg_attr(feature = "serde", serde(rename = "spend_hour"))]
    pub hour: u64,
    /// Tokens in any day. 5,000,000: ten such hours.
    #[cfg_attr(feature = "serde", serde(rename = "spend_day"))]
    pub day: u64,
}

impl Default for SpendPolicy {
    fn default() -> Self {
        Self { hour: 500_000, day: 5_000_000 }
    }
}

/// A call that would cost more than is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a summary may cost {asked} tokens, and of the {limit} allowed in {} hours {spent} are spent: \
     raise the cap, or wait until earlier ones no longer count",
    .period.as_secs() / 3_600
)]
#[non_exhaustive]
pub struct OverBudget {
    /// What the call may cost.
    pub asked: u64,
    /// What was spent in the period, reservations included.
    pub spent: u64,
    /// What may be.
    pub limit: u64,
    /// An hour or a day.
    pub period: Duration,
}

/// Tokens set aside for one call. Dropped without [`SpendCap::settle`], they stay spent: a call
/// whose cost nobody reported is taken to have cost what it might.
#[derive(Debug)]
#[must_use = "tokens that are not settled stay spent"]
pub struct Reservation {
    tokens: u64,
    ticks: [u64; 2],
}

/// The tokens of one tenant's summaries. Bounded: some hundred and fifty small numbers.
#[derive(Clone, Debug)]
pub struct SpendCap {
    began: Instant,
    hour: Rolling,
    day: Rolling,
}

/// A rolling sum, kept in buckets: it forgets up to one bucket late, never early.
#[derive(Clone, Debug)]
struct Rolling {
    limit: u64,
    period: Duration,
    bucket: Duration,
    /// The tick of a bucket and what is in it, oldest first.
    buckets: VecDeque<(u64, u64)>,
    sum: u64,
}

impl SpendCap {
    /// Nothing spent at `now`.
    pub fn new(policy: SpendPolicy, now: Instant) -> Self {
        let rolling = |limit, minutes: u64, bucket: u64| Rolling {
            limit,
            period: Duration::from_secs(60 * minutes),
            bucket: Duration::from_secs(60 * bucket),
            buckets: VecDeque::new(),
            sum: 0,
        };
        Self { began: now, hour: rolling(policy.hour, 60, 1), day: rolling(policy.day, 1_440, 15) }
    }

    /// Sets aside what a call may cost.
    ///
    /// # Errors
    ///
    /// When it is more than is left of the hour or of the day; nothing is set aside then.
    pub fn reserve(&mut self, tokens: u64, now: Instant) -> Result<Reservation, OverBudget> {
        let since = now.saturating_duration_since(self.began);
        let all = [&mut self.hour, &mut self.day];
        for rolling in all {
            rolling.forget(since);
            rolling.check(tokens)?;
        }
        let ticks = [self.hour.add(tokens, since), self.day.add(tokens, since)];
        Ok(Reservation { tokens, ticks })
    }

    /// The call did cost `actual` tokens; more than was set aside counts, too.
    #[expect(clippy::needless_pass_by_value, reason = "a reservation is settled once")]
    pub fn settle(&mut self, reservation: Reservation, actual: u64, now: Instant) {
        let since = now.saturating_duration_since(self.began);
        let spare = reservation.tokens.saturating_sub(actual);
        let more = actual.saturating_sub(reservation.tokens);
        for (rolling, tick) in [&mut self.hour, &mut self.day].into_iter().zip(reservation.ticks) {
            rolling.give_back(spare, tick);
            if more > 0 {
                rolling.add(more, since);
            }
        }
    }

    /// What was spent in the last hour and in the last day, reservations included.
    pub fn spent(&mut self, now: Instant) -> (u64, u64) {
        let since = now.saturating_duration_since(self.began);
        self.hour.forget(since);
        self.day.forget(since);
        (self.hour.sum, self.day.sum)
    }
}

impl Rolling {
    fn tick(&self, since: Duration) -> u64 {
        since.as_secs() / self.bucket.as_secs()
    }

    /// Drops the buckets that lie wholly before the period.
    fn forget(&mut self, since: Duration) {
        let whole = self.period.as_secs() / self.bucket.as_secs();
        let oldest = self.tick(since).saturating_sub(whole);
        while let Some((tick, tokens)) = self.buckets.front().copied()
            && tick < oldest
        {
            self.buckets.pop_front();
            self.sum -= tokens;
        }
    }

    fn check(&self, tokens: u64) -> Result<(), OverBudget> {
        let Self { limit, period, sum: spent, .. } = *self;
        if limit > 0 && spent.saturating_add(tokens) > limit {
            return Err(OverBudget { asked: tokens, spent, limit, period });
        }
        Ok(())
    }

    fn add(&mut self, tokens: u64, since: Duration) -> u64 {
        let tick = self.tick(since);
        // What no number can hold is as good as the largest.
        let tokens = tokens.min(u64::MAX - self.sum);
        self.sum += tokens;
        match self.buckets.back_mut() {
            // A clock read earlier by another task.
            Some((last, sum)) if *last >= tick => {
                *sum += tokens;
                *last
            }
            _ => {
                self.buckets.push_back((tick, tokens));
                tick
            }
        }
    }

    fn give_back(&mut self, tokens: u64, tick: u64) {
        if let Some((_, sum)) = self.buckets.iter_mut().rev().find(|(at, _)| *at == tick) {
            let tokens = tokens.min(*sum);
            *sum -= tokens;
            self.sum -= tokens;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HOUR: u64 = 3_600;

    fn cap(hour: u64, day: u64) -> (SpendCap, impl Fn(u64) -> Instant) {
        let start = Instant::now();
        let cap = SpendCap::new(SpendPolicy { hour, day }, start);
        (cap, move |seconds| start + Duration::from_secs(seconds))
    }

    #[test]
    fn exactly_the_limit_passes_and_one_more_does_not() {
        let (mut cap, at) = cap(100, 150);
        let _kept = cap.reserve(100, at(0)).unwrap();
        let error = cap.reserve(1, at(HOUR - 1)).unwrap_err();
        assert_eq!((error.asked, error.spent, error.limit), (1, 100, 100));
        assert!(error.to_string().contains("in 1 hours 100 are spent"), "{error}");
        let _kept = cap.reserve(50, at(HOUR + 60)).unwrap();
        let error = cap.reserve(1, at(HOUR + 60)).unwrap_err();
        assert_eq!((error.limit, error.spent), (150, 150), "the day's");
        assert_eq!(cap.spent(at(HOUR + 60)), (50, 150), "a refusal sets nothing aside");
        assert_eq!(cap.spent(at(30 * HOUR)), (0, 0));
    }

    #[test]
    fn what_was_not_used_comes_back_and_what_was_used_besides_counts() {
        let (mut cap, at) = cap(100, 0);
        let first = cap.reserve(90, at(0)).unwrap();
        cap.settle(first, 20, at(5));
        assert_eq!(cap.spent(at(5)).0, 20);
        let second = cap.reserve(80, at(10)).unwrap();
        cap.settle(second, 200, at(20));
        assert_eq!(cap.spent(at(20)).0, 220);
        assert!(cap.reserve(1, at(20)).is_err());
    }

    #[test]
    fn zero_is_no_limit_and_nothing_overflows() {
        let (mut cap, at) = cap(0, 0);
        for _ in 0..3 {
            let reservation = cap.reserve(u64::MAX, at(0)).unwrap();
            cap.settle(reservation, u64::MAX, at(1));
        }
        assert_eq!(cap.spent(at(40 * HOUR)), (0, 0));
    }

    proptest! {
        #[test]
        fn never_more_than_the_limit_in_any_hour(
            calls in prop::collection::vec((0_u64..900, 0_u64..60), 1..120),
        ) {
            let (mut cap, at) = cap(100, 1_000);
            let mut passed: Vec<(u64, u64)> = Vec::new();
            let mut now = 0;
            for (wait, tokens) in calls {
                now += wait;
                let spent = |period: u64| -> u64 {
                    let inside = passed.iter().filter(|(at, _)| at + period > now);
                    inside.map(|(_, tokens)| tokens).sum()
                };
                let (hour, day) = (spent(HOUR) + tokens, spent(24 * HOUR) + tokens);
                if let Ok(_kept) = cap.reserve(tokens, at(now)) {
                    prop_assert!(hour <= 100 && day <= 1_000);
                    passed.push((now, tokens));
                } else {
                    // Forgotten a bucket late at most.
                    let late = |period: u64, limit: u64| {
                        let inside = passed.iter().filter(|(at, _)| at + period > now);
                        inside.map(|(_, tokens)| tokens).sum::<u64>() + tokens > limit
                    };
                    prop_assert!(late(HOUR + 60, 100) || late(24 * HOUR + 900, 1_000));
                }
            }
        }
    }
}
