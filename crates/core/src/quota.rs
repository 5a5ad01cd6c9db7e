//! The rate limits that a provider states in the headers of its answers.

use std::{
    sync::LazyLock,
    time::{Duration, SystemTime},
};

use http::{HeaderMap, HeaderName, header::DATE};

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
    /// The provider's own time.
    date: Option<&'a str>,
    window: Option<Duration>,
}

/// The headers of one limit.
#[derive(Debug)]
struct Row {
    limit: Option<HeaderName>,
    remaining: HeaderName,
    reset: HeaderName,
    name: &'static str,
    window: Option<Duration>,
}

/// The windows that headers are named after, by the end of the name, in seconds.
const WINDOWS: [(&str, u64); 4] =
    [("-minute", 60), ("-hour", 3_600), ("-day", 86_400), ("-month", 30 * 86_400)];

fn read(text: &'static str) -> Vec<Row> {
    let header = |name: &'static str| HeaderName::try_from(name).ok();
    let rows = hint::rows(text).filter_map(|[limit, remaining, reset, name]| {
        Some(Row {
            limit: header(limit),
            remaining: header(remaining)?,
            reset: header(reset)?,
            name,
            window: WINDOWS
                .iter()
                .find(|(end, _)| remaining.ends_with(end))
                .map(|(_, seconds)| Duration::from_secs(*seconds)),
        })
    });
    rows.collect()
}

/// The table, and the place in it of each header, sorted by the header's name.
#[derive(Debug)]
struct Table {
    rows: Vec<Row>,
    headers: Vec<(HeaderName, usize)>,
}

impl Table {
    fn new(rows: Vec<Row>) -> Self {
        let headers = rows.iter().enumerate().flat_map(|(index, row)| {
            let names = [row.limit.as_ref(), Some(&row.remaining), Some(&row.reset)];
            names.into_iter().flatten().map(move |name| (name.clone(), index))
        });
        let mut headers: Vec<_> = headers.collect();
        headers.sort_unstable_by(|(one, _), (other, _)| one.as_str().cmp(other.as_str()));
        Self { rows, headers }
    }

    /// The rows of which `headers` have anything, a bit each. An answer has fewer headers than the table, so theirs are looked up.
    fn present(&self, headers: &HeaderMap) -> u64 {
        let found = headers.keys().filter_map(|name| {
            let by_name = |(known, _): &(HeaderName, usize)| known.as_str().cmp(name.as_str());
            let at = self.headers.binary_search_by(by_name).ok()?;
            Some(1 << self.headers[at].1)
        });
        found.fold(0, |rows, row: u64| rows | row)
    }
}

impl<'a> QuotaHeaders<'a> {
    /// Each limit of which `headers` state anything.
    pub fn all(headers: &'a HeaderMap) -> impl Iterator<Item = Self> {
        static TABLE: LazyLock<Table> =
            LazyLock::new(|| Table::new(read(include_str!("../data/quotas.txt"))));
        let text = |name: &HeaderName| headers.get(name)?.to_str().ok().map(str::trim);
        let present = TABLE.present(headers);
        let rows = TABLE.rows.iter().enumerate();
        rows.filter(move |(index, _)| present >> index & 1 == 1).filter_map(move |(_, row)| {
            let (remaining, reset) = (text(&row.remaining), text(&row.reset));
            let limit = row.limit.as_ref().and_then(text);
            let any = limit.or(remaining).or(reset).is_some();
            let (name, window, date) = (row.name, row.window, text(&DATE));
            any.then_some(Self { name, limit, remaining, reset, date, window })
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

    /// When all of it is available again, from now. A moment is compared with the time that the answer itself
    /// states, where it does, so that it does not matter how wrong our clock is.
    pub fn reset(&self, now: impl Fn() -> SystemTime) -> Option<Duration> {
        let date = || httpdate::parse_http_date(self.date?).ok();
        hint::until_reset(self.reset?, || date().unwrap_or_else(&now))
    }

    /// The period that the headers are named after, such as `x-ratelimit-limit-requests-day`.
    pub fn window(&self) -> Option<Duration> {
        self.window
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
        assert!(rows.len() <= 64, "a bit each");
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
    fn a_moment_is_read_by_the_clock_of_the_provider_and_a_window_by_its_name() {
        let read = |name, value, date| {
            let mut headers = HeaderMap::new();
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
            headers.extend(date);
            let all = QuotaHeaders::all(&headers);
            let rows: Vec<_> =
                all.map(|quota| (quota.reset(|| SystemTime::UNIX_EPOCH), quota.window())).collect();
            rows[0]
        };
        let date = HeaderValue::from_static("Sat, 21 Nov 2026 13:18:09 GMT");
        let reset = "anthropic-ratelimit-requests-reset";
        let (wait, window) = read(reset, "2026-11-21T13:18:39Z", Some((DATE, date)));
        assert_eq!((wait, window), (Some(Duration::from_secs(30)), None));
        let (wait, _) = read(reset, "1970-01-01T00:00:07Z", None);
        assert_eq!(wait, Some(Duration::from_secs(7)));
        let (_, window) = read("x-ratelimit-reset-requests-day", "33011.2", None);
        assert_eq!(window, Some(Duration::from_secs(86_400)));
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
