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
    let bytes = text.as_bytes();
    if bytes.len() < 20 || !text.is_ascii() {
        return None;
    }
    let number = |from: usize, to: usize| -> Option<i64> {
        let part = text.get(from..to)?;
        part.bytes().all(|b| b.is_ascii_digit()).then(|| part.parse().ok())?
    };
    let shape = [(4, b'-'), (7, b'-'), (13, b':'), (16, b':')];
    if shape.iter().any(|&(at, byte)| bytes[at] != byte) || !matches!(bytes[10], b'T' | b't' | b' ')
    {
        return None;
    }
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || hour > 23 || minute > 59 {
        return None;
    }
    let mut rest = &text[19..];
    let mut nanos = 0;
    if let Some(fraction) = rest.strip_prefix('.') {
        let digits = fraction.bytes().position(|b| !b.is_ascii_digit()).unwrap_or(fraction.len());
        let kept = digits.min(9);
        nanos = fraction.get(..kept)?.parse::<u64>().ok()? * 10u64.pow(9 - kept as u32);
        rest = &fraction[digits..];
    }
    let offset = match rest.as_bytes() {
        [b'Z' | b'z'] => 0,
        [sign @ (b'+' | b'-'), _, _, b':', _, _] => {
            let part = |from: usize| rest.get(from..from + 2)?.parse::<i64>().ok();
            let minutes = part(1)? * 60 + part(4)?;
            if *sign == b'+' { minutes } else { -minutes }
        }
        _ => return None,
    };
    let seconds = days_from_civil(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second
        - offset * 60;
    UNIX_EPOCH.checked_add(Duration::new(u64::try_from(seconds).ok()?, nanos as u32))
}

/// Days from 1970-01-01 in the proleptic Gregorian calendar: whole years as if they began in
/// March, so that the leap day comes last.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
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
            ("2020-01-01T00:00:00Z", ms(0)),
            ("2026-13-21T13:58:39Z", None),
            ("2026-11-21T13:58:39", None),
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
