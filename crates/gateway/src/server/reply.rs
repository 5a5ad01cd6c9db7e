//! Headers and errors that callers see.

use std::sync::Arc;

use axum::{body::Body, response::Response};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri};
use steadfast_chat::Head;
use steadfast_client::dialect::{codec, translation::LeftOut};
use steadfast_core::{Dialect, Failure, RecoveryLog, Retry, Target};

use super::down;
use crate::{
    escape,
    secrets::{Mask, Secrets},
};

/// The target that answered, or failed last.
const TARGET: HeaderName = HeaderName::from_static("x-steadfast-target");
/// How many times a provider was asked.
const ATTEMPTS: HeaderName = HeaderName::from_static("x-steadfast-attempts");
/// What the layers did.
const RECOVERY: HeaderName = HeaderName::from_static("x-steadfast-recovery");
/// What was left out of the request because the target's dialect has no word for it.
const LEFT_OUT: HeaderName = HeaderName::from_static("x-steadfast-left-out");
const NOTICE: HeaderName = HeaderName::from_static("x-steadfast-notice");
/// The guard has stopped the task, and the answer says so: the limit or rule.
const STOPPED: HeaderName = HeaderName::from_static("x-steadfast-stopped");
/// Why the call failed: the reason's name.
const REASON: HeaderName = HeaderName::from_static("x-steadfast-reason");
/// The request's id, whatever the dialect.
pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// What the vendors' SDKs obey over the status.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// The message for a caller who may not ask.
pub(super) const NO_KEY: &str = "the gateway key is missing or unknown; a gateway without keys answers \
                                 programs of its own machine only, at a loopback address and from \
                                 no page of another host";

/// Longest recovery log in a header, in bytes: well below the 8 KiB that common proxies allow for
/// all headers together.
const MAX_RECOVERY: usize = 1_500;

/// Longest request id taken over from a caller.
const MAX_ID: usize = 128;

/// The caller's own request id when it sent a usable one, else a new one; whether it is the caller's. Printable ASCII.
fn request_id(headers: &HeaderMap, mask: &Mask) -> (HeaderValue, bool) {
    let usable = |id: &&HeaderValue| {
        let id = id.as_bytes();
        !id.is_empty()
            && id.len() <= MAX_ID
            && id.iter().all(|b| b.is_ascii_alphanumeric() || b"-_.:".contains(b))
            && !mask.is_presented(id)
    };
    // Copied: what was read shares the connection's buffer.
    let own = headers.get(&REQUEST_ID).filter(usable);
    match own.and_then(|id| HeaderValue::from_bytes(id.as_bytes()).ok()) {
        Some(own) => (own, true),
        None => (new_id(), false),
    }
}

/// `req_` and 24 hexadecimal digits.
fn new_id() -> HeaderValue {
    let mut id = *b"req_000000000000000000000000";
    let (first, second) = (fastrand::u64(..), u64::from(fastrand::u32(..)));
    hex(first, &mut id[4..20]);
    hex(second, &mut id[20..]);
    HeaderValue::from_bytes(&id).unwrap_or_else(|_| HeaderValue::from_static("req_none"))
}

/// The lowest digits of `bits`, as many as there is room for.
fn hex(mut bits: u64, out: &mut [u8]) {
    for digit in out.iter_mut().rev() {
        *digit = b"0123456789abcdef"[(bits & 0xf) as usize];
        bits >>= 4;
    }
}

/// The id as text.
pub(super) fn text(id: &HeaderValue) -> &str {
    id.to_str().unwrap_or_default()
}

/// The dialect that the headers or the address of a request suggest, where an address serves more
/// than one.
pub(super) fn guess_dialect(headers: &HeaderMap, uri: &Uri) -> Dialect {
    if headers.contains_key("anthropic-version") || uri.path().starts_with("/v1/messages") {
        Dialect::Anthropic
    } else if headers.contains_key("x-goog-api-key") || uri.path().starts_with("/v1beta") {
        Dialect::Gemini
    } else if uri.path().starts_with("/v1/responses") {
        Dialect::Responses
    } else {
        Dialect::OpenAi
    }
}

/// What all that goes out for one request has in common: its id, and that it shows no secret.
pub(super) struct Outgoing {
    pub(super) id: HeaderValue,
    /// The caller has chosen the id.
    pub(super) is_callers: bool,
    pub(super) mask: Mask,
}

impl Outgoing {
    /// For the request with this head.
    pub(super) fn of(secrets: &Arc<Secrets>, headers: &HeaderMap, uri: &Uri) -> Self {
        let mask = Mask::of(secrets.clone(), headers, uri);
        let (id, is_callers) = request_id(headers, &mask);
        Self { id, is_callers, mask }
    }
}

/// A failure as `dialect` writes it, with what was done about it.
pub(super) fn failed(
    dialect: Dialect,
    failure: &Failure,
    outgoing: &Outgoing,
    log: &RecoveryLog,
) -> Response {
    let Outgoing { id, mask, .. } = outgoing;
    let (status, headers, body) = codec(dialect).encode_error(failure, Some(text(id)));
    let own = failure.upstream().is_some_and(|upstream| upstream.body == body);
    let mut response = Response::new(Body::from(mask.bytes(body)));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    let headers = response.headers_mut();
    headers.insert(REASON, HeaderValue::from_static(failure.outward_reason().as_str()));
    // What was tried here is not tried again by the SDK in front: retries would multiply. A
    // refusal that cost nobody anything, says when to come back, and does not go back to something
    // that does not change, is worth coming back to. So is a call that there was no room to wait for.
    let root = failure.common_reason().or(failure.because()).unwrap_or(failure.reason());
    let may_pass = match root.rule().retry {
        Retry::Yes => true,
        Retry::Forbidden => false,
        _ => root.is_refusal(),
    };
    let cost_nothing = failure.attempts() == 0 && failure.retry_after().is_some();
    let worth_it = may_pass && (cost_nothing || failure.is_crowded());
    headers.insert(SHOULD_RETRY, HeaderValue::from_static(if worth_it { "true" } else { "false" }));
    stamp(headers, dialect, failure.target(), failure.attempts(), outgoing, log);
    down::add_of_failure(headers, dialect, failure, own, outgoing);
    mask.headers(headers);
    response
}

/// A failure before any layer was asked.
pub(super) fn refused(dialect: Dialect, failure: &Failure, outgoing: &Outgoing) -> Response {
    failed(dialect, failure, outgoing, &RecoveryLog::disabled())
}

/// What happened, for an answer that has started.
pub(super) fn stamp(
    headers: &mut HeaderMap,
    dialect: Dialect,
    target: Option<&Target>,
    attempts: u32,
    Outgoing { id, mask, .. }: &Outgoing,
    log: &RecoveryLog,
) {
    if let Some(target) = target
        && let Some(value) = visible(target.as_str())
    {
        headers.insert(TARGET, value);
    }
    let attempts = match attempts.max(log.attempts()) {
        1 => HeaderValue::from_static("1"),
        more => more.into(),
    };
    headers.insert(ATTEMPTS, attempts);
    if !log.is_empty()
        && let Some(value) = visible(&mask.text(log.to_string()))
    {
        headers.insert(RECOVERY, value);
    }
    if !log.is_empty()
        && let Some(stop) =
            log.steps().iter().find(|step| (step.layer, step.action) == ("guard", "stopped"))
        && let Some(value) = visible(stop.detail.as_deref().unwrap_or("task"))
    {
        headers.insert(STOPPED, value);
    }
    if let Some(value) = log.notice().and_then(|notice| visible(&mask.text(notice))) {
        headers.insert(NOTICE, value);
    }
    let own = &codec(dialect).facts().request_id;
    if *own != REQUEST_ID {
        headers.insert(own, id.clone());
    }
    headers.insert(REQUEST_ID, id.clone());
}

/// Names what was left out of the request of an answer that has started.
pub(super) fn stamp_left_out(
    headers: &mut HeaderMap,
    head: &Head,
    Outgoing { mask, .. }: &Outgoing,
) {
    if let Some(left_out) = head.extensions.get::<LeftOut>()
        && let Some(value) = visible(&mask.text(left_out.to_string()))
    {
        headers.insert(LEFT_OUT, value);
    }
}

/// `text` as a header's value: printable ASCII, bounded.
fn visible(text: &str) -> Option<HeaderValue> {
    let ascii = escape::ascii(text);
    HeaderValue::from_str(&ascii[..ascii.len().min(MAX_RECOVERY)]).ok()
}

/// An empty success, to be filled.
pub(super) fn ok(content_type: &'static str, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::OK;
    // With room for those of `stamp`, and of `down::add`.
    *response.headers_mut() = HeaderMap::with_capacity(24);
    response
        .headers_mut()
        .insert(http::header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_callers_id_is_taken_over_when_it_is_harmless() {
        let with =
            |id: &str| HeaderMap::from_iter([(REQUEST_ID, HeaderValue::from_str(id).unwrap())]);
        let request_id = |headers: &HeaderMap| {
            Outgoing::of(&Arc::new(Secrets::of([""; 0])), headers, &Uri::default()).id
        };
        assert_eq!(request_id(&with("abc-1:2")), "abc-1:2");
        let mut own_key = with("id:a-callers-own-key");
        own_key.insert("x-api-key", HeaderValue::from_static("a-callers-own-key"));
        assert_ne!(request_id(&own_key), "id:a-callers-own-key");
        for bad in ["", "a b", &"x".repeat(200), "<script>"] {
            let id = request_id(&with(bad));
            let digits = text(&id).strip_prefix("req_").expect(bad);
            assert!(digits.len() == 24 && u128::from_str_radix(digits, 16).is_ok(), "{id:?}");
        }
    }

    #[test]
    fn header_values_hold_nothing_that_breaks_headers() {
        assert_eq!(visible("a\r\nb\t\u{e9}").unwrap(), r"a\r\nb\t\u{e9}");
        assert_eq!(visible(&"x".repeat(9_000)).unwrap().len(), MAX_RECOVERY);
    }
}
