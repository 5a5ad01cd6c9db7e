//! Answers read and written by the codecs; the fuzz targets include this file too.

use bytes::Bytes;
use steadfast_chat::{ChatRequest, Completion, Event, Head};
use steadfast_client::dialect::{Caller, StreamDecoder, StreamEncoder};
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
    // Ids that no provider gave are the same for the same bytes.
    fastrand::seed(1);
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

/// The events of a stream of `from`, written for a caller of the dialect `to`.
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
