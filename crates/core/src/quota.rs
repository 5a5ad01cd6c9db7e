//! The rate limits that a provider states in the headers of its answers.

use std::{
    sync::LazyLock,
    time::{Duration, SystemTime},
};

use http::{HeaderMap, HeaderName};

use crate::hint;

/// What the headers of an answer state of one rate limit. The headers are rows of `data/quotas.txt`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QuotaHeaders<'a> {
    /// What is limited: `requests`, `tokens`, `input` or `output` (tokens); empty for anything else.
    pub name: &'static str,
    limit: Option<&'a str>,
    remaining: Option<&'a str>,
    reset: Option<&'a str>,
}

/// The headers of one limit.
#[derive(Debug)]
struct Row {
    limit: Option<HeaderName>,
    remaining: HeaderName,
    reset: HeaderName,
    name: &'static str,
}

fn read(text: &'static str) -> Vec<Row> {
    let header = |name: &'static str| HeaderName::try_from(name).ok();
    let rows = hint::rows(text).filter_map(|[limit, remaining, reset, name]| {
        Some(Row {
            limit: header(limit),
            remaining: header(remaining)?,
            reset: header(reset)?,
            name,
        })
    });
    rows.collect()
}

impl<'a> QuotaHeaders<'a> {
    /// Each limit of which `headers` state anything.
    pub fn all(headers: &'a HeaderMap) -> impl Iterator<Item = Self> {
        static ROWS: LazyLock<Vec<Row>> =
            LazyLock::new(|| read(include_str!("../data/quotas.txt")));
        let text = |name: &HeaderName| headers.get(name)?.to_str().ok().map(str::trim);
        // An answer without headers is not searched for each of them.
        let rows: &[Row] = if headers.is_empty() { &[] } else { &ROWS };
        rows.iter().filter_map(move |row| {
            let (remaining, reset) = (text(&row.remaining), text(&row.reset));
            let limit = row.limit.as_ref().and_then(text);
            let any = limit.or(remaining).or(reset).is_some();
            any.then_some(Self { name: row.name, limit, remaining, reset })
        })
    }

    /// The whole limit.
    pub fn limit(&self) -> Option<u64> {
        self.limit?.parse().ok()
    }

    /// What is left of it; below zero in debt.
    pub fn remaining(&self) -> Option<f64> {
        self.remaining?.parse().ok().filter(|left: &f64| left.is_finite())
    }

    /// When all of it is available again, from now.
    pub fn reset(&self, now: impl Fn() -> SystemTime) -> Option<Duration> {
        hint::until_reset(self.reset?, now)
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn every_row_of_the_table_is_valid() {
        let text = include_str!("../data/quotas.txt");
        let rows = read(text);
        assert_eq!(rows.len(), hint::rows(text).count(), "a row has no header");
        let mut names: Vec<_> = rows
            .iter()
            .flat_map(|row| [Some(&row.remaining), Some(&row.reset), row.limit.as_ref()])
            .flatten()
            .collect();
        let count = names.len();
        names.sort_by_key(|name| name.as_str());
        names.dedup();
        assert_eq!(names.len(), count, "a header is listed twice");
        let known = ["requests", "tokens", "input", "output", ""];
        assert!(rows.iter().all(|row| known.contains(&row.name)));
    }

    #[test]
    fn reads_what_vendors_state() {
        let mut headers = HeaderMap::new();
        assert_eq!(QuotaHeaders::all(&headers).count(), 0);
        for (name, value) in [
            ("x-ratelimit-limit-requests", "60"),
            ("x-ratelimit-remaining-requests", " 59 "),
            ("x-ratelimit-reset-requests", "1s"),
            ("anthropic-ratelimit-input-tokens-remaining", "-12"),
            ("x-ratelimit-limit-tokens", "lots"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        let now = || SystemTime::UNIX_EPOCH;
        let found: Vec<_> = QuotaHeaders::all(&headers)
            .map(|quota| (quota.name, quota.limit(), quota.remaining(), quota.reset(now)))
            .collect();
        assert_eq!(
            found,
            [
                ("requests", Some(60), Some(59.0), Some(Duration::from_secs(1))),
                ("tokens", None, None, None),
                ("input", None, Some(-12.0), None),
            ]
        );
    }
}
