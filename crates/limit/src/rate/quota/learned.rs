//! What a provider states of its limits, and what is learned from that.

use std::time::Duration;

use steadfast_core::shared::WHOLE;

use crate::rate::bucket::{Bucket, Quota, nanos};

/// How long a learned limit holds after a provider has stated it last: an hour, as for all that is learned.
pub(super) const LEARNED_FOR: u64 = Quota::HOUR;

/// What the headers of an answer state of one limit.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::rate) struct Stated {
    pub(in crate::rate) kind: usize,
    pub(in crate::rate) limit: Option<u64>,
    pub(in crate::rate) remaining: Option<u64>,
    pub(in crate::rate) reset: Option<Duration>,
    /// The period that the header is named after.
    pub(in crate::rate) window: Option<Duration>,
}

/// A limit that a provider states, and what is taken to be left of it. An estimate: calls wait by it, and nobody
/// is refused who has nowhere else to go.
#[derive(Clone, Copy, Debug)]
pub(super) struct Learned {
    /// The whole limit, and when it was stated.
    pub(super) stated: Option<(Quota, u64)>,
    /// The part of it that this process has, in parts per million.
    pub(super) ppm: u32,
    pub(super) bucket: Bucket,
    /// What was taken since the layer was made, corrected; and what of it the provider has counted.
    pub(super) taken: i64,
    pub(super) counted: i64,
}

impl Default for Learned {
    fn default() -> Self {
        Self { stated: None, ppm: WHOLE, bucket: Bucket::default(), taken: 0, counted: 0 }
    }
}

impl Learned {
    /// What this process has of it.
    pub(super) fn quota(&self, now: u64) -> Option<Quota> {
        let (quota, at) = self.stated?;
        (now < at.saturating_add(LEARNED_FOR)).then(|| quota.part(self.ppm))
    }

    /// What this process has of `remaining`, which is left of the whole.
    pub(super) fn part(&self, remaining: u64) -> u64 {
        let part = u128::from(remaining) * u128::from(self.ppm) / u128::from(WHOLE);
        u64::try_from(part).unwrap_or(u64::MAX)
    }
}

/// Whether `a` lets less through than `b`.
pub(super) fn is_less(a: Quota, b: Quota) -> bool {
    u128::from(a.limit) * u128::from(b.period) < u128::from(b.limit) * u128::from(a.period)
}

/// The period of a limit: what its header is named after, else a minute, unless much of it is used and takes
/// longer than two to come back. Then it is an hour, or a day: a reset is never later than the period is long,
/// whether the provider refills all the time or at once.
///
/// While little is used, a reset in whole seconds says nothing, and what is known stays. To be wrong with a
/// period that is too short costs a 429 now and then, with one that is too long everybody's time.
pub(super) fn period(stated: &Stated, limit: u64, known: Option<Quota>) -> u64 {
    if let Some(window) = stated.window {
        return nanos(window).max(1);
    }
    let known =
        known.filter(|known| known.limit == limit).map_or(Quota::MINUTE, |known| known.period);
    let (Some(remaining), Some(reset)) = (stated.remaining, stated.reset) else { return known };
    let used = limit.saturating_sub(remaining);
    match nanos(reset) {
        _ if used < limit.div_ceil(10) => known,
        reset if reset <= 2 * Quota::MINUTE => Quota::MINUTE,
        reset if reset <= Quota::HOUR => Quota::HOUR,
        _ => Quota::DAY,
    }
}
