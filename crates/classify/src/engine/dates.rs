//! Moments as providers write them, as waits from now.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::numbers::{MAX_WAIT, seconds};

/// The wait until a moment written as a bare number: epoch seconds or milliseconds when it is
/// large enough to be one, else seconds from now. A moment past is no wait.
pub(crate) fn until_number(value: f64, now: SystemTime) -> Option<Duration> {
    // 1e9 s was in 2001; 1e11 s is in the year 5138, so what is above counts milliseconds.
    let epoch = if value >= 1e11 {
        value / 1_000.0
    } else if value >= 1e9 {
        value
    } else {
        return seconds(value);
    };
    Some(until(seconds_since_epoch(epoch)?, now))
}

/// The wait until `at`; none when it is past.
fn until(at: SystemTime, now: SystemTime) -> Duration {
    at.duration_since(now).unwrap_or(Duration::ZERO).min(MAX_WAIT)
}

fn seconds_since_epoch(value: f64) -> Option<SystemTime> {
    UNIX_EPOCH.checked_add(Duration::try_from_secs_f64(value).ok()?)
}

/// The wait until an RFC 3339 moment such as `2026-11-21T13:18:09Z`.
pub(crate) fn until_rfc3339(text: &str, now: SystemTime) -> Option<Duration> {
    Some(until(rfc3339(text.trim())?, now))
}

/// The wait until an HTTP date such as `Sat, 21 Nov 2026 13:18:09 GMT`.
pub(crate) fn until_http_date(text: &str, now: SystemTime) -> Option<Duration> {
    Some(until(httpdate::parse_http_date(text).ok()?, now))
}

fn rfc3339(text: &str) -> Option<SystemTime> {
    let text = text.to_ascii_uppercase();
    let (moment, minutes) = match text.strip_suffix('Z') {
        Some(moment) => (moment, 0),
        None => {
            let (moment, offset) = text.split_at_checked(text.len().checked_sub(6)?)?;
            let (hours, minutes) = offset.split_once(':')?;
            let (hours, minutes) = (hours.parse::<i64>().ok()?, minutes.parse::<i64>().ok()?);
            (moment, hours * 60 + minutes * if offset.starts_with('-') { -1 } else { 1 })
        }
    };
    let at = humantime::parse_rfc3339_weak(moment).ok()?;
    let offset = Duration::from_secs(minutes.unsigned_abs() * 60);
    if minutes < 0 { at.checked_add(offset) } else { at.checked_sub(offset) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ms(millis: u64) -> Option<Duration> {
        Some(Duration::from_millis(millis))
    }

    #[test]
    fn moments() {
        let now = UNIX_EPOCH + Duration::from_secs(1_795_269_489);
        for (text, expected) in [
            ("2026-11-21T13:58:39Z", ms(30_000)),
            ("2026-11-21T13:58:39.250Z", ms(30_250)),
            ("2026-11-21T15:58:39+02:00", ms(30_000)),
            ("2026-11-21T08:28:39-05:30", ms(30_000)),
            ("2026-11-21t13:28:39-00:30", ms(30_000)),
            ("2026-11-21 13:58:39z", ms(30_000)),
            ("2020-01-01T00:00:00Z", ms(0)),
            ("2026-13-21T13:58:39Z", None),
            ("2026-11-21T13:58:39", None),
            ("2026-11-21T13:58:39+0a:00", None),
            ("2026-11-21T13:58:39é:00", None),
            ("tomorrow", None),
        ] {
            assert_eq!(until_rfc3339(text, now), expected, "{text}");
        }
        assert_eq!(until_number(1_795_269_499.0, now), ms(10_000));
        assert_eq!(until_number(1_795_269_499_500.0, now), ms(10_500));
        assert_eq!(until_number(12.0, now), ms(12_000));
        assert_eq!(until_number(1_000_000_000.0, now), ms(0));
        assert_eq!(until_number(f64::NAN, now), None);
    }

    proptest! {
        #[test]
        fn nothing_panics(text in "\\PC{0,60}", value in any::<f64>()) {
            let now = UNIX_EPOCH + Duration::from_secs(1_800_000_000);
            until_rfc3339(&text, now);
            until_http_date(&text, now);
            if let Some(wait) = until_number(value, now) {
                prop_assert!(wait <= MAX_WAIT);
            }
        }

        #[test]
        fn no_date_is_a_longer_wait(secs in 0u64..250_000_000_000) {
            let date = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(secs));
            prop_assert!(until_http_date(&date, UNIX_EPOCH).unwrap() <= MAX_WAIT);
        }

        #[test]
        fn rfc3339_agrees_with_the_http_date_library(secs in 0u64..4_000_000_000) {
            let at = UNIX_EPOCH + Duration::from_secs(secs);
            let date = httpdate::fmt_http_date(at);
            // `Sun, 06 Nov 1994 08:49:37 GMT` rewritten.
            let months = ["Jan","Feb","Mar","Apr","May","Jun","Jul","Aug","Sep","Oct","Nov","Dec"];
            let month = months.iter().position(|m| *m == &date[8..11]).unwrap() + 1;
            let text = format!("{}-{month:02}-{}T{}Z", &date[12..16], &date[5..7], &date[17..25]);
            prop_assert_eq!(rfc3339(&text), Some(at));
        }
    }
}
