//! Errors, told in this dialect.

use bytes::Bytes;
use http::StatusCode;
use steadfast_core::{Failure, Reason};

use super::DIALECT;
use crate::{
    dialect::{ErrorReply, error::own_event, sse_out},
    json::Object,
};

/// The `type` Anthropic uses.
fn kind(reason: Reason) -> &'static str {
    match reason {
        Reason::Auth => "authentication_error",
        Reason::Billing => "billing_error",
        Reason::RateLimit | Reason::Budget => "rate_limit_error",
        Reason::Overloaded => "overloaded_error",
        Reason::Timeout => "timeout_error",
        Reason::ModelNotFound => "not_found_error",
        Reason::PayloadTooLarge => "request_too_large",
        Reason::ContextOverflow
        | Reason::OutputTruncated
        | Reason::ContentFilter
        | Reason::Format
        | Reason::Unsupported
        | Reason::Cancelled => "invalid_request_error",
        _ => "api_error",
    }
}

fn error(object: &mut Object<'_>, reply: &ErrorReply<'_>) {
    object.put("type", "error");
    let kind = match reply.status {
        StatusCode::NOT_FOUND => "not_found_error",
        _ => kind(reply.reason),
    };
    let mut told = object.object("error");
    told.put("type", kind).put("message", &reply.message);
    if reply.no_thread {
        // The word on which the vendor's SDKs send all messages again, without a thread.
        told.object("details")
            .put("error_code", "thread_unsupported_request")
            .put("unsupported", &["provider"]);
    }
    drop(told);
    object.put_some("request_id", reply.request_id);
}

pub(super) fn body(reply: &ErrorReply<'_>) -> Vec<u8> {
    Object::text(|object| error(object, reply)).into_bytes()
}

pub(super) fn event(failure: &Failure) -> Bytes {
    if let Some(own) = own_event(failure, DIALECT) {
        return [b"event: error\ndata: ", &own[..], b"\n\n"].concat().into();
    }
    let mut out = Vec::new();
    let reply = ErrorReply::new(failure, None);
    sse_out::frame(&mut out, Some("error"), |object| error(object, &reply));
    out.into()
}
