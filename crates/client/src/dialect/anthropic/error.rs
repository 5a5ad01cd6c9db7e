//! Errors, as this dialect writes them.

use http::StatusCode;
use steadfast_core::Reason;

use crate::{dialect::ErrorReply, json::Object};

/// The `type` Anthropic uses.
fn kind(reason: Reason, in_stream: bool) -> &'static str {
    match reason {
        Reason::Auth => "authentication_error",
        Reason::Billing | Reason::SpendCap => "billing_error",
        Reason::RateLimit | Reason::Budget => "rate_limit_error",
        Reason::Overloaded => "overloaded_error",
        // Of an error in a stream, which has no status, Claude Code 2.1 asks again only after this one.
        Reason::Network | Reason::CircuitOpen | Reason::Cooling | Reason::Exhausted
            if in_stream =>
        {
            "overloaded_error"
        }
        Reason::Timeout => "timeout_error",
        Reason::ModelNotFound => "not_found_error",
        Reason::PayloadTooLarge => "request_too_large",
        Reason::ContextOverflow
        | Reason::OutputTruncated
        | Reason::ContentFilter
        | Reason::Format
        | Reason::Unsupported
        | Reason::Safety
        | Reason::Cancelled => "invalid_request_error",
        _ => "api_error",
    }
}

pub(super) fn body(reply: &ErrorReply<'_>) -> Vec<u8> {
    let kind = match reply.status {
        StatusCode::NOT_FOUND => "not_found_error",
        _ => kind(reply.reason, reply.in_stream),
    };
    let mut out = Vec::new();
    let mut object = Object::new(&mut out);
    object.put("type", "error");
    {
        let mut error = object.object("error");
        error.put("type", kind).put("message", &reply.message);
        if reply.no_thread {
            // The code on which the vendor's SDKs send all messages again, without a thread.
            error
                .object("details")
                .put("error_code", "thread_unsupported_request")
                .put("unsupported", &["provider"]);
        }
    }
    object.put_some("request_id", reply.request_id);
    drop(object);
    out
}
