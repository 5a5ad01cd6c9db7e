//! Which headers are passed on, to a provider and from one.

use http::{HeaderMap, HeaderName, header};

/// Beginnings of headers that say something about the call: limits, ids, timings. What is not
/// known to is left out, such as cookies, and what belongs to the connection.
const KEPT: [&str; 12] = [
    "x-ratelimit",
    "ratelimit",
    "anthropic-ratelimit-",
    "anthropic-priority-",
    "anthropic-organization-id",
    "retry-after",
    "x-should-retry",
    "x-codex-",
    "openai-processing-ms",
    "openai-version",
    "x-groq-",
    "x-envoy-upstream-service-time",
];

/// Headers that carry the id of a request, the vendors' own before those of what lies between.
const IDS: [&str; 9] = [
    "request-id",
    "x-request-id",
    "x-generation-id",
    "x-amzn-requestid",
    "apim-request-id",
    "x-ms-request-id",
    "x-goog-request-id",
    "x-kong-request-id",
    "cf-ray",
];

/// Headers of a request that are never a caller's to choose: credentials, and what belongs to one
/// connection or one body.
const OWN: [&str; 18] = [
    "authorization",
    "proxy-authorization",
    "x-api-key",
    "x-goog-api-key",
    "api-key",
    "cookie",
    "host",
    "connection",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "accept",
    "accept-encoding",
    "content-encoding",
    "content-length",
    "content-type",
];

/// Whether a caller's header may go to a provider.
pub(crate) fn may_pass(name: &HeaderName) -> bool {
    !OWN.contains(&name.as_str()) && !name.as_str().starts_with("x-steadfast-")
}

/// The headers worth passing on.
pub(crate) fn kept(headers: &HeaderMap) -> HeaderMap {
    let worth = |name: &str| KEPT.iter().any(|kept| name.starts_with(kept)) || IDS.contains(&name);
    // Usually there are one or two, if any.
    let mut out = HeaderMap::new();
    for (name, value) in headers.iter().filter(|(name, _)| worth(name.as_str())) {
        out.append(name, value.clone());
    }
    out
}

/// The id of the request.
pub(crate) fn request_id(headers: &HeaderMap) -> Option<String> {
    let value = IDS.iter().find_map(|name| headers.get(*name))?;
    let id = value.to_str().ok()?;
    // Bounded: it goes into logs and errors.
    Some(id.get(..128).unwrap_or(id).to_owned())
}

/// Whether the content type is that of an event stream.
pub(crate) fn is_event_stream(headers: &HeaderMap) -> bool {
    const WANTED: &str = "text/event-stream";
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    value
        .and_then(|value| value.trim_start().get(..WANTED.len()))
        .is_some_and(|word| word.eq_ignore_ascii_case(WANTED))
}

/// How a body is encoded, when it is, bounded for messages.
pub(crate) fn encoding(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(header::CONTENT_ENCODING)?.to_str().ok()?.trim();
    let identity = value.is_empty() || value.eq_ignore_ascii_case("identity");
    (!identity).then(|| value.chars().take(32).collect())
}
