//! Errors, as this dialect writes them.

use http::StatusCode;
use steadfast_core::Reason;

use crate::{dialect::ErrorReply, json::Object};

/// The canonical status Google uses.
fn status(reason: Reason) -> &'static str {
    match reason {
        Reason::Auth => "UNAUTHENTICATED",
        Reason::Billing | Reason::SpendCap => "PERMISSION_DENIED",
        Reason::RateLimit | Reason::Budget => "RESOURCE_EXHAUSTED",
        Reason::Safety => "FAILED_PRECONDITION",
        Reason::Overloaded
        | Reason::CircuitOpen
        | Reason::Cooling
        | Reason::Exhausted
        | Reason::Network => "UNAVAILABLE",
        Reason::Timeout => "DEADLINE_EXCEEDED",
        Reason::ModelNotFound => "NOT_FOUND",
        Reason::Cancelled => "CANCELLED",
        Reason::ContextOverflow
        | Reason::OutputTruncated
        | Reason::ContentFilter
        | Reason::Format
        | Reason::PayloadTooLarge
        | Reason::Unsupported => "INVALID_ARGUMENT",
        _ => "INTERNAL",
    }
}

pub(super) fn body(reply: &ErrorReply<'_>) -> Vec<u8> {
    let status = match reply.status {
        StatusCode::NOT_FOUND => "NOT_FOUND",
        _ => status(reply.reason),
    };
    let mut out = Vec::new();
    Object::new(&mut out)
        .object("error")
        .put("code", &reply.status.as_u16())
        .put("message", &reply.message)
        .put("status", status);
    out
}
