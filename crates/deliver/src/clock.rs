//! Times that are kept over a restart.

use std::time::{Duration, SystemTime};

use steadfast_core::time::{millis, wall};

/// Milliseconds since 1970, as the files have them.
pub(crate) fn now_ms() -> u64 {
    to_ms(wall())
}

pub(crate) fn to_ms(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, millis)
}

pub(crate) fn from_ms(ms: u64) -> SystemTime {
    let epoch = SystemTime::UNIX_EPOCH;
    epoch.checked_add(Duration::from_millis(ms)).unwrap_or(epoch)
}

pub(crate) fn later_ms(now: u64, wait: Duration) -> u64 {
    now.saturating_add(millis(wait))
}
