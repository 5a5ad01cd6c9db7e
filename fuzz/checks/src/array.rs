//! A Gemini stream as a JSON array: `dialect plan bytes`.
//!
//! The encoder is included from the gateway, without the server.

#[allow(dead_code, unreachable_pub)]
#[path = "../../../crates/gateway/src/server/array.rs"]
mod gateway;

use gateway::ArrayEncoder;
use serde_json::{Value, value::RawValue};
use steadfast_client::dialect::{StreamEncoder, codec};
use steadfast_core::Dialect;

use crate::{
    content::{caller, content_of, read_stream},
    input::{Input, cut},
};

/// * Whatever the provider sent, the caller gets a JSON array.
/// * Each frame with data is an item of it; an error is the last one.
/// * A whole one is read back with the same content.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let from = input.dialect();
    let plan = input.byte();
    let (events, failure) = read_stream(from, cut(&input.rest(), plan));
    let mut encoder = StreamEncoder::new(Dialect::Gemini, &caller(), from);
    let mut array = ArrayEncoder::default();
    let mut out = Vec::new();
    let mut failure = failure;
    for event in &events {
        match encoder.encode(event) {
            Ok(frames) => out.extend_from_slice(&array.frames(&frames)),
            Err(error) => {
                failure = Some(error);
                break;
            }
        }
    }
    match &failure {
        None => out.extend_from_slice(&array.end()),
        Some(failure) => {
            let frame = codec(Dialect::Gemini).encode_stream_error(failure);
            out.extend_from_slice(&array.error(&frame));
        }
    }
    let shown = || String::from_utf8_lossy(&out).into_owned();
    let items: Vec<&RawValue> =
        serde_json::from_slice(&out).unwrap_or_else(|error| panic!("{error}: {}", shown()));
    if failure.is_some() {
        assert!(items.last().is_some_and(|last| is_error(last)), "{}", shown());
        return;
    }
    if from == Dialect::Gemini {
        let frames = events.iter().filter_map(|event| event.frame.as_ref()).filter(|frame| {
            let (events, _) = read_stream(Dialect::Gemini, [frame.bytes.clone()]);
            events.iter().any(|event| !matches!(event.deltas[..], [steadfast_chat::Delta::Ping]))
        });
        assert!(items.len() >= frames.count(), "{}", shown());
    }
    let again = codec(Dialect::Gemini)
        .decode_answer(&out.clone().into())
        .unwrap_or_else(|error| panic!("{error}: {}", shown()));
    assert_eq!(content_of(Dialect::Gemini, &[again]), content_of(from, &events), "{}", shown());
}

fn is_error(item: &RawValue) -> bool {
    serde_json::from_str::<Value>(item.get()).is_ok_and(|item| item.get("error").is_some())
}
