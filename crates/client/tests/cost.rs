//! Allocations of encoding a request, and of passing on a stream.

#![allow(clippy::unwrap_used)]

use allocation_counter::measure;
use bytes::Bytes;
use steadfast_client::dialect::{Caller, Route, StreamDecoder, StreamEncoder, Wire, codec};
use steadfast_core::Dialect;

/// A stream whose caller did not request usage, which the client needs: one field is new, and the
/// conversation beside it is copied once, into the new body.
#[test]
fn a_conversation_beside_a_changed_field_is_copied_once() {
    let words = "a word ".repeat(100_000);
    let body = Bytes::from(format!(
        r#"{{"model":"gpt-4o","stream":true,"messages":[{{"role":"user","content":"{words}"}}]}}"#
    ));
    let openai = codec(Dialect::OpenAi);
    let request = openai.decode_request(&body, Route::default()).unwrap();
    let mut written = None;
    let counted =
        measure(|| written = Some(openai.encode_request(&request, &Wire::default()).unwrap()));
    let written = written.unwrap();
    assert!(written.ends_with(br#","stream_options":{"include_usage":true}}"#));
    let once = u64::try_from(body.len()).unwrap() + 4_096;
    assert!(counted.bytes_max < once, "{counted:?} for {} bytes", body.len());
}

/// The pieces of a stream of so many pieces, as `dialect` has them.
fn pieces(dialect: Dialect, many: usize) -> Vec<Bytes> {
    let frame = |n: usize| match dialect {
        Dialect::Responses => format!(
            "event: response.output_text.delta\ndata: {{\"type\":\"response.output_text.delta\",\"sequence_number\":{},\
             \"item_id\":\"msg_1\",\"output_index\":0,\"content_index\":0,\"delta\":\" word{n}\",\"logprobs\":[]}}\n\n",
            n + 4
        ),
        _ => format!(
            "data: {{\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":\
             [{{\"index\":0,\"delta\":{{\"content\":\" word{n}\"}},\"finish_reason\":null}}]}}\n\n"
        ),
    };
    let start: &[&str] = match dialect {
        Dialect::Responses => &[
            "event: response.created\ndata: {\"type\":\"response.created\",\"sequence_number\":0,\"response\":{\"id\":\"resp_1\",\"model\":\"m\"}}\n\n",
            "event: response.output_item.added\ndata: {\"type\":\"response.output_item.added\",\"sequence_number\":1,\"output_index\":0,\"item\":{\"id\":\"msg_1\",\"type\":\"message\"}}\n\n",
        ],
        _ => &[],
    };
    start
        .iter()
        .map(|frame| (*frame).to_owned())
        .chain((0..many).map(frame))
        .map(Bytes::from)
        .collect()
}

/// How many allocations it takes to read a stream of so many pieces and to pass it on.
fn passed_on(dialect: Dialect, many: usize) -> u64 {
    let pieces = pieces(dialect, many);
    let mut decoder = StreamDecoder::new(dialect);
    let mut encoder = StreamEncoder::new(dialect, &Caller::new("m", false), dialect);
    let mut bytes = 0;
    let counted = measure(|| {
        for piece in &pieces {
            decoder.push(piece.clone());
            while let Some(event) = decoder.next_event() {
                bytes += encoder.encode_owned(event.unwrap()).unwrap().len();
            }
        }
    });
    assert_eq!(bytes, pieces.iter().map(Bytes::len).sum::<usize>(), "{dialect}: as they came");
    counted.count_total
}

/// The text of an answer is kept for a resume, which grows now and then, and that is all.
#[test]
fn a_piece_of_a_response_takes_no_more_allocations_than_one_of_a_chat() {
    let a_piece = |dialect| {
        let (few, many) = (passed_on(dialect, 1_000), passed_on(dialect, 3_000));
        (many - few) as f64 / 2_000.0
    };
    let (chat, response) = (a_piece(Dialect::OpenAi), a_piece(Dialect::Responses));
    assert!(response <= chat + 0.01, "{response} a piece, and {chat} of a chat");
}
