//! Errors, told in this dialect.

use bytes::Bytes;
use http::StatusCode;
use steadfast_core::{Failure, Reason};

use super::DIALECT;
use crate::{
    dialect::{ErrorReply, error::own_event, sse_out},
    json::Object,
};

/// The canonical status Google uses.
fn status(reason: Reason) -> &'static str {
    match reason {
        Reason::Auth => "UNAUTHENTICATED",
        Reason::Billing => "PERMISSION_DENIED",
        Reason::RateLimit | Reason::Budget => "RESOURCE_EXHAUSTED",
        Reason::Overloaded
        | Reason::CircuitOpen
        | Reason::Cooling
        | Reason::Exhausted
        | Reason::Network
        | Reason::Safety => "UNAVAILABLE",
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

fn error(object: &mut Object<'_>, reply: &ErrorReply<'_>) {
    object.object("error").put("code", &reply.status.as_u16()).put("message", &reply.message).put(
        "status",
        if reply.status == StatusCode::NOT_FOUND { "NOT_FOUND" } else { status(reply.reason) },
    );
}

pub(super) fn body(reply: &ErrorReply<'_>) -> Vec<u8> {
    Object::text(|object| error(object, reply)).into_bytes()
}

pub(super) fn event(failure: &Failure) -> Bytes {
    if let Some(own) = own_event(failure, DIALECT) {
        return [b"data: ", &own[..], b"\n\n"].concat().into();
    }
    let mut out = Vec::new();
    sse_out::frame(&mut out, None, |object| error(object, &ErrorReply::new(failure, None)));
    out.into()
}
