//! Errors, as this dialect writes them.

use steadfast_core::{Failure, Reason};

use crate::{
    dialect::{ErrorReply, openai},
    json::Object,
};

/// The body of an error, or the event: there is no object around it in a stream.
pub(super) fn body(reply: &ErrorReply<'_>) -> Vec<u8> {
    if !reply.in_stream {
        return openai::error_body(reply);
    }
    let mut out = Vec::new();
    Object::new(&mut out)
        .put("type", "error")
        .put("code", code(reply.reason))
        .put("message", &reply.message)
        .put("param", &None::<&str>)
        .put("sequence_number", &0);
    out
}

/// The code on which clients act. Codex goes by it alone: it asks again after one that it does not know, and has this
/// one for what no repetition repairs.
pub(super) fn code(reason: Reason) -> &'static str {
    match reason {
        Reason::Format
        | Reason::Unsupported
        | Reason::ContentFilter
        | Reason::PayloadTooLarge
        | Reason::ModelNotFound
        | Reason::Safety
        | Reason::Cancelled => "invalid_prompt",
        _ => openai::kind_and_code(reason).1,
    }
}

/// The message of a failed stream, which has no headers to say how long to wait: Codex reads it here.
pub(super) fn message(failure: &Failure, message: &str) -> String {
    match failure.retry_after() {
        Some(wait)
            if failure.reason() == Reason::RateLimit && !message.contains("try again in") =>
        {
            format!("{message} Please try again in {:.3}s.", wait.as_secs_f64())
        }
        _ => message.to_owned(),
    }
}
