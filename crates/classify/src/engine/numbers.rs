//! Numbers and durations as providers write them.

use std::{sync::LazyLock, time::Duration};

use super::table::{Table, TableError, built_in, table};

const FILE: Table = table!("units.txt");

/// Longest wait that is believed: a provider that says more than ten years means "never" or
/// is mistaken, and sums of waits must not overflow.
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(10 * 365 * 86_400);

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

/// Each unit with its milliseconds.
static UNITS: LazyLock<Vec<(&str, u32)>> = LazyLock::new(|| built_in(read(FILE)));

fn read(table: Table) -> Result<Vec<(&'static str, u32)>, TableError> {
    let mut units: Vec<(&str, u32)> = Vec::new();
    for row in table.rows(2, 2)? {
        let unit = row.text(0);
        if unit != unit.to_lowercase() {
            return Err(row.error(format!("`{unit}` is not in lower case")));
        }
        if let Some((known, _)) = units.iter().find(|(known, _)| unit.starts_with(known)) {
            return Err(row.error(format!("`{unit}` is never reached: `{known}` is above it")));
        }
        units.push((unit, row.number(1)?));
    }
    Ok(units)
}

/// Reads the table now rather than at the first failure.
pub(crate) fn warm() {
    LazyLock::force(&UNITS);
}

/// The duration at the start of lower-case `text`: `1.5s`, `174ms`, `6m0s`, `7m12.5s`, `20
/// seconds`, `1 hour 5 minutes`. `bare` says what a number without a unit counts, if anything.
pub(crate) fn duration(text: &str, bare: Option<Duration>) -> Option<Duration> {
    let mut rest = text.trim_start_matches([' ', '~', '(']);
    let mut total = 0.0;
    let mut parts = 0;
    while let Some((value, used)) = decimal(rest) {
        let after = rest[used..].trim_start_matches(' ');
        let mut units = UNITS.iter();
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ms(millis: u64) -> Option<Duration> {
        Some(Duration::from_millis(millis))
    }

    #[test]
    fn the_file_is_well_formed() {
        read(FILE).unwrap();
        for (text, error) in [
            ("m | 1\nms | 2", "units.txt:2: `ms` is never reached: `m` is above it"),
            ("S | 1", "units.txt:1: `S` is not in lower case"),
        ] {
            let found = read(Table { file: "units.txt", text }).unwrap_err();
            assert_eq!(found.to_string(), format!("data/{error}"));
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

    proptest! {
        #[test]
        fn nothing_panics(text in "\\PC{0,60}") {
            count(&text);
            duration(&text, Some(Duration::from_secs(1)));
        }

    }
}
