//! The headers that say something, picked out in one pass.
//!
//! An answer has twenty headers, and there are twice as many names to look for.

use std::sync::LazyLock;

use http::{HeaderMap, HeaderValue};

use super::map::{Map, words};

pub(crate) const RETRY_AFTER_MS: usize = 0;
pub(crate) const RETRY_AFTER: usize = 1;
pub(crate) const SHOULD_RETRY: usize = 2;

/// Headers that stand alone, by their constants, and Amazon's and Azure's names of errors.
const SINGLE: [&str; 5] =
    ["retry-after-ms", "retry-after", "x-should-retry", "x-amzn-errortype", "x-ms-error-code"];

/// Where providers put a request's id, most specific first.
const REQUEST_IDS: [&str; 9] = [
    "request-id",
    "x-request-id",
    "x-amzn-requestid",
    "apim-request-id",
    "x-ms-request-id",
    "x-goog-request-id",
    "x-kong-request-id",
    "x-generation-id",
    "cf-ray",
];

/// A bucket's headers: what is left, when it refills, and what a body calls it (`type: tokens`),
/// when it does.
const BUCKETS: [(&str, &str, &str); 15] = [
    ("x-ratelimit-remaining-requests", "x-ratelimit-reset-requests", "requests"),
    ("x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens", "tokens"),
    ("anthropic-ratelimit-requests-remaining", "anthropic-ratelimit-requests-reset", "requests"),
    ("anthropic-ratelimit-tokens-remaining", "anthropic-ratelimit-tokens-reset", "tokens"),
    (
        "anthropic-ratelimit-input-tokens-remaining",
        "anthropic-ratelimit-input-tokens-reset",
        "input",
    ),
    (
        "anthropic-ratelimit-output-tokens-remaining",
        "anthropic-ratelimit-output-tokens-reset",
        "output",
    ),
    ("anthropic-priority-input-tokens-remaining", "anthropic-priority-input-tokens-reset", ""),
    ("anthropic-priority-output-tokens-remaining", "anthropic-priority-output-tokens-reset", ""),
    ("anthropic-ratelimit-unified-remaining", "anthropic-ratelimit-unified-reset", ""),
    ("ratelimitbysize-remaining", "ratelimitbysize-reset", "tokens"),
    ("x-ratelimitbysize-remaining-minute", "x-ratelimitbysize-reset-minute", "tokens"),
    ("x-codex-primary-remaining-percent", "x-codex-primary-reset-after-seconds", ""),
    ("x-ratelimit-remaining", "x-ratelimit-reset", ""),
    ("x-rate-limit-remaining", "x-rate-limit-reset", ""),
    ("ratelimit-remaining", "ratelimit-reset", ""),
];

const FIRST_ID: usize = SINGLE.len();
const FIRST_BUCKET: usize = FIRST_ID + REQUEST_IDS.len();
const COUNT: usize = FIRST_BUCKET + BUCKETS.len() * 2;

/// The longest name is below.
const MAX_NAME: usize = 48;

type Folded = [u64; MAX_NAME / 8];

static NAMES: LazyLock<Map<{ MAX_NAME / 8 }, usize>> = LazyLock::new(|| {
    let buckets = BUCKETS.into_iter().flat_map(|(remaining, reset, _)| [remaining, reset]);
    let names = SINGLE.into_iter().chain(REQUEST_IDS).chain(buckets).enumerate();
    Map::new(names.filter_map(|(number, name)| Some((folded(name)?, number))).collect())
});

/// Builds the table now rather than at the first failure.
pub(crate) fn warm() {
    LazyLock::force(&NAMES);
}

/// A header's name, which is in lower case, unless it is one that is not looked for.
fn folded(name: &str) -> Option<Folded> {
    let name = name.as_bytes();
    if !matches!(name.first_chunk(), Some(b"an" | b"ap" | b"cf" | b"ra" | b"re" | b"x-")) {
        return None;
    }
    let mut bytes = [0; MAX_NAME];
    bytes.get_mut(..name.len())?.copy_from_slice(name);
    Some(words(&bytes))
}

/// The headers of an answer that say something.
pub(crate) struct Headers<'a> {
    values: [Option<&'a HeaderValue>; COUNT],
}

impl<'a> Headers<'a> {
    pub(crate) fn of(headers: &'a HeaderMap) -> Self {
        let mut values = [None; COUNT];
        for (name, value) in headers {
            if let Some(number) = folded(name.as_str()).and_then(|name| NAMES.get(&name)) {
                // Of several values the first counts.
                values[*number].get_or_insert(value);
            }
        }
        Self { values }
    }

    /// The header of that number, as text.
    pub(crate) fn text(&self, number: usize) -> Option<&'a str> {
        self.values[number]?.to_str().ok().map(str::trim)
    }

    /// Names of errors.
    pub(crate) fn errors(&self) -> impl Iterator<Item = &'a str> {
        (SHOULD_RETRY + 1..FIRST_ID).filter_map(|number| self.text(number))
    }

    /// The request's id.
    pub(crate) fn request_id(&self) -> Option<&'a str> {
        (FIRST_ID..FIRST_BUCKET).find_map(|number| self.text(number))
    }

    /// Of each bucket that says when it refills: what is left, when it does, and its name.
    pub(crate) fn buckets(&self) -> impl Iterator<Item = (Option<&'a str>, &'a str, &'static str)> {
        BUCKETS.iter().enumerate().filter_map(|(number, (_, _, name))| {
            let at = FIRST_BUCKET + number * 2;
            Some((self.text(at), self.text(at + 1)?, *name))
        })
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderName;

    use super::*;

    #[test]
    fn every_name_is_found() {
        let buckets = BUCKETS.into_iter().flat_map(|(remaining, reset, _)| [remaining, reset]);
        for (number, name) in SINGLE.into_iter().chain(REQUEST_IDS).chain(buckets).enumerate() {
            let mut map = HeaderMap::new();
            let header = HeaderName::from_static(name);
            map.append(header.clone(), HeaderValue::from_static(" first "));
            map.append(header, HeaderValue::from_static("second"));
            assert_eq!(Headers::of(&map).text(number), Some("first"), "{name}");
        }
        assert_eq!(SINGLE[RETRY_AFTER_MS], "retry-after-ms");
        assert_eq!(SINGLE[RETRY_AFTER], "retry-after");
        assert_eq!(SINGLE[SHOULD_RETRY], "x-should-retry");
    }

    #[test]
    fn other_names_are_passed_over() {
        let mut map = HeaderMap::new();
        for name in ["date", "x-request-idle", "retry", "content-type"] {
            map.insert(HeaderName::from_static(name), HeaderValue::from_static("1"));
        }
        let long = HeaderName::try_from("x".repeat(100)).unwrap();
        map.insert(long, HeaderValue::from_static("1"));
        let headers = Headers::of(&map);
        assert!((0..COUNT).all(|number| headers.text(number).is_none()));
    }
}
