//! Errors, as this dialect writes them.

use steadfast_core::Reason;

use crate::{dialect::ErrorReply, json::Object};

/// The `type` and `code` OpenAI uses, or would.
pub(in crate::dialect) fn kind_and_code(reason: Reason) -> (&'static str, &'static str) {
    match reason {
        Reason::Auth => ("authentication_error", "invalid_api_key"),
        Reason::Billing => ("insufficient_quota", "insufficient_quota"),
        Reason::RateLimit | Reason::Budget => ("rate_limit_error", "rate_limit_exceeded"),
        // What clients of this dialect know not to retry.
        Reason::SpendCap => ("insufficient_quota", "insufficient_quota"),
        Reason::Overloaded => ("service_unavailable_error", "server_is_overloaded"),
        Reason::ModelNotFound => ("invalid_request_error", "model_not_found"),
        Reason::ContextOverflow => ("invalid_request_error", "context_length_exceeded"),
        Reason::ContentFilter => ("invalid_request_error", "content_filter"),
        Reason::Format
        | Reason::PayloadTooLarge
        | Reason::Unsupported
        | Reason::Safety
        | Reason::OutputTruncated
        | Reason::Cancelled => ("invalid_request_error", reason.as_str()),
        _ => ("server_error", reason.as_str()),
    }
}

pub(in crate::dialect) fn body(reply: &ErrorReply<'_>) -> Vec<u8> {
    let (kind, code) = kind_and_code(reply.reason);
    let (code, param) = match reply.no_response {
        true => ("previous_response_not_found", Some("previous_response_id")),
        false => (code, None),
    };
    let mut out = Vec::new();
    Object::new(&mut out)
        .object("error")
        .put("message", &reply.message)
        .put("type", kind)
        .put("param", &param)
        .put("code", code);
    out
}
