//! A failure, reported to a caller.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use serde_json::Value;
use steadfast_chat::surrogates;
use steadfast_core::{Dialect, Failure, FaultSide, Reason, Retry};

use super::{DialectFacts, fault, sse_out::one_line, words};

/// What a caller learns of a failure.
#[derive(Debug)]
#[non_exhaustive]
pub struct ErrorReply<'a> {
    /// The status it is answered with.
    pub status: StatusCode,
    /// Why.
    pub reason: Reason,
    /// What happened, and what was tried.
    pub message: String,
    /// The id of the request.
    pub request_id: Option<&'a str>,
    /// Whether it is an event of a stream: then clients see no status.
    pub in_stream: bool,
    /// Whether it was refused as a turn of a conversation that its provider keeps.
    pub no_thread: bool,
    /// Whether it goes on from a response that is not there.
    pub no_response: bool,
}

impl<'a> ErrorReply<'a> {
    /// The report of `failure` to a caller who speaks `dialect`.
    pub fn new(failure: &Failure, dialect: Dialect, request_id: Option<&'a str>) -> Self {
        let reason = failure.outward_reason();
        let own = message(failure);
        let message = match reason {
            Reason::ContextOverflow => words::overflow(dialect, failure, &own),
            _ => words::recognised(failure, own),
        };
        Self {
            status: failure.http_status(),
            reason,
            message,
            request_id,
            in_stream: false,
            no_thread: failure.evidence() == fault::THREAD,
            no_response: failure.evidence() == fault::NO_RESPONSE,
        }
    }
}

pub(super) fn encode(
    failure: &Failure,
    facts: &DialectFacts,
    request_id: Option<&str>,
    body: &dyn Fn(&ErrorReply<'_>) -> Vec<u8>,
) -> (StatusCode, HeaderMap, Bytes) {
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(wait) = failure.retry_after() {
        // Rounded up: coming back early only earns another refusal.
        let seconds = wait.as_secs().saturating_add(u64::from(wait.subsec_nanos() > 0));
        headers.insert(header::RETRY_AFTER, seconds.into());
        if let Ok(millis) = u64::try_from(wait.as_nanos().div_ceil(1_000_000)) {
            headers.insert("retry-after-ms", millis.into());
        }
    }
    // The vendors' SDKs obey this over the status: what retrying can not repair is not retried
    // a second time by them.
    if failure.retry() != Retry::Yes {
        headers.insert("x-should-retry", HeaderValue::from_static("false"));
    }
    if let Some(id) = request_id.and_then(|id| HeaderValue::from_str(id).ok()) {
        headers.insert(&facts.request_id, id);
    }
    if let Some((status, body)) = provider_error(failure, facts.dialect) {
        return (status, headers, body);
    }
    let reply = ErrorReply::new(failure, facts.dialect, request_id);
    let body = body(&reply);
    (reply.status, headers, body.into())
}

/// The provider's own answer, when it spoke the caller's dialect and the caller is at fault.
fn provider_error(failure: &Failure, dialect: Dialect) -> Option<(StatusCode, Bytes)> {
    let upstream = failure.upstream()?;
    let status = upstream.status?;
    let whole = upstream.dialect == Some(dialect)
        && failure.fault() == FaultSide::Caller
        && (status.is_client_error() || status.is_server_error())
        && is_error_object(&upstream.body);
    whole.then(|| (status, upstream.body.clone()))
}

/// The frame that reports `failure`: with the data of the provider's own error, event or answer, when that is to
/// be passed on.
pub(super) fn event(
    failure: &Failure,
    facts: &DialectFacts,
    body: &dyn Fn(&ErrorReply<'_>) -> Vec<u8>,
) -> Bytes {
    let own = failure.upstream().filter(|upstream| {
        upstream.dialect == Some(facts.dialect)
            && upstream.status.is_some()
            && failure.fault() == FaultSide::Caller
            && is_error_object(&upstream.body)
    });
    let mut data = match own {
        Some(upstream) => upstream.body.to_vec(),
        None => {
            let reply = ErrorReply::new(failure, facts.dialect, None);
            body(&ErrorReply { in_stream: true, ..reply })
        }
    };
    // Line ends between its tokens, as vendors write a body, would end the data.
    one_line(&mut data);
    let name = facts.error_event.map(|name| format!("event: {name}\n")).unwrap_or_default();
    [name.as_bytes(), b"data: ", &data, b"\n\n"].concat().into()
}

fn is_error_object(body: &[u8]) -> bool {
    json(body).is_some_and(|body| body["error"].is_object())
}

/// One sentence on what happened, and the targets that were tried.
fn message(failure: &Failure) -> String {
    let message = failure.message();
    // Raw JSON or a page of HTML means nothing to a caller.
    let mut text = if message.is_empty() || message.starts_with(['{', '[', '<']) {
        inner_message(failure).unwrap_or_else(|| failure.user_message().to_owned())
    } else {
        message.to_owned()
    };
    let caller = failure.fault() == FaultSide::Caller;
    // "Incorrect API key", alone, sends a caller to a key that is right.
    if matches!(failure.reason(), Reason::Auth | Reason::Billing) && !caller {
        text = format!("{} It answered: {text}", failure.user_message());
    }
    if failure.trail().is_empty() {
        if let (0, Some(target)) = (failure.attempts(), failure.target()) {
            full_stop(&mut text);
            text.push_str(&format!(" Not asked: {target}."));
        } else if let (attempts, Some(target), false) =
            (failure.attempts(), failure.target(), caller)
        {
            full_stop(&mut text);
            let times = if attempts == 1 { "once".to_owned() } else { format!("{attempts} times") };
            text.push_str(&format!(" Tried: {target}, {times}."));
        }
    } else {
        full_stop(&mut text);
        text.push_str(" Tried: ");
        for (i, attempt) in failure.trail().iter().enumerate() {
            if i > 0 {
                text.push_str("; ");
            }
            text.push_str(&attempt.to_string());
        }
        text.push('.');
    }
    text
}

pub(super) fn full_stop(text: &mut String) {
    if !text.ends_with(['.', '!', '?']) {
        text.push('.');
    }
}

fn json(body: &[u8]) -> Option<Value> {
    surrogates::read(std::str::from_utf8(body).ok()?).ok()
}

/// The message in a JSON body, at the paths where the dialects have one.
fn inner_message(failure: &Failure) -> Option<String> {
    let body = json(&failure.upstream()?.body)?;
    let error = &body["error"];
    let text = [&error["message"], error, &body["message"], &body["detail"]]
        .into_iter()
        .find_map(Value::as_str)?;
    Some(steadfast_core::redact(text).into_string())
}
