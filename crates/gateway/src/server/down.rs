//! What comes down from a provider beside an answer: its headers about the call.

use std::collections::HashSet;

use http::{HeaderMap, HeaderName, HeaderValue};
use steadfast_client::{dialect::codec, headers};
use steadfast_core::{Dialect, Failure, Target};

use super::reply::{Outgoing, REQUEST_ID};
use crate::escape;

/// The gateway's own id of the request, where the provider's stands in the headers that SDKs show.
const OWN_ID: HeaderName = HeaderName::from_static("x-steadfast-request-id");

/// Adds what `received`, a provider's headers, have about the call, in the dialect `from`, to those of an answer in
/// `dialect`: limits, ids, timings, never a credential. Its id is the one that the caller's SDK shows, as without a
/// gateway, unless it is no id of that dialect, or the caller has chosen one.
pub(super) fn add(
    headers: &mut HeaderMap,
    dialect: Dialect,
    received: &HeaderMap,
    from: Dialect,
    outgoing: &Outgoing,
) {
    let shown = &codec(dialect).facts().request_id;
    for (name, value) in received {
        if headers::goes_down(name) && *name != REQUEST_ID && name != shown {
            headers.append(name.clone(), shown_value(value, outgoing));
        }
    }
    if let Some(id) = received.get(shown).filter(|_| dialect == from && !outgoing.is_callers) {
        let id = shown_value(id, outgoing);
        headers.insert(OWN_ID, outgoing.id.clone());
        if *shown != REQUEST_ID {
            headers.insert(shown, id.clone());
        }
        headers.insert(REQUEST_ID, id);
    }
}

/// The same of a failure that came from one provider; its id is shown where the body is the provider's `own`.
pub(super) fn add_of_failure(
    headers: &mut HeaderMap,
    dialect: Dialect,
    failure: &Failure,
    own: bool,
    outgoing: &Outgoing,
) {
    let Some(upstream) = failure.upstream() else { return };
    let tried = failure.trail().iter().filter(|attempt| !attempt.skipped);
    let tried: HashSet<_> =
        tried.filter_map(|attempt| attempt.target.as_ref()).map(Target::provider).collect();
    let Some(from) = upstream.dialect.filter(|_| tried.len() <= 1) else { return };
    if own {
        add(headers, dialect, &upstream.headers, from, outgoing);
    } else {
        let shown = &codec(dialect).facts().request_id;
        let mut received = upstream.headers.clone();
        received.remove(shown);
        add(headers, dialect, &received, from, outgoing);
    }
}

/// `value` as the caller may see it: without secrets, and what can not be seen in it escaped. Copied: it may share the
/// buffer of the provider's connection.
fn shown_value(value: &HeaderValue, outgoing: &Outgoing) -> HeaderValue {
    let masked = outgoing.mask.value(value);
    let value = masked.as_ref().unwrap_or(value);
    let text = String::from_utf8_lossy(value.as_bytes());
    let text = escape::ascii(&text);
    HeaderValue::from_str(&text).unwrap_or_else(|_| HeaderValue::from_static("-"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http::Uri;

    use super::*;
    use crate::secrets::Secrets;

    #[test]
    fn what_a_provider_hides_in_a_header_is_escaped_and_its_secrets_are_masked() {
        let secrets = Arc::new(Secrets::of(["a-provider-secret"]));
        let outgoing = Outgoing::of(&secrets, &HeaderMap::new(), &Uri::default());
        let mut received = HeaderMap::new();
        let hidden = HeaderValue::from_bytes("a\u{202e}b".as_bytes()).unwrap();
        received.insert("x-request-id", hidden);
        received.insert("openai-version", HeaderValue::from_static("for a-provider-secret"));
        received.insert("set-cookie", HeaderValue::from_static("a=b"));
        let mut headers = HeaderMap::new();
        add(&mut headers, Dialect::OpenAi, &received, Dialect::OpenAi, &outgoing);
        assert_eq!(headers["x-request-id"], r"a\u{202e}b");
        assert_eq!(headers["openai-version"], "for [redacted]");
        assert_eq!(headers[OWN_ID], outgoing.id);
        assert!(!headers.contains_key("set-cookie"));
    }
}
