//! A provider's whole answer: `dialect body`.

use bytes::Bytes;
use steadfast_chat::{Event, Head};
use steadfast_client::dialect::{EmbedShape, codec, count_codec, embed_codec};
use steadfast_core::Dialect;

use crate::{
    content::{
        caller, check_failure, completion, content_of, has_opaque, read_stream, write_stream,
    },
    input::Input,
};

/// * An invalid answer is a failure with a message.
/// * Its content is bounded by its bytes.
/// * In its own dialect the same bytes are written.
/// * Written in another, whole or as a stream, it can be read and has the same content.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let from = input.dialect();
    let body = input.rest();
    check_beside(from, &body);
    let event = match codec(from).decode_answer(&body) {
        Ok(event) => event,
        Err(failure) => return check_failure(&failure),
    };
    assert!(event.is_end(), "a whole answer ends");
    assert!(event.deltas.len() <= body.len() + 8, "{} deltas", event.deltas.len());
    let answer = completion(from, std::slice::from_ref(&event));
    let wanted = content_of(from, std::slice::from_ref(&event));
    for to in Dialect::ALL {
        let bound = 64 * body.len() + 4_096;
        if let Ok(written) = codec(to).encode_answer(&answer, &caller()) {
            if to == from && answer.body.is_some() {
                assert_eq!(written, body, "{from} is passed on");
            }
            assert!(written.len() <= bound, "{} bytes of {}", written.len(), body.len());
            let again = codec(to).decode_answer(&written);
            let again = again.unwrap_or_else(|e| panic!("{from} to {to}: {e}\n{written:?}"));
            if !has_opaque(&answer) {
                assert_eq!(content_of(to, &[again]), wanted, "{from} to {to}\n{written:?}");
            }
        }
        // As a caller reads it who requested a stream.
        let bare = Event::new(event.deltas.clone());
        if let Ok(written) = write_stream(from, to, &[bare]) {
            assert!(written.len() <= bound, "{} bytes of {}", written.len(), body.len());
            let shown = String::from_utf8_lossy(&written).into_owned();
            let (events, failure) = read_stream(to, [written.into()]);
            assert!(failure.is_none(), "{from} to {to}: {failure:?}\n{shown}");
            if !has_opaque(&answer) {
                assert_eq!(content_of(to, &events), wanted, "{from} to {to}\n{shown}");
            }
        }
    }
}

/// The same body as an answer with embeddings, and with a count of tokens: vectors are parts of it, as many as were
/// asked for.
fn check_beside(dialect: Dialect, body: &Bytes) {
    for (inputs, is_single) in [(1, true), (1, false), (2, false), (3, false)] {
        let Some(codec) = embed_codec(dialect) else { break };
        let asked = EmbedShape { inputs, is_single };
        match codec.decode_answer(Head::new(dialect), asked, body) {
            Err(failure) => check_failure(&failure),
            Ok(answer) => {
                assert_eq!(answer.embeddings.len(), inputs);
                assert!(
                    answer.embeddings.iter().map(|one| one.json().len()).sum::<usize>()
                        <= body.len()
                );
                // Sorted once, it stays so.
                let again = codec.decode_answer(Head::new(dialect), asked, &answer.body);
                assert_eq!(again.map(|again| again.body).ok().as_ref(), Some(&answer.body));
            }
        }
    }
    if let Some(Err(failure)) = count_codec(dialect).map(|codec| codec.decode_answer(body)) {
        check_failure(&failure);
    }
}
