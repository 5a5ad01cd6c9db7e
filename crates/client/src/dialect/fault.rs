//! The failures that codecs find.

use std::borrow::Cow;

use bytes::Bytes;
use steadfast_chat::ChatRequest;
use steadfast_core::{Dialect, Failure, FaultSide, Reason, Scope, Upstream};

use crate::json::fields_of;

/// The provider reports an error itself: its report is kept for the classifier.
pub(crate) fn reported(dialect: Dialect, data: &str) -> Failure {
    let upstream = Upstream::event(Bytes::copy_from_slice(data.as_bytes())).with_dialect(dialect);
    Failure::from_upstream(upstream).with_evidence("event")
}

/// The provider ended its answer with a word that means it broke. Nothing else in the answer says why.
pub(crate) fn broke(word: &str) -> Failure {
    Failure::new(Reason::ServerError, format!("the answer ended with `{word}`"))
        .with_evidence(format!("finish_reason:{word}"))
}

/// The provider ended its answer with a word for something that the model wrote and nobody can use. The
/// target is fine, and another answer may be too.
pub(crate) fn unusable(word: &str) -> Failure {
    broke(word).with_scope(Scope::Request).with_fault(FaultSide::Model)
}

/// The provider sent what is not valid JSON.
pub(crate) fn malformed(dialect: Dialect, what: &str, error: &serde_json::Error) -> Failure {
    Failure::new(
        Reason::ServerError,
        format!("the provider sent {what} that is not valid {dialect} JSON: {error}"),
    )
    .with_evidence("malformed")
}

/// What the provider sent as text, repaired where it is none: an error is read as one even where its
/// text is damaged. Whatever else was read of it, [`utf8`] refuses.
pub(crate) fn text(data: &[u8]) -> Cow<'_, str> {
    // Checks many times as fast as `from_utf8_lossy` does.
    std::str::from_utf8(data).map_or_else(|_| String::from_utf8_lossy(data), Cow::Borrowed)
}

/// Whether the `data` that the provider sent are the `text` read of them, and that needed no repair:
/// fields that are not read are not checked otherwise, and are passed on with the others.
pub(crate) fn utf8(dialect: Dialect, what: &str, text: &str, data: &[u8]) -> Result<(), Failure> {
    if text.as_bytes() == data {
        return Ok(());
    }
    let message =
        format!("the provider sent {what} that is not valid {dialect} JSON: invalid UTF-8");
    Err(Failure::new(Reason::ServerError, message).with_evidence("malformed"))
}

/// A frame without data that has a line which is no field: a part of the answer is lost in it.
pub(crate) fn stray(dialect: Dialect) -> Failure {
    Failure::new(
        Reason::ServerError,
        format!("the provider sent a frame that is no event of a {dialect} stream"),
    )
    .with_evidence("malformed")
}

/// The stream ended too early.
pub(crate) fn cut_off(dialect: Dialect) -> Failure {
    Failure::new(Reason::Network, format!("the {dialect} stream ended without its terminal event"))
        .with_evidence("stream ended without its terminal event")
}

/// A whole answer that lacks its end.
pub(crate) fn unfinished(dialect: Dialect, lacks: &str) -> Failure {
    Failure::new(Reason::ServerError, format!("the {dialect} answer has no {lacks}"))
        .with_evidence("incomplete")
}

/// The request has something that `dialect` has no word for.
pub(crate) fn unsupported(dialect: Dialect, what: &str) -> Failure {
    Failure::refused(
        Reason::Unsupported,
        format!("{what}: the {dialect} dialect has no word for it"),
    )
    .with_evidence("translation")
}

/// The evidence of a failure since the response that a request goes on from is not there: it is reported as OpenAI
/// does.
pub const NO_RESPONSE: &str = "state:previous_response";

/// The evidence of [`no_thread`].
pub(crate) const THREAD: &str = "translation:thread";

/// Refuses a turn of a conversation that Anthropic keeps (`thread`): without the messages before
/// it would be answered as if it were the first.
pub(crate) fn no_thread(request: &ChatRequest, dialect: Dialect) -> Result<(), Failure> {
    let thread = fields_of(request, Dialect::Anthropic)?.take("thread");
    if thread.is_none_or(|thread| thread.get() == "false") {
        return Ok(());
    }
    Err(Failure::refused(
        Reason::Unsupported,
        format!(
            "thread: the conversation is kept by Anthropic and can not be continued in the \
             {dialect} dialect; send all messages, without a thread"
        ),
    )
    .with_evidence(THREAD))
}

/// Arguments that came after the call they belong to was complete, and written.
pub(crate) fn late_arguments(dialect: Dialect) -> Failure {
    let message = format!(
        "arguments of a tool call came after the end of the call, which the {dialect} dialect can \
         not express"
    );
    Failure::new(Reason::ServerError, message)
        .with_scope(Scope::Request)
        .with_evidence("translation")
}
