//! Waits as providers write them, in headers and in text: durations, and moments relative to now.
//!
//! Layers that read a provider's hint and layers that read its rate limits read the same notations.

use std::{
    borrow::Cow,
    sync::LazyLock,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Longest wait that is believed: a provider that says more than ten years means "never" or
/// is mistaken, and sums of waits must not overflow.
pub const MAX_WAIT: Duration = Duration::from_secs(10 * 365 * 86_400);

/// Seconds, not negative, possibly with a fraction, as a wait.
pub fn seconds(value: f64) -> Option<Duration> {
    if !value.is_finite() || value < 0.0 {
        return None;
    }
    Some(Duration::try_from_secs_f64(value).map_or(MAX_WAIT, |wait| wait.min(MAX_WAIT)))
}

/// The decimal number at the start of `text`, and the bytes it took.
pub fn decimal(text: &str) -> Option<(f64, usize)> {
    let bytes = text.as_bytes();
    let digits = |from: usize| {
        bytes[from..].iter().position(|b| !b.is_ascii_digit()).unwrap_or(bytes.len() - from)
    };
    let whole = digits(0);
    if whole == 0 {
        return None;
    }
    let mut end = whole;
    if bytes.get(end) == Some(&b'.') {
        let fraction = digits(end + 1);
        if fraction > 0 {
            end += 1 + fraction;
        }
    }
    text[..end].parse().ok().map(|value| (value, end))
}

/// Each unit with its milliseconds, from `data/units.txt`.
fn units() -> &'static [(&'static str, u32)] {
    static UNITS: LazyLock<Vec<(&str, u32)>> = LazyLock::new(|| {
        let rows = rows(include_str!("../data/units.txt"));
        rows.filter_map(|row| Some((row[0], row[1].parse().ok()?))).collect()
    });
    &UNITS
}

/// The rows of a table of this crate: its cells, the missing ones empty, without comments.
pub(crate) fn rows(text: &'static str) -> impl Iterator<Item = [&'static str; 4]> {
    let lines = text.lines().map(str::trim);
    lines.filter(|line| !line.is_empty() && !line.starts_with('#')).map(|line| {
        let mut row = [""; 4];
        for (cell, text) in row.iter_mut().zip(line.split('|')) {
            *cell = text.trim();
        }
        row
    })
}

/// The duration at the start of lower-case `text`: `1.5s`, `174ms`, `6m0s`, `7m12.5s`, `20
/// seconds`, `1 hour 5 minutes`. `bare` says what a number without a unit counts, if anything.
pub fn duration(text: &str, bare: Option<Duration>) -> Option<Duration> {
    let mut rest = text.trim_start_matches([' ', '~', '(']);
    let mut total = 0.0;
    let mut parts = 0;
    while let Some((value, used)) = decimal(rest) {
        let after = rest[used..].trim_start_matches(' ');
        let mut units = units().iter();
        let unit = units.find(|(name, _)| {
            after.strip_prefix(name).is_some_and(|tail| {
                // `m` of `6m0s` is followed by a digit, `m` of `messages` by a letter.
                !tail.starts_with(|c: char| c.is_ascii_alphabetic())
            })
        });
        let Some((name, millis)) = unit else {
            if parts == 0 {
                return bare.and_then(|unit| seconds(value * unit.as_secs_f64()));
            }
            break;
        };
        total += value * f64::from(*millis);
        parts += 1;
        rest = after[name.len()..].trim_start_matches([' ', ',']);
        rest = rest.strip_prefix("and ").unwrap_or(rest);
    }
    if parts == 0 { None } else { seconds(total / 1_000.0) }
}

/// The wait until a moment written as a bare number: epoch seconds or milliseconds when it is
/// large enough to be one, else seconds from now. A moment past is no wait.
pub fn until_number(value: f64, now: SystemTime) -> Option<Duration> {
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
pub fn until_rfc3339(text: &str, now: SystemTime) -> Option<Duration> {
    Some(until(rfc3339(text.trim())?, now))
}

/// The wait until an HTTP date such as `Sat, 21 Nov 2026 13:18:09 GMT`.
pub fn until_http_date(text: &str, now: SystemTime) -> Option<Duration> {
    Some(until(httpdate::parse_http_date(text).ok()?, now))
}

fn rfc3339(text: &str) -> Option<SystemTime> {
    let text = match text.bytes().any(|byte| byte.is_ascii_lowercase()) {
        true => Cow::Owned(text.to_ascii_uppercase()),
        false => Cow::Borrowed(text),
    };
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

/// Seconds, fractions of them, a duration with a unit, an epoch in seconds or milliseconds, an RFC
/// 3339 moment or an HTTP date. Zero seconds is no hint; a moment that is past is: there is
/// nothing to wait for any more.
pub fn until_reset(value: &str, now: impl Fn() -> SystemTime) -> Option<Duration> {
    if let Ok(number) = value.parse::<f64>() {
        return until_number(number, now()).filter(|wait| !wait.is_zero() || number >= 1e9);
    }
    // Only an HTTP date begins with a letter.
    if value.starts_with(|c: char| c.is_ascii_alphabetic()) {
        return until_http_date(value, now());
    }
    // The clock is read only for what has the shape of a moment.
    let moment = value.contains(':').then(|| until_rfc3339(value, now())).flatten();
    moment.or_else(|| {
        // Providers write lower case, for which nothing is allocated.
        let lower = match value.bytes().any(|byte| byte.is_ascii_uppercase()) {
            true => Cow::Owned(value.to_ascii_lowercase()),
            false => Cow::Borrowed(value),
        };
        duration(&lower, None).filter(|wait| !wait.is_zero())
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ms(millis: u64) -> Option<Duration> {
        Some(Duration::from_millis(millis))
    }

    #[test]
    fn every_unit_is_reached() {
        let rows = rows(include_str!("../data/units.txt")).count();
        assert!(rows > 0 && units().len() == rows, "a row is damaged");
        for (at, (unit, _)) in units().iter().enumerate() {
            assert_eq!(*unit, unit.to_lowercase());
            let before = units()[..at].iter().find(|(known, _)| unit.starts_with(known));
            assert_eq!(before, None, "`{unit}` is below what it begins with");
        }
    }

    #[test]
    fn durations() {
        let second = Some(Duration::from_secs(1));
        for (text, expected) in [
            ("1.5s", ms(1_500)),
            ("174ms", ms(174)),
            ("6m0s", ms(360_000)),
            ("7m12.5s. visit", ms(432_500)),
            ("1h2m3s", ms(3_723_000)),
            ("20 seconds", ms(20_000)),
            ("1 hour and 5 minutes.", ms(3_900_000)),
            ("2 days", ms(172_800_000)),
            ("10", ms(10_000)),
            ("10 messages", ms(10_000)),
            ("soon", None),
            ("", None),
            ("-5s", None),
        ] {
            assert_eq!(duration(text, second), expected, "{text}");
        }
        assert_eq!(duration("10", None), None);
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC{0,60}") {
            duration(&text, Some(Duration::from_secs(1)));
            until_reset(&text, || UNIX_EPOCH);
        }
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
