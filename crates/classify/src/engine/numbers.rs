//! Numbers, durations and dates as providers write them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use smallvec::SmallVec;

use super::block::{Kinds, blocks, each};

/// Longest wait that is believed: a provider that says more than ten years means "never" or
/// is mistaken, and sums of waits must not overflow.
const MAX_WAIT: Duration = Duration::from_secs(10 * 365 * 86_400);

/// The whole number at the start of `text`, with commas or underscores between groups of digits,
/// and the bytes it took.
pub(crate) fn count(text: &str) -> Option<(u64, usize)> {
    let bytes = text.as_bytes();
    let mut value: u64 = 0;
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'0'..=b'9' => {
                value = value.checked_mul(10)?.checked_add(u64::from(byte - b'0'))?;
            }
            b',' | b'_' if at > 0 && is_group(&bytes[at + 1..]) => {}
            _ => break,
        }
        at += 1;
    }
    (at > 0).then_some((value, at))
}

/// Numbers looked at in one text: what states a limit does so early.
const MAX_NUMBERS: usize = 64;

/// Where numbers begin in a text.
pub(crate) type Positions = SmallVec<[u32; 12]>;

/// Where numbers begin in `text`, at most [`MAX_NUMBERS`] of them.
pub(crate) fn positions(text: &str) -> Positions {
    let mut positions = Positions::new();
    let bytes = text.as_bytes();
    for (start, block) in blocks(bytes) {
        let kinds = Kinds::of(block);
        if kinds.digit == 0 {
            continue;
        }
        let inside = start > 0 && bytes[start - 1].is_ascii_alphanumeric();
        let behind_word = kinds.behind_word(&mut if inside { 0x80 } else { 0 });
        for at in each(kinds.digit & !behind_word) {
            positions.extend(u32::try_from(start + at));
            if positions.len() == MAX_NUMBERS {
                return positions;
            }
        }
    }
    positions
}

/// A text and where numbers begin in it.
#[derive(Clone, Copy)]
pub(crate) struct Numbers<'t> {
    pub(crate) text: &'t str,
    pub(crate) at: &'t [u32],
}

/// The number right behind the first of `words` that stands before one, and the rest from there.
/// Words are four bytes or longer.
pub(crate) fn after<'t, 'w>(numbers: Numbers<'t>, words: &[&'w str]) -> Option<(&'w str, &'t str)> {
    let mut best: Option<(usize, usize)> = None;
    for &at in numbers.at {
        let at = at as usize;
        let before = &numbers.text.as_bytes()[..at];
        // The last four bytes tell nearly all of them apart without a call to compare.
        let Some(tail) = four(before) else { continue };
        let known = best.map_or(words.len(), |(known, _)| known);
        let rank = words[..known].iter().position(|words| {
            four(words.as_bytes()) == Some(tail) && before.ends_with(words.as_bytes())
        });
        if let Some(rank) = rank {
            best = Some((rank, at));
        }
    }
    let (rank, at) = best?;
    Some((words[rank], numbers.text.get(at..)?))
}

/// The last four bytes of a text.
fn four(text: &[u8]) -> Option<u32> {
    text.last_chunk::<4>().map(|bytes| u32::from_le_bytes(*bytes))
}

/// Exactly three digits follow, then something else.
fn is_group(rest: &[u8]) -> bool {
    rest.len() >= 3
        && rest[..3].iter().all(u8::is_ascii_digit)
        && !rest.get(3).is_some_and(u8::is_ascii_digit)
}

/// Seconds, not negative, possibly with a fraction, as a wait.
pub(crate) fn seconds(value: f64) -> Option<Duration> {
    if !value.is_finite() || value < 0.0 {
        return None;
    }
    Some(Duration::try_from_secs_f64(value).map_or(MAX_WAIT, |wait| wait.min(MAX_WAIT)))
}

/// The decimal number at the start of `text`, and the bytes it took.
pub(crate) fn decimal(text: &str) -> Option<(f64, usize)> {
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

/// Units, longest spelling first where one begins another. Milliseconds each.
const UNITS: [(&str, f64); 24] = [
    ("milliseconds", 1.0),
    ("millisecond", 1.0),
    ("msec", 1.0),
    ("ms", 1.0),
    ("minutes", 60_000.0),
    ("minute", 60_000.0),
    ("mins", 60_000.0),
    ("min", 60_000.0),
    ("m", 60_000.0),
    ("seconds", 1_000.0),
    ("second", 1_000.0),
    ("secs", 1_000.0),
    ("sec", 1_000.0),
    ("s", 1_000.0),
    ("hours", 3_600_000.0),
    ("hour", 3_600_000.0),
    ("hrs", 3_600_000.0),
    ("hr", 3_600_000.0),
    ("h", 3_600_000.0),
    ("days", 86_400_000.0),
    ("day", 86_400_000.0),
    ("d", 86_400_000.0),
    ("weeks", 604_800_000.0),
    ("week", 604_800_000.0),
];

/// The duration at the start of lower-case `text`: `1.5s`, `174ms`, `6m0s`, `7m12.5s`, `20
/// seconds`, `1 hour 5 minutes`. `bare` says what a number without a unit counts, if anything.
pub(crate) fn duration(text: &str, bare: Option<Duration>) -> Option<Duration> {
    let mut rest = text.trim_start_matches([' ', '~', '(']);
    let mut total = 0.0;
    let mut parts = 0;
    while let Some((value, used)) = decimal(rest) {
        let after = rest[used..].trim_start_matches(' ');
        let first = after.as_bytes().first();
        let mut units = UNITS.iter().filter(|(name, _)| name.as_bytes().first() == first);
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
        total += value * millis;
        parts += 1;
        rest = after[name.len()..].trim_start_matches([' ', ',']);
        rest = rest.strip_prefix("and ").unwrap_or(rest);
    }
    if parts == 0 { None } else { seconds(total / 1_000.0) }
}

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

    #[test]
    fn counts() {
        for (text, expected) in [
            ("128000 tokens", Some((128_000, 6))),
            ("80,000 input", Some((80_000, 6))),
            ("1_000_000", Some((1_000_000, 9))),
            ("12, then", Some((12, 2))),
            ("12,3456", Some((12, 2))),
            ("99999999999999999999999", None),
            ("x", None),
        ] {
            assert_eq!(count(text), expected, "{text}");
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
        fn numbers_begin_where_a_naive_search_finds_them(text in "[a-z0-9é,. ]{0,60}") {
            let bytes = text.as_bytes();
            let naive: Vec<u32> = (0..bytes.len())
                .filter(|&at| {
                    bytes[at].is_ascii_digit()
                        && (at == 0 || !bytes[at - 1].is_ascii_alphanumeric())
                })
                .map(|at| u32::try_from(at).unwrap())
                .take(MAX_NUMBERS)
                .collect();
            prop_assert_eq!(positions(&text).to_vec(), naive);
        }

        #[test]
        fn nothing_panics(text in "\\PC{0,60}", value in any::<f64>()) {
            let now = UNIX_EPOCH + Duration::from_secs(1_800_000_000);
            count(&text);
            duration(&text, Some(Duration::from_secs(1)));
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
