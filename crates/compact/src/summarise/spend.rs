//! What summaries may cost. Pure: the time is an argument.
//!
//! The tenant pays for summaries without having requested them: a loop of compactions must not use
//! up a budget. A [`SpendCap`] reserves the most that a call may cost, and is charged its cost
//! afterwards.

use std::collections::VecDeque;

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

/// Minutes of an hour and of a day.
const PERIODS: (u64, u64) = (60, 1_440);

/// The tokens of one tenant's summaries: forgotten up to a minute late, never early.
#[derive(Clone, Debug)]
pub(super) struct SpendCap {
    began: Instant,
    /// The minutes of the last day in which something was spent, and how much, oldest first.
    minutes: VecDeque<(u64, u64)>,
}

/// Tokens reserved for one call. Dropped without [`SpendCap::charge`], they stay spent: a call
/// without a reported cost counts as the whole reservation.
#[derive(Debug)]
#[must_use = "tokens that are not charged stay spent"]
pub(super) struct Reservation {
    tokens: u64,
    minute: u64,
}

impl SpendCap {
    /// Nothing spent at `now`.
    pub(super) fn new(now: Instant) -> Self {
        Self { began: now, minutes: VecDeque::new() }
    }

    /// Reserves what a call may cost; `None` when it is more than is left of the hour or of the day.
    pub(super) fn reserve(
        &mut self,
        tokens: u64,
        policy: &SpendPolicy,
        now: Instant,
    ) -> Option<Reservation> {
        let (hour, day) = self.spent(now);
        let fits = |spent: u64, limit| limit == 0 || spent.saturating_add(tokens) <= limit;
        let fits = fits(hour, policy.hour) && fits(day, policy.day);
        fits.then(|| Reservation { tokens, minute: self.add(tokens, now) })
    }

    /// The call has cost `actual` tokens; more than was reserved counts, too.
    #[expect(clippy::needless_pass_by_value, reason = "a reservation is charged once")]
    pub(super) fn charge(&mut self, reservation: Reservation, actual: u64, now: Instant) {
        let Reservation { tokens, minute } = reservation;
        if let Some((_, sum)) = self.minutes.iter_mut().find(|(at, _)| *at == minute) {
            *sum = sum.saturating_sub(tokens.saturating_sub(actual));
        }
        if actual > tokens {
            self.add(actual - tokens, now);
        }
    }

    /// What was spent in the last hour and in the last day, reservations included.
    pub(super) fn spent(&mut self, now: Instant) -> (u64, u64) {
        let minute = self.minute(now);
        self.minutes.retain(|(at, tokens)| at + PERIODS.1 >= minute && *tokens > 0);
        let sum = |minutes: u64| {
            let inside = self.minutes.iter().filter(|(at, _)| at + minutes >= minute);
            inside.fold(0_u64, |sum, (_, tokens)| sum.saturating_add(*tokens))
        };
        (sum(PERIODS.0), sum(PERIODS.1))
    }

    fn minute(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.began).as_secs() / 60
    }

    /// The minute that the tokens were added to.
    fn add(&mut self, tokens: u64, now: Instant) -> u64 {
        let minute = self.minute(now);
        match self.minutes.back_mut() {
            // A clock read earlier by another task.
            Some((last, sum)) if *last >= minute => {
                *sum = sum.saturating_add(tokens);
                *last
            }
            _ => {
                self.minutes.push_back((minute, tokens));
                minute
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use std::time::Duration;

    use super::*;

    const HOUR: u64 = 3_600;

    fn cap(hour: u64, day: u64) -> (SpendCap, SpendPolicy, impl Fn(u64) -> Instant) {
        let start = Instant::now();
        let policy = SpendPolicy { hour, day };
        (SpendCap::new(start), policy, move |seconds| start + Duration::from_secs(seconds))
    }

    #[test]
    fn exactly_the_limit_passes_and_one_more_does_not() {
        let (mut cap, policy, at) = cap(100, 150);
        let _kept = cap.reserve(100, &policy, at(0)).unwrap();
        assert!(cap.reserve(1, &policy, at(HOUR - 1)).is_none(), "the hour's");
        let _kept = cap.reserve(50, &policy, at(HOUR + 60)).unwrap();
        assert!(cap.reserve(1, &policy, at(HOUR + 60)).is_none(), "the day's");
        assert_eq!(cap.spent(at(HOUR + 60)), (50, 150), "a refusal reserves nothing");
        assert_eq!(cap.spent(at(30 * HOUR)), (0, 0));
    }

    #[test]
    fn unused_reservations_are_returned_and_overruns_count() {
        let (mut cap, policy, at) = cap(100, 0);
        let first = cap.reserve(90, &policy, at(0)).unwrap();
        cap.charge(first, 20, at(5));
        assert_eq!(cap.spent(at(5)).0, 20);
        let second = cap.reserve(80, &policy, at(10)).unwrap();
        cap.charge(second, 200, at(20));
        assert_eq!(cap.spent(at(20)).0, 220);
        assert!(cap.reserve(1, &policy, at(20)).is_none());
    }

    #[test]
    fn zero_is_no_limit_and_nothing_overflows() {
        let (mut cap, policy, at) = cap(0, 0);
        for _ in 0..3 {
            let reservation = cap.reserve(u64::MAX, &policy, at(0)).unwrap();
            cap.charge(reservation, u64::MAX, at(1));
        }
        assert_eq!(cap.spent(at(40 * HOUR)), (0, 0));
    }

    proptest! {
        #[test]
        fn never_more_than_the_limit_in_any_hour(
            calls in prop::collection::vec((0_u64..900, 0_u64..60), 1..120),
        ) {
            let (mut cap, policy, at) = cap(100, 1_000);
            let mut admitted: Vec<(u64, u64)> = Vec::new();
            let mut now = 0;
            for (wait, tokens) in calls {
                now += wait;
                let spent = |period: u64| -> u64 {
                    let inside = admitted.iter().filter(|(at, _)| at + period > now);
                    inside.map(|(_, tokens)| tokens).sum()
                };
                let (hour, day) = (spent(HOUR) + tokens, spent(24 * HOUR) + tokens);
                if let Some(_kept) = cap.reserve(tokens, &policy, at(now)) {
                    prop_assert!(hour <= 100 && day <= 1_000);
                    admitted.push((now, tokens));
                } else {
                    // Forgotten a minute late at most.
                    let late = |period: u64, limit: u64| {
                        let inside = admitted.iter().filter(|(at, _)| at + period > now);
                        inside.map(|(_, tokens)| tokens).sum::<u64>() + tokens > limit
                    };
                    prop_assert!(late(HOUR + 60, 100) || late(24 * HOUR + 60, 1_000));
                }
            }
        }
    }
}
