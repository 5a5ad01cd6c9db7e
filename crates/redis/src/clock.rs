//! How far the store's clock is ahead of this node's.

use std::{collections::VecDeque, time::Duration};

/// How many of the last answers are remembered. One of them took no longer than the way itself.
const SAMPLES: usize = 16;

/// By how much two clocks may drift apart within as many beats, in microseconds: 500 parts in a million, which is the most
/// that a clock is slewed by.
const DRIFT_US: i64 = 8_000;

/// Estimates the offset from answers that have the store's time in them.
#[derive(Debug, Default)]
pub(crate) struct StoreClock {
    samples: VecDeque<Sample>,
}

#[derive(Clone, Copy, Debug)]
struct Sample {
    round_trip_us: i64,
    ahead_us: i64,
}

impl StoreClock {
    /// An answer: when it was asked for and when it came, by this node's clock, and the store's time in it. By how much
    /// the store is ahead, in microseconds.
    pub(crate) fn observe(&mut self, sent: Duration, received: Duration, store: Duration) -> i64 {
        let round_trip_us = micros(received).saturating_sub(micros(sent)).max(0);
        // The store has read its clock somewhere on the way; in the middle it is wrong by half the way at most.
        let ahead_us = micros(store) - micros(sent) - round_trip_us / 2;
        let sample = Sample { round_trip_us, ahead_us };
        // Somebody has set one of the clocks, or it is another store.
        self.samples.retain(|before| sample.agrees(before));
        if self.samples.len() == SAMPLES {
            self.samples.pop_front();
        }
        self.samples.push_back(sample);
        let shortest = self.samples.iter().rev().min_by_key(|sample| sample.round_trip_us);
        shortest.map_or(ahead_us, |sample| sample.ahead_us)
    }
}

impl Sample {
    fn agrees(&self, other: &Self) -> bool {
        let apart = (self.ahead_us - other.ahead_us).abs();
        apart <= (self.round_trip_us + other.round_trip_us) / 2 + DRIFT_US
    }
}

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn the_shortest_way_shows_it_best() {
        let mut clock = StoreClock::default();
        // The store is 10 min ahead, and its answer is late by 80 ms.
        assert_eq!(clock.observe(ms(1_000), ms(1_082), ms(601_001)), 599_960_000);
        assert_eq!(clock.observe(ms(2_000), ms(2_002), ms(602_001)), 600_000_000);
        assert_eq!(clock.observe(ms(3_000), ms(3_082), ms(603_081)), 600_000_000);
    }

    #[test]
    fn a_clock_that_is_set_is_believed_at_once() {
        let mut clock = StoreClock::default();
        clock.observe(ms(1_000), ms(1_002), ms(1_001));
        assert_eq!(clock.observe(ms(2_000), ms(2_020), ms(62_010)), 60_000_000);
        assert_eq!(clock.observe(ms(3_000), ms(3_020), ms(3_010)), 0);
    }

    #[test]
    fn it_follows_a_drift() {
        let mut clock = StoreClock::default();
        let mut last = 0;
        for second in 0..1_000 {
            let store = ms(second * 1_000 + 1) + Duration::from_micros(second * 100);
            last = clock.observe(ms(second * 1_000), ms(second * 1_000 + 2), store);
        }
        assert!((last - 99_900).abs() <= 1_600, "{last}");
    }
}
