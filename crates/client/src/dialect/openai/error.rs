//! Errors, told in this dialect.

use bytes::Bytes;
use steadfast_core::{Failure, Reason};

use super::DIALECT;
use crate::{
    dialect::{ErrorReply, error::own_event, sse_out},
    json::Object,
};

/// The `type` and `code` OpenAI uses, or would.
fn words(reason: Reason) -> (&'static str, &'static str) {
    match reason {
        Reason::Auth => ("authentication_error", "invalid_api_key"),
        Reason::Billing => ("insufficient_quota", "insufficient_quota"),
        Reason::RateLimit | Reason::Budget => ("rate_limit_error", "rate_limit_exceeded"),
        Reason::Overloaded => ("service_unavailable_error", "server_is_overloaded"),
        Reason::ModelNotFound => ("invalid_request_error", "model_not_found"),
        Reason::ContextOverflow => ("invalid_request_error", "context_length_exceeded"),
        Reason::ContentFilter => ("invalid_request_error", "content_filter"),
        Reason::Format
        | Reason::PayloadTooLarge
        | Reason::Unsupported
        | Reason::OutputTruncated
        | Reason::Cancelled => ("invalid_request_error", reason.as_str()),
        _ => ("server_error", reason.as_str()),
    }
}

fn error(object: &mut Object<'_>, reply: &ErrorReply<'_>) {
    let (kind, code) = words(reply.reason);
    object
        .object("error")
        .put("message", &reply.message)
        .put("type", kind)
        .put("param", &None::<&str>)
        .put("code", code);
}

pub(super) fn body(reply: &ErrorReply<'_>) -> Vec<u8> {
    Object::text(|object| error(object, reply)).into_bytes()
}

/// An event with an error, and no `[DONE]`: the answer did not end.
pub(super) fn event(failure: &Failure) -> Bytes {
    if let Some(own) = own_event(failure, DIALECT) {
        return [b"data: ", &own[..], b"\n\n"].concat().into();
    }
    let mut out = Vec::new();
    sse_out::frame(&mut out, None, |object| error(object, &ErrorReply::new(failure, None)));
    out.into()
}
