//! What is masked in all that leaves for one request.

use std::{
    borrow::Cow,
    fmt,
    sync::{Arc, OnceLock},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Uri, header};
use steadfast_core::MASK;

use super::{
    SHORTEST, Secrets,
    fetched::fetched,
    recent::{RECENT, RecentKey},
};
use crate::server::query;

/// The shortest key of a caller's that is searched for, in bytes: 16, so that a dummy such as `test`, which SDKs want
/// where no key is needed, blanks nothing.
const SHORTEST_PRESENTED: usize = 16;

/// Longer keys are searched for in pieces of so many bytes: 256, longer than any vendor's key, so that a signed token of
/// kilobytes is masked in a message that was cut as well.
const PIECE: usize = 256;

/// How many pieces a request has at most: 8, which is a signed token of 2 KiB. Whoever sends headers of megabytes has no
/// search built for them.
const PIECES: usize = 8;

/// Headers that hold a credential.
static CREDENTIALS: [HeaderName; 5] = [
    header::AUTHORIZATION,
    header::PROXY_AUTHORIZATION,
    HeaderName::from_static("x-api-key"),
    HeaderName::from_static("x-goog-api-key"),
    HeaderName::from_static("api-key"),
];

/// What is masked in all that leaves for one request: the secrets of the configuration by which it is served, and
/// the keys that its caller presented.
pub(crate) struct Mask {
    configured: Arc<Secrets>,
    /// Keys that came before.
    known: Vec<Arc<RecentKey>>,
    /// Keys that came for the first time.
    new: Vec<Box<[u8]>>,
    /// Finds the new ones; made for the first text that is searched for them.
    finder: OnceLock<Secrets>,
}

impl Mask {
    /// For the request with this head. From now on the log shows none of its keys either.
    pub(crate) fn of(configured: Arc<Secrets>, headers: &HeaderMap, uri: &Uri) -> Self {
        let (mut known, mut new) = (Vec::new(), Vec::new());
        presented(headers, uri, &mut |key| match RECENT.keep(key) {
            Some(key) => known.push(key),
            None => new.push(key.into()),
        });
        Self { configured, known, new, finder: OnceLock::new() }
    }

    /// `text` without secrets.
    pub(crate) fn bytes(&self, text: Bytes) -> Bytes {
        match self.mask(&text) {
            Cow::Owned(masked) => masked.into(),
            Cow::Borrowed(_) => text,
        }
    }

    /// `text` without secrets.
    pub(crate) fn text(&self, text: String) -> String {
        match self.mask(text.as_bytes()) {
            Cow::Owned(masked) => String::from_utf8_lossy(&masked).into_owned(),
            Cow::Borrowed(_) => text,
        }
    }

    /// Takes secrets out of the values of `headers`. What stands in a header for credentials is one.
    pub(crate) fn headers(&self, headers: &mut HeaderMap) {
        for (name, value) in headers.iter_mut() {
            if CREDENTIALS.contains(name) {
                *value = HeaderValue::from_static(MASK);
            } else if let Some(masked) = self.value(value) {
                *value = masked;
            }
        }
    }

    /// `value` without secrets, when there is one in it. What is too short for one is not searched.
    pub(crate) fn value(&self, value: &HeaderValue) -> Option<HeaderValue> {
        if value.len() < SHORTEST {
            return None;
        }
        match self.mask(value.as_bytes()) {
            Cow::Owned(masked) => Some(
                HeaderValue::from_bytes(&masked).unwrap_or_else(|_| HeaderValue::from_static(MASK)),
            ),
            Cow::Borrowed(_) => None,
        }
    }

    /// Whether a key that the caller presented stands in `text`.
    pub(crate) fn is_presented(&self, text: &[u8]) -> bool {
        let known = self.known.iter().map(|key| key.key());
        let mut all = known.chain(self.new.iter().map(|key| &**key));
        all.any(|key| text.windows(key.len()).any(|part| part == key))
    }

    fn mask<'t>(&self, text: &'t [u8]) -> Cow<'t, [u8]> {
        let mut masked = self.configured.mask(text);
        let mut mask = |secrets: &Secrets| {
            if let Cow::Owned(more) = secrets.mask(&masked) {
                masked = Cow::Owned(more);
            }
        };
        fetched().iter().for_each(|fetched| mask(fetched));
        self.known.iter().for_each(|key| mask(key.secrets()));
        if !self.new.is_empty() {
            mask(self.finder.get_or_init(|| Secrets::of(&self.new)));
        }
        masked
    }
}

impl fmt::Debug for Mask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mask").finish_non_exhaustive()
    }
}

/// Gives each key that the request with this head presents to `found`, or the pieces of it.
fn presented(headers: &HeaderMap, uri: &Uri, found: &mut dyn FnMut(&[u8])) {
    let mut left = PIECES;
    let mut pieces = |key: &[u8]| {
        let long_enough = key.chunks(PIECE).filter(|piece| piece.len() >= SHORTEST_PRESENTED);
        for piece in long_enough.take(left) {
            left -= 1;
            found(piece);
        }
    };
    for name in &CREDENTIALS {
        for value in headers.get_all(name) {
            // What is no text is no key of anybody's.
            if let Ok(value) = std::str::from_utf8(value.as_bytes()) {
                pieces(after_scheme(name.as_str(), value).as_bytes());
            }
        }
    }
    if let Some(key) = query(uri, "key") {
        pieces(key.as_bytes());
    }
}

/// The credential in the header `name`, if it is one that holds one.
pub(crate) fn credential<'v>(name: &str, value: &'v str) -> Option<&'v str> {
    let name = name.to_ascii_lowercase();
    CREDENTIALS.iter().any(|one| *one == *name).then(|| after_scheme(&name, value))
}

/// The secret that the header `name` is likely to hold: gateways and clouds have headers of their own for theirs.
pub(crate) fn likely_secret<'v>(name: &str, value: &'v str) -> Option<&'v str> {
    let name = name.to_ascii_lowercase();
    let parts = ["auth", "key", "token", "secret", "password", "cookie", "credential"];
    let value = after_scheme(&name, value);
    let is_one = value.len() >= SHORTEST_PRESENTED && parts.iter().any(|part| name.contains(part));
    is_one.then_some(value)
}

/// What comes after the scheme in the header `name`, if it has one.
fn after_scheme<'v>(name: &str, value: &'v str) -> &'v str {
    match value.split_once(' ') {
        Some((_, value)) if name.contains("auth") => value.trim(),
        _ => value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mask(configured: &str, headers: &[(&'static str, &str)], uri: &str) -> Mask {
        let headers = headers.iter().map(|(name, value)| {
            (http::HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
        });
        let configured = Arc::new(Secrets::of([configured]));
        Mask::of(configured, &headers.collect(), &uri.parse().unwrap())
    }

    fn mask_of_headers(headers: &[(&'static str, &str)]) -> Mask {
        mask("a-secret", headers, "/")
    }

    #[test]
    fn what_a_caller_presents_is_masked_from_16_bytes_on() {
        let key = "caller-key-12345";
        for (headers, uri) in [
            (&[("authorization", "Bearer caller-key-12345")][..], "/"),
            (&[("authorization", "caller-key-12345")], "/"),
            (&[("proxy-authorization", "basic  caller-key-12345 ")], "/"),
            (&[("x-api-key", "test"), ("x-api-key", key)], "/"),
            (&[("x-goog-api-key", key)], "/"),
            (&[("api-key", key)], "/"),
            (&[], "/v1beta/models?alt=sse&key=caller%2Dkey-12345"),
        ] {
            let mask = mask("a-secret", headers, uri);
            let text = |text: &str| mask.text(text.to_owned());
            assert_eq!(text("a-secret, caller-key-12345"), "[redacted], [redacted]", "{headers:?}");
            assert_eq!(text("a test of secrets"), "a test of secrets");
        }
        let short = mask_of_headers(&[("authorization", "Bearer caller-key-1234")]);
        assert_eq!(short.bytes("caller-key-1234".into()), "caller-key-1234");
    }

    #[test]
    fn secrets_in_the_headers_of_a_provider_are_known_by_the_headers_name() {
        let of = |name, value| credential(name, value).or_else(|| likely_secret(name, value));
        assert_eq!(of("Authorization", "Bearer abc"), Some("abc"));
        assert_eq!(of("Api-Key", "abc"), Some("abc"));
        assert_eq!(of("Helicone-Auth", "Bearer 1234567890123456"), Some("1234567890123456"));
        assert_eq!(of("cf-access-client-secret", "1234567890123456"), Some("1234567890123456"));
        assert_eq!(of("x-max-tokens", "4096"), None);
        assert_eq!(of("http-referer", "https://example.com/"), None);
    }

    #[test]
    fn a_long_key_is_masked_whole_and_cut_off() {
        let key: String = (0..500).map(|n| format!("{n:04}")).collect();
        let mask = mask_of_headers(&[("authorization", &format!("Bearer {key}"))]);
        assert_eq!(mask.text(format!("<{key}>")), "<[redacted]>");
        assert_eq!(mask.text(format!("<{}", &key[..256])), "<[redacted]");
        let longer = "x".repeat(100 * PIECE);
        let mask = mask_of_headers(&[("x-api-key", &longer)]);
        assert_eq!(mask.known.len() + mask.new.len(), PIECES);
    }

    #[test]
    fn headers_for_credentials_are_masked_whatever_is_in_them() {
        let mut headers = HeaderMap::new();
        headers.insert("x-api-key", HeaderValue::from_static("test"));
        headers.insert("x-request-id", HeaderValue::from_static("id-a-secret"));
        headers.insert("retry-after", HeaderValue::from_static("7"));
        mask_of_headers(&[]).headers(&mut headers);
        let shown = ["x-api-key", "x-request-id", "retry-after"].map(|name| &headers[name]);
        assert_eq!(shown, ["[redacted]", "id-[redacted]", "7"]);
    }

    #[test]
    fn an_id_that_holds_the_callers_key_is_known() {
        let mask = mask_of_headers(&[("authorization", "Bearer caller-key-12345")]);
        assert!(mask.is_presented(b"id:caller-key-12345"));
        assert!(!mask.is_presented(b"id") && !mask.is_presented(b"caller-key-1234"));
    }
}
