//! The content of an answer, and writing it in every dialect.

use bytes::Bytes;
use steadfast_chat::{ChatRequest, Completion, Delta, Event, Head, Part};
use steadfast_client::dialect::{Caller, StreamDecoder, StreamEncoder, codec};
use steadfast_core::{Dialect, Failure};

/// The same caller each time.
pub(crate) fn caller() -> Caller {
    let mut request = ChatRequest::user("hi").with_model("asked-model");
    request.params.stream_usage = Some(true);
    let mut caller = Caller::of(&request);
    caller.created = 1_700_000_000;
    caller.id = "0123456789abcdef".into();
    caller
}

pub(crate) fn completion(dialect: Dialect, events: &[Event]) -> Completion {
    let mut answer = Completion::new(Head::new(dialect));
    events.iter().for_each(|event| answer.push(event));
    answer
}

/// All events of a stream, and the failure if it did not end properly.
pub(crate) fn read_stream(
    dialect: Dialect,
    chunks: impl IntoIterator<Item = Bytes>,
) -> (Vec<Event>, Option<Failure>) {
    let mut stream = StreamDecoder::new(dialect);
    let mut events = Vec::new();
    for chunk in chunks {
        stream.push(chunk);
        while let Some(read) = stream.next_event() {
            match read {
                Ok(event) => events.push(event),
                Err(failure) => return (events, Some(failure)),
            }
        }
    }
    while let Some(read) = stream.finish() {
        match read {
            Ok(event) => events.push(event),
            Err(failure) => return (events, Some(failure)),
        }
    }
    (events, None)
}

/// The events written as a stream for a caller of the dialect `to`.
pub(crate) fn write_stream(
    from: Dialect,
    to: Dialect,
    events: &[Event],
) -> Result<Vec<u8>, Failure> {
    let mut encoder = StreamEncoder::new(to, &caller(), from);
    let mut out = Vec::new();
    for event in events {
        out.extend_from_slice(&encoder.encode(event)?);
    }
    Ok(out)
}

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
        // A number that no float holds is passed on as it is; only the line breaks beside it may change.
        serde_json::from_str(json).unwrap_or_else(|_| json.replace(['\n', '\r'], " ").into())
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
