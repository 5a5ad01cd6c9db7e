//! Bedrock's streams: AWS's messages around the vendor's events.

use aws_smithy_eventstream::frame::{read_message_from, write_message_to};
use aws_smithy_types::event_stream::{Header, HeaderValue, Message};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{Bytes, BytesMut};
use serde_json::{Value, json};

use crate::hash;
use crate::wire::{Framing, GARBAGE, malformed};

/// What the padding of a chunk is cut from.
const PADDING: &str = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";

/// A part of every message's beginning, before its checksum.
const BEGINNING: usize = 10;

/// AWS's event stream.
#[derive(Debug)]
pub(super) struct EventStream;

impl Framing for EventStream {
    fn wrap(&self, frame: Bytes) -> Bytes {
        let mut out = BytesMut::new();
        for event in events(&frame) {
            out.extend_from_slice(&chunk(event));
        }
        out.freeze()
    }

    /// A message with broken JSON in it; the rest of one that was cut has a wrong checksum.
    fn malformed(&self, next: Option<&Bytes>) -> Bytes {
        let Some(next) = next else { return chunk("{\"broken\"=") };
        if let Some(event) = event_in(next) {
            return chunk(&String::from_utf8_lossy(&malformed(&event, true)));
        }
        let mut damaged = BytesMut::from(&next[..]);
        if let Some(last) = damaged.last_mut() {
            *last = !*last;
        }
        damaged.freeze()
    }

    fn beginning(&self) -> Bytes {
        let whole = chunk("{}");
        whole.slice(..BEGINNING.min(whole.len()))
    }

    /// A message that is right but for what is in it.
    fn garbage(&self) -> Bytes {
        message(&chunk_headers(), Bytes::from_static(GARBAGE))
    }
}

/// The JSON of the server-sent events in a frame, but for those that mean nothing.
pub(super) fn events(frame: &[u8]) -> impl Iterator<Item = &str> {
    let lines = std::str::from_utf8(frame).unwrap_or_default().lines();
    lines.filter_map(|line| line.strip_prefix("data: "))
}

/// A message with an event of the vendor's.
pub(super) fn chunk(event: &str) -> Bytes {
    let length = 2 + hash::digest(&[event.as_bytes()])[0] as usize % (PADDING.len() - 2);
    let payload = json!({"bytes": STANDARD.encode(event), "p": PADDING[..length]});
    message(&chunk_headers(), payload.to_string().into())
}

/// The message that ends a stream with an error.
pub(super) fn exception(name: &str, body: &Value) -> Bytes {
    let headers = [
        (":exception-type", name),
        (":content-type", "application/json"),
        (":message-type", "exception"),
    ];
    message(&headers, body.to_string().into())
}

fn chunk_headers() -> [(&'static str, &'static str); 3] {
    [(":event-type", "chunk"), (":content-type", "application/json"), (":message-type", "event")]
}

fn message(headers: &[(&'static str, &str)], payload: Bytes) -> Bytes {
    let mut message = Message::new(payload);
    for (name, value) in headers {
        let value = HeaderValue::String((*value).to_owned().into());
        message = message.add_header(Header::new(*name, value));
    }
    let mut out = BytesMut::new();
    // Only a message of more than four gigabytes can not be written.
    let written = write_message_to(&message, &mut out);
    written.map(|()| out.freeze()).unwrap_or_default()
}

/// The vendor's event in a whole message.
fn event_in(frame: &Bytes) -> Option<Bytes> {
    let message = read_message_from(&frame[..]).ok()?;
    let payload: Value = serde_json::from_slice(message.payload()).ok()?;
    STANDARD.decode(payload["bytes"].as_str()?).ok().map(Bytes::from)
}
