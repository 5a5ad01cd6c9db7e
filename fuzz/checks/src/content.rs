//! The content of an answer, and writing it in every dialect.
//!
//! The functions that read and write answers are included from the client's tests.

#[path = "../../../crates/client/tests/it/codecs.rs"]
mod codecs;

use steadfast_chat::{Completion, Delta, Event, Part};
use steadfast_client::dialect::codec;
use steadfast_core::{Dialect, Failure};

pub(crate) use self::codecs::{caller, completion, read_stream, write_stream};

/// The content that every dialect can express.
#[derive(Debug, PartialEq)]
pub(crate) struct Content {
    text: String,
    /// Name and arguments as JSON; arguments of no bytes are an empty object.
    calls: Vec<(String, serde_json::Value)>,
}

/// Text stands in the order of its arrival, as a caller reads it who sees no block numbers: when two
/// blocks are open at once, that is not the order of the blocks.
pub(crate) fn content_of(dialect: Dialect, events: &[Event]) -> Content {
    let arguments = |json: &str| {
        let json = if json.trim().is_empty() { "{}" } else { json };
        let json = steadfast_chat::surrogates::repaired(json);
        let read = serde_json::from_str::<&serde_json::value::RawValue>(&json);
        if !read.is_ok_and(|raw| raw.get().starts_with('{')) {
            // What is no object is wrapped in one where the dialect needs it.
            return serde_json::json!({ "_raw": json });
        }
        // A number that no float holds is passed on as it is; only the line breaks beside it may change.
        serde_json::from_str(&json).unwrap_or_else(|_| json.replace(['\n', '\r'], " ").into())
    };
    let text = events.iter().flat_map(|event| &event.deltas).filter_map(|delta| match delta {
        Delta::Text { text, .. } => Some(text.as_str()),
        _ => None,
    });
    Content {
        text: text.collect(),
        calls: completion(dialect, events)
            .tool_calls()
            .map(|call| (call.name.clone(), arguments(&call.arguments)))
            .collect(),
    }
}

/// Whether it has blocks that only its own dialect can express.
pub(crate) fn has_opaque(answer: &Completion) -> bool {
    answer.parts.iter().any(|part| matches!(part, Part::Opaque(_)))
}

/// Asserts that a failure has a message of bounded length, and can be written in every dialect.
pub(crate) fn check_failure(failure: &Failure) {
    assert!(!failure.message().is_empty() && failure.message().len() <= 1_200, "{failure:?}");
    assert!(!failure.evidence().is_empty());
    let again = steadfast_core::redact(failure.message());
    assert_eq!(&*again, failure.message(), "redacted once is redacted");
    for to in Dialect::ALL {
        let (status, _, body) = codec(to).encode_error(failure, Some("req_1"));
        assert!(status.is_client_error() || status.is_server_error(), "{status}");
        let value: serde_json::Value = serde_json::from_slice(&body).expect("an error is JSON");
        assert!(value["error"].is_object(), "{value}");
        let frame = codec(to).encode_stream_error(failure);
        let (events, again) = read_stream(to, [frame.clone()]);
        assert!(
            events.is_empty() && again.is_some_and(|again| again.upstream().is_some()),
            "{frame:?}"
        );
    }
}
