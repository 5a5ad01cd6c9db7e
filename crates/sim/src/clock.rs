//! Wall-clock time for headers with a date: a fixed start that advances with tokio's clock, so a
//! paused clock controls the dates too.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

/// The last second that can be written as a date: of the year 9999.
const LAST_SECOND: Duration = Duration::from_secs(253_402_300_799);

#[derive(Clone, Copy, Debug)]
pub(crate) struct WallClock {
    epoch: SystemTime,
    since: Instant,
}

impl WallClock {
    pub(crate) fn starting_at(epoch: SystemTime) -> Self {
        Self { epoch, since: Instant::now() }
    }

    /// The date in `wait`; the nearest of the years 1970 to 9999, which are those that can be written.
    fn date_in(&self, wait: Duration) -> SystemTime {
        let last = UNIX_EPOCH + LAST_SECOND;
        let date = self.epoch.checked_add(self.since.elapsed().saturating_add(wait));
        date.map_or(last, |date| date.clamp(UNIX_EPOCH, last))
    }

    pub(crate) fn rfc3339_in(&self, wait: Duration) -> String {
        rfc3339(self.date_in(wait))
    }

    pub(crate) fn http_date_in(&self, wait: Duration) -> String {
        httpdate::fmt_http_date(self.date_in(wait))
    }
}

/// `2026-11-05T07:08:09Z`, rounded up to the second as the providers do.
fn rfc3339(time: SystemTime) -> String {
    let almost = Duration::from_nanos(999_999_999);
    humantime::format_rfc3339_seconds(time + almost).to_string()
}

/// A duration as Go prints it, which is what OpenAI's headers hold: `120ms`, `1.5s`, `6m0s`.
pub(crate) fn go_duration(wait: Duration) -> String {
    let ms = wait.as_millis();
    let seconds = |ms: u128| {
        let text = format!("{}.{:03}", ms / 1_000, ms % 1_000);
        let text = text.trim_end_matches('0').trim_end_matches('.');
        format!("{text}s")
    };
    match ms {
        0 => "0s".to_owned(),
        ms if ms < 1_000 => format!("{ms}ms"),
        ms if ms < 60_000 => seconds(ms),
        ms if ms < 3_600_000 => format!("{}m{}", ms / 60_000, seconds(ms % 60_000)),
        ms => {
            format!("{}h{}m{}", ms / 3_600_000, ms % 3_600_000 / 60_000, seconds(ms % 60_000))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_and_durations_read_as_the_providers_write_them() {
        for (seconds, nanos, text) in [
            (0, 0, "1970-01-01T00:00:00Z"),
            (951_782_400, 0, "2000-02-29T00:00:00Z"),
            (1_709_251_199, 0, "2024-02-29T23:59:59Z"),
            (1_709_251_200, 0, "2024-03-01T00:00:00Z"),
            (1_793_862_489, 0, "2026-11-05T07:08:09Z"),
            (1_793_862_489, 1, "2026-11-05T07:08:10Z"),
            (1_793_862_489, 999_999_999, "2026-11-05T07:08:10Z"),
        ] {
            assert_eq!(rfc3339(UNIX_EPOCH + Duration::new(seconds, nanos)), text);
        }
        for (ms, text) in [
            (0, "0s"),
            (120, "120ms"),
            (1_500, "1.5s"),
            (29_134, "29.134s"),
            (60_000, "1m0s"),
            (360_000, "6m0s"),
            (432_000, "7m12s"),
            (3_600_000, "1h0m0s"),
        ] {
            assert_eq!(go_duration(Duration::from_millis(ms)), text);
        }
    }

    #[test]
    fn dates_that_can_not_be_written_are_the_nearest_that_can() {
        let before = WallClock::starting_at(UNIX_EPOCH - Duration::from_secs(3_600));
        assert_eq!(before.rfc3339_in(Duration::ZERO), "1970-01-01T00:00:00Z");
        assert_eq!(before.http_date_in(Duration::ZERO), "Thu, 01 Jan 1970 00:00:00 GMT");
        for wait in [LAST_SECOND + Duration::from_secs(7_200), Duration::MAX] {
            assert_eq!(before.rfc3339_in(wait), "9999-12-31T23:59:59Z");
            assert_eq!(before.http_date_in(wait), "Fri, 31 Dec 9999 23:59:59 GMT");
        }
    }
}
