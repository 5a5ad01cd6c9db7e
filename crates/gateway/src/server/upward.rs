//! What goes to a provider beside a body: a caller's headers and query.

use std::sync::Arc;

use http::{HeaderName, HeaderValue, request::Parts};
use steadfast_chat::SharedHeaders;
use steadfast_client::{dialect::codec, headers};
use steadfast_core::Dialect;

/// Adds what goes up with a request beside its body: headers of its `dialect` and those that the operator names, and
/// the query.
pub(super) fn add(
    up: &mut SharedHeaders,
    query: &mut Option<Arc<str>>,
    dialect: Dialect,
    parts: &Parts,
    named: &[HeaderName],
) {
    let usual = codec(dialect).facts().headers;
    for (name, value) in &parts.headers {
        let goes = headers::goes_up(dialect, name) || named.contains(name);
        // What the client sends anyway costs nothing.
        if !goes || usual.iter().any(|(own, usual)| own == name && usual == value) {
            continue;
        }
        // Copied: a value shares the connection's buffer. What was one still is.
        if let Ok(value) = HeaderValue::from_bytes(value.as_bytes()) {
            up.append(name.clone(), value);
        }
    }
    *query = parts.uri.query().and_then(headers::query_up).map(Into::into);
}
