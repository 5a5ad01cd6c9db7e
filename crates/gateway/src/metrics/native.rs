//! Times as Prometheus' native histograms have them: without bounds that somebody has chosen.

use std::{collections::BTreeMap, time::Duration};

/// Buckets for each doubling, as a power of two: eight, so that a time is known to 9 %. From a microsecond to a day they are
/// three hundred, and those in which nothing is are not kept.
pub(super) const SCHEMA: i32 = 3;

/// What counts as nothing: 2^-128, what Prometheus' own clients have.
pub(super) const ZERO: f64 = 1.0 / (1u128 << 127) as f64 / 2.0;

/// How many times were in each bucket.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct NativeTimes {
    pub(super) zero: u64,
    /// Of all of them, in seconds.
    pub(super) sum: f64,
    buckets: BTreeMap<i32, u64>,
}

/// Buckets as they are written: runs of neighbours, and by how much each differs from the one before.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Spans {
    /// How far each begins behind the end of the one before, and how many buckets it has.
    pub(super) spans: Vec<(i32, u32)>,
    pub(super) deltas: Vec<i64>,
}

impl NativeTimes {
    pub(super) fn add(&mut self, time: Duration) {
        let seconds = time.as_secs_f64();
        self.sum += seconds;
        if seconds <= ZERO {
            self.zero += 1;
            return;
        }
        // The bucket `n` ends with 2^(n / 8), which is in it.
        let bucket = (seconds.log2() * f64::from(1 << SCHEMA)).ceil() as i32;
        *self.buckets.entry(bucket).or_default() += 1;
    }

    pub(super) fn count(&self) -> u64 {
        self.zero + self.buckets.values().sum::<u64>()
    }

    pub(super) fn spans(&self) -> Spans {
        let mut written = Spans::default();
        let (mut end, mut before) = (0, 0);
        for (&bucket, &count) in &self.buckets {
            match written.spans.last_mut() {
                Some((_, length)) if bucket == end => *length += 1,
                _ => written.spans.push((bucket - end, 1)),
            }
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            written.deltas.push(count - before);
            (end, before) = (bucket + 1, count);
        }
        written
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_end_with_their_bounds_and_neighbours_are_one_span() {
        let mut times = NativeTimes::default();
        assert_eq!(times.spans(), Spans::default());
        // 2^-1 is the end of -8, 2^(1/8) is 1.09, the end of 1.
        for ms in [500, 500, 1_000, 1_050, 1_090, 4_000, 0] {
            times.add(Duration::from_millis(ms));
        }
        let Spans { spans, deltas } = times.spans();
        assert_eq!(spans, [(-8, 1), (7, 2), (14, 1)]);
        assert_eq!(deltas, [2, -1, 1, -1]);
        assert_eq!((times.zero, times.count(), times.sum), (1, 7, 8.14));
    }

    #[test]
    fn all_times_together_are_few_buckets() {
        let mut times = NativeTimes::default();
        for n in 0..1_000_000u64 {
            times.add(Duration::from_micros(n * n / 10));
        }
        times.add(Duration::from_nanos(1));
        times.add(Duration::MAX);
        assert!(times.buckets.len() < 400, "{}", times.buckets.len());
    }
}
