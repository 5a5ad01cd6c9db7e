//! Calls and failures in a sliding window.

use std::time::Duration;

use tokio::time::Instant;

/// Buckets of the window. Ten: at most a tenth of the window expires at once, in 160 bytes.
pub(super) const BUCKETS: usize = 10;

/// The counts of a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Calls that ended in it.
    pub calls: u64,
    /// Those of them that failed.
    pub failures: u64,
    /// Those of them that were slow to begin.
    pub slow: u64,
}

/// Counts over a window of time that slides by a tenth of its width: at any moment it holds the
/// piece that is running and the nine before it. It slides with the clock and not with the calls,
/// so an old failure is gone after the window whether calls came or not.
#[derive(Clone, Debug)]
pub struct SlidingWindow {
    epoch: Instant,
    /// Nanoseconds in a bucket.
    width: u64,
    /// The running bucket, counted from the epoch, and when it ends.
    head: u64,
    end: Instant,
    buckets: [Bucket; BUCKETS],
}

#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    calls: u32,
    failures: u32,
    slow: u32,
}

impl SlidingWindow {
    /// An empty window of `length`, which is at least ten nanoseconds.
    pub fn new(length: Duration, now: Instant) -> Self {
        let width = (nanos(length) / BUCKETS as u64).max(1);
        Self {
            epoch: now,
            width,
            head: 0,
            end: now + Duration::from_nanos(width),
            buckets: Default::default(),
        }
    }

    /// Counts a call.
    pub fn record(&mut self, now: Instant, failed: bool, slow: bool) {
        self.slide(now);
        let bucket = &mut self.buckets[(self.head % BUCKETS as u64) as usize];
        bucket.calls = bucket.calls.saturating_add(1);
        bucket.failures = bucket.failures.saturating_add(failed.into());
        bucket.slow = bucket.slow.saturating_add(slow.into());
    }

    /// What the window holds at `now`.
    pub fn counts(&mut self, now: Instant) -> Counts {
        self.slide(now);
        self.buckets.iter().fold(Counts::default(), |sum, bucket| Counts {
            calls: sum.calls + u64::from(bucket.calls),
            failures: sum.failures + u64::from(bucket.failures),
            slow: sum.slow + u64::from(bucket.slow),
        })
    }

    /// Empties all buckets.
    pub fn clear(&mut self) {
        self.buckets = Default::default();
    }

    /// Empties the buckets before the window at `now`. Two threads may arrive in another order than they
    /// read the clock: a late one is counted in the current bucket.
    fn slide(&mut self, now: Instant) {
        // The usual case costs a comparison and no division.
        if now < self.end {
            return;
        }
        let index = nanos(now.saturating_duration_since(self.epoch)) / self.width;
        let passed = index.saturating_sub(self.head).min(BUCKETS as u64);
        for step in 1..=passed {
            self.buckets[((self.head + step) % BUCKETS as u64) as usize] = Bucket::default();
        }
        self.head = index;
        let end = Duration::from_nanos(self.width.saturating_mul(index + 1));
        // Overflows after centuries: then the division is made each time.
        self.end = self.epoch.checked_add(end).unwrap_or(self.epoch);
    }
}

/// Nanoseconds, saturating at five centuries.
fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn slides_without_calls() {
        let start = Instant::now();
        let mut window = SlidingWindow::new(ms(1_000), start);
        window.record(start, true, false);
        window.record(start + ms(950), false, true);
        let both = Counts { calls: 2, failures: 1, slow: 1 };
        assert_eq!(window.counts(start + ms(999)), both);
        // The first bucket expires when the eleventh begins.
        assert_eq!(window.counts(start + ms(1_000)), Counts { calls: 1, failures: 0, slow: 1 });
        assert_eq!(window.counts(start + ms(1_899)), Counts { calls: 1, failures: 0, slow: 1 });
        assert_eq!(window.counts(start + ms(1_900)), Counts::default());
    }

    #[test]
    fn a_late_arrival_is_counted_now_and_nothing_is_lost() {
        let start = Instant::now();
        let mut window = SlidingWindow::new(ms(1_000), start);
        window.record(start + ms(500), false, false);
        window.record(start + ms(399), true, false);
        assert_eq!(window.counts(start + ms(1_400)).failures, 1, "counted in the piece of 500 ms");
        assert_eq!(window.counts(start + ms(1_500)), Counts::default());
    }

    #[test]
    fn a_century_later_it_is_empty_and_works() {
        let start = Instant::now();
        let mut window = SlidingWindow::new(ms(10), start);
        window.record(start, true, true);
        let later = start + Duration::from_secs(3_000_000_000);
        assert_eq!(window.counts(later), Counts::default());
        window.record(later, true, false);
        assert_eq!(window.counts(later).failures, 1);
    }

    proptest! {
        /// Compared with a list of all events.
        #[test]
        fn agrees_with_a_list(
            length in 10u64..100_000,
            events in proptest::collection::vec((0u64..40_000, any::<bool>(), any::<bool>()), 1..300),
        ) {
            let start = Instant::now();
            let mut window = SlidingWindow::new(ms(length), start);
            let piece = ms(length).as_nanos() / BUCKETS as u128;
            let mut list: Vec<(u128, bool, bool)> = vec![];
            let mut at = Duration::ZERO;
            for (wait, failed, slow) in events {
                at += ms(wait);
                window.record(start + at, failed, slow);
                list.push((at.as_nanos() / piece, failed, slow));
                let now = at.as_nanos() / piece;
                let inside = || list.iter().filter(|(when, ..)| when + BUCKETS as u128 > now);
                let expected = Counts {
                    calls: inside().count() as u64,
                    failures: inside().filter(|event| event.1).count() as u64,
                    slow: inside().filter(|event| event.2).count() as u64,
                };
                prop_assert_eq!(window.counts(start + at), expected);
            }
        }
    }
}
