//! How long a provider asked to wait, from the first source that states it readably.

use std::time::{Duration, SystemTime};

use http::HeaderMap;
use steadfast_core::{Reason, hint, quota::QuotaHeaders};

use super::{facts::Facts, headers, message::Message, phrases::Number};

/// The longest wait that a provider may ask for; one that asks for more is asked again then. An hour, and a day
/// where a quota of the day (`reopens` says that it is not one of minutes) or an unpaid
/// bill is the reason.
pub(crate) fn longest(reason: Reason, reopens: bool) -> Duration {
    const HOUR: Duration = Duration::from_secs(3_600);
    const DAY: Duration = Duration::from_secs(24 * 3_600);
    match reason {
        Reason::Billing => DAY,
        reason if reason.is_throttling() && reopens => DAY,
        _ => HOUR,
    }
}

/// Headers that state it, in the order in which SDKs read them.
pub(crate) fn from_headers(headers: &HeaderMap, now: impl Fn() -> SystemTime) -> Option<Duration> {
    headers::text(headers, "retry-after-ms")
        .and_then(|value| value.parse().ok())
        .and_then(|ms: f64| hint::seconds(ms / 1_000.0))
        .filter(|wait| !wait.is_zero())
        .or_else(|| hint::until_reset(headers::text(headers, "retry-after")?, &now))
}

/// When the exhausted buckets are full again: the latest of those with nothing left, or of those
/// the body names; a bucket that still has something left is not what was hit.
pub(crate) fn from_buckets(
    headers: &HeaderMap,
    bucket: &str,
    now: impl Fn() -> SystemTime,
) -> Option<Duration> {
    let mut exhausted = None;
    let mut named = None;
    for quota in QuotaHeaders::all(headers) {
        let Some(wait) = quota.reset(&now) else { continue };
        let (left, name) = (quota.remaining(), quota.name);
        if left.is_none_or(|left| left <= 0.0) {
            exhausted = exhausted.max(Some(wait));
        } else if !bucket.is_empty() && name == bucket {
            named = named.max(Some(wait));
        }
    }
    exhausted.or(named)
}

/// What the body's fields say.
pub(crate) fn from_fields(facts: &Facts<'_>, now: impl Fn() -> SystemTime) -> Option<Duration> {
    facts
        .wait
        .or_else(|| hint::until_number(facts.reset_at?, now()))
        .or_else(|| hint::until_rfc3339(facts.reset_date.as_deref()?, now()))
        .filter(|wait| !wait.is_zero())
}

/// What the text says. A number without a unit counts seconds.
pub(crate) fn from_text(message: &Message<'_>) -> Option<Duration> {
    let stated = message.number(Number::Wait)?;
    hint::duration(super::prose::head(stated, 48), Some(Duration::from_secs(1)))
        .filter(|wait| !wait.is_zero())
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use http::{HeaderName, HeaderValue};
    use proptest::prelude::*;

    use super::*;

    fn from_headers(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
        super::from_headers(headers, || now)
    }

    fn from_buckets(headers: &HeaderMap, bucket: &str, now: SystemTime) -> Option<Duration> {
        super::from_buckets(headers, bucket, || now)
    }

    fn from_text(text: &str) -> Option<Duration> {
        super::from_text(&Message::of(text))
    }

    fn now() -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(1_795_269_489)
    }

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| {
                (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
            })
            .collect()
    }

    fn ms(millis: u64) -> Option<Duration> {
        Some(Duration::from_millis(millis))
    }

    const TEN_YEARS: u64 = 10 * 365 * 86_400_000;

    #[test]
    fn the_headers_in_their_order() {
        for (pairs, expected) in [
            (vec![("retry-after-ms", "1500"), ("retry-after", "9")], ms(1_500)),
            (vec![("retry-after-ms", "soon"), ("retry-after", "9")], ms(9_000)),
            (vec![("retry-after-ms", "0"), ("retry-after", "9")], ms(9_000)),
            (vec![("retry-after", "1.5")], ms(1_500)),
            (vec![("retry-after", " 2 ")], ms(2_000)),
            (vec![("retry-after", "0")], None),
            (vec![("retry-after", "-3")], None),
            (vec![("retry-after", "NaN")], None),
            (vec![("retry-after", "inf")], None),
            (vec![("retry-after", "soon")], None),
            (vec![("retry-after", "Sat, 21 Nov 2026 13:58:39 GMT")], ms(30_000)),
            (vec![("retry-after", "Sat, 21 Nov 2020 13:58:39 GMT")], ms(0)),
            // Found by fuzzing: a date is held to the longest wait, as everything else is.
            (vec![("retry-after", "Sat, 21 Nov 4054 13:58:39 GMT")], ms(TEN_YEARS)),
            (vec![("retry-after", "4054-11-21T13:58:39Z")], ms(TEN_YEARS)),
            (vec![("retry-after", "65800000000")], ms(TEN_YEARS)),
            (vec![("retry-after", "999999999")], ms(TEN_YEARS)),
            (vec![("retry-after", "99999 days")], ms(TEN_YEARS)),
            (vec![("retry-after", "1795269500")], ms(11_000)),
            (vec![("retry-after", "20s")], ms(20_000)),
            (vec![], None),
        ] {
            assert_eq!(from_headers(&headers(&pairs), now()), expected, "{pairs:?}");
        }
    }

    #[test]
    fn the_exhausted_bucket_counts() {
        for (pairs, kind, expected) in [
            (vec![("x-ratelimit-reset-requests", "1.5s")], "", ms(1_500)),
            (vec![("x-ratelimit-reset", "1.5s")], "", ms(1_500)),
            (vec![("x-ratelimit-reset-tokens", "6m0s")], "", ms(360_000)),
            (vec![("x-ratelimit-reset-tokens", "174ms")], "", ms(174)),
            (
                vec![
                    ("x-ratelimit-remaining-requests", "99"),
                    ("x-ratelimit-reset-requests", "1s"),
                    ("x-ratelimit-remaining-tokens", "0"),
                    ("x-ratelimit-reset-tokens", "29.134s"),
                ],
                "",
                ms(29_134),
            ),
            (
                vec![
                    ("x-ratelimit-remaining-requests", "99"),
                    ("x-ratelimit-reset-requests", "1s"),
                    ("x-ratelimit-remaining-tokens", "812"),
                    ("x-ratelimit-reset-tokens", "29s"),
                ],
                "tokens",
                ms(29_000),
            ),
            (
                vec![("x-ratelimit-remaining-requests", "9"), ("x-ratelimit-reset-requests", "1s")],
                "",
                None,
            ),
            (
                vec![
                    ("anthropic-ratelimit-input-tokens-remaining", "0"),
                    ("anthropic-ratelimit-input-tokens-reset", "2026-11-21T13:58:39Z"),
                    ("anthropic-ratelimit-requests-remaining", "10"),
                    ("anthropic-ratelimit-requests-reset", "2026-11-21T14:58:39Z"),
                ],
                "",
                ms(30_000),
            ),
            (vec![("x-ratelimit-reset", "1795269499")], "", ms(10_000)),
            (vec![("x-ratelimit-reset", "1795269499500")], "", ms(10_500)),
            (vec![("x-ratelimit-reset", "1795269400")], "", ms(0)),
            (vec![("x-ratelimit-reset", "whenever")], "", None),
            (vec![("ratelimitbysize-reset", "38")], "", ms(38_000)),
        ] {
            assert_eq!(from_buckets(&headers(&pairs), kind, now()), expected, "{pairs:?}");
        }
    }

    #[test]
    fn prose() {
        for (text, expected) in [
            ("please try again in 7m12s. visit", ms(432_000)),
            ("please try again in 174ms.", ms(174)),
            ("please try again in 4.77s", ms(4_770)),
            ("please retry in 40.025771073s.", Some(Duration::from_secs_f64(40.025_771_073))),
            ("please retry after 86400 seconds.", ms(86_400_000)),
            ("try again in 30 seconds. passed model=x", ms(30_000)),
            ("your quota will reset after 18h31m10s.", ms(66_670_000)),
            ("try again in a moment", None),
            ("try again later", None),
        ] {
            assert_eq!(from_text(text), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_value_panics(value in "[ -~]{0,40}") {
            let Ok(header) = HeaderValue::from_str(&value) else { return Ok(()) };
            for name in ["retry-after", "retry-after-ms", "x-ratelimit-reset"] {
                let mut headers = HeaderMap::new();
                headers.insert(HeaderName::from_static(name), header.clone());
                from_headers(&headers, now());
                from_buckets(&headers, "", now());
            }
            from_text(&format!("try again in {value}"));
        }
    }
}
