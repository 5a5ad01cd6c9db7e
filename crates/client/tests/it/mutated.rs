//! Mutated bytes: no panic, and the same result however they are split.

use bytes::Bytes;
use proptest::{prelude::*, sample::Index};
use steadfast_chat::Event;
use steadfast_client::dialect::{StreamEncoder, Wire, codec};
use steadfast_core::Dialect;

use crate::{
    fixtures::{body, caller, completion, read_stream, route, stream},
    translate::REQUESTS,
};

#[derive(Clone, Debug)]
enum Damage {
    Set(Index, u8),
    Drop(Index, Index),
    Double(Index, Index),
    Insert(Index, String),
}

fn damage() -> impl Strategy<Value = Damage> {
    let pieces = prop_oneof![
        Just("null".to_owned()),
        Just("[]".to_owned()),
        Just("{}".to_owned()),
        Just("\n\n".to_owned()),
        Just("data: ".to_owned()),
        Just("\"\"".to_owned()),
        Just("-1".to_owned()),
        Just("1e999".to_owned()),
        Just("\\ud800".to_owned()),
        Just("[".repeat(300)),
        "\\PC{0,5}",
    ];
    prop_oneof![
        (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Damage::Set(at, byte)),
        (any::<Index>(), any::<Index>()).prop_map(|(a, b)| Damage::Drop(a, b)),
        (any::<Index>(), any::<Index>()).prop_map(|(a, b)| Damage::Double(a, b)),
        (any::<Index>(), pieces).prop_map(|(at, piece)| Damage::Insert(at, piece)),
    ]
}

fn damaged(text: &str, damages: &[Damage]) -> Bytes {
    let mut bytes = text.as_bytes().to_vec();
    for damage in damages {
        if bytes.is_empty() {
            break;
        }
        let len = bytes.len();
        // Close together, so that most of the input stays valid.
        let span = |a: &Index, b: &Index| {
            let from = a.index(len);
            (from, (from + b.index(24)).min(len))
        };
        match damage {
            Damage::Set(at, byte) => bytes[at.index(len)] = *byte,
            Damage::Drop(a, b) => {
                let (from, to) = span(a, b);
                bytes.drain(from..to);
            }
            Damage::Double(a, b) => {
                let (from, to) = span(a, b);
                let piece = bytes[from..to].to_vec();
                bytes.splice(to..to, piece);
            }
            Damage::Insert(at, piece) => {
                let at = at.index(len);
                bytes.splice(at..at, piece.bytes());
            }
        }
    }
    bytes.into()
}

fn dialect() -> impl Strategy<Value = Dialect> {
    prop::sample::select(Dialect::ALL.to_vec())
}

fn write_all(from: Dialect, events: &[Event]) {
    for to in Dialect::ALL {
        let mut encoder = StreamEncoder::new(to, &caller(), from);
        for event in events {
            if encoder.encode(event).is_err() {
                break;
            }
        }
        let _ = codec(to).encode_answer(&completion(from, events), &caller());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn requests_never_panic(dialect in dialect(), damages in prop::collection::vec(damage(), 1..4)) {
        for request in REQUESTS.iter().filter(|request| request.0 == dialect) {
            let body = damaged(request.1, &damages);
            if let Ok(request) = codec(dialect).decode_request(&body, route(dialect)) {
                for to in Dialect::ALL {
                    if let Ok(written) = codec(to).encode_request(&request, &Wire::default()) {
                        let valid = serde_json::from_slice::<&serde_json::value::RawValue>(&written);
                        prop_assert!(valid.is_ok(), "{dialect} to {to}: {written:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn answers_never_panic(dialect in dialect(), damages in prop::collection::vec(damage(), 1..4)) {
        match codec(dialect).decode_answer(&damaged(&body(dialect), &damages)) {
            Ok(event) => write_all(dialect, &[event]),
            Err(failure) => {
                for to in Dialect::ALL {
                    codec(to).encode_error(&failure, None);
                    codec(to).encode_stream_error(&failure);
                }
            }
        }
    }

    #[test]
    fn streams_never_panic(dialect in dialect(), damages in prop::collection::vec(damage(), 1..4)) {
        let (events, failure) = read_stream(dialect, [damaged(&stream(dialect), &damages)]);
        write_all(dialect, &events);
        if failure.is_none() {
            prop_assert_eq!(events.iter().filter(|event| event.is_end()).count(), 1);
        }
    }

    #[test]
    fn any_split_of_a_stream_has_the_same_events(
        dialect in dialect(),
        cuts in prop::collection::vec(any::<Index>(), 0..12),
        damages in prop::collection::vec(damage(), 0..2),
    ) {
        let text = damaged(&stream(dialect), &damages);
        let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len() + 1)).collect();
        at.push(text.len());
        at.sort_unstable();
        let mut from = 0;
        let chunks: Vec<Bytes> = at
            .into_iter()
            .map(|to| {
                let chunk = text.slice(from..to);
                from = to;
                chunk
            })
            .collect();
        let (whole, failure) = read_stream(dialect, [text]);
        let (pieces, other) = read_stream(dialect, chunks);
        prop_assert_eq!(whole, pieces);
        prop_assert_eq!(
            failure.map(|failure| failure.to_string()),
            other.map(|failure| failure.to_string())
        );
    }
}
