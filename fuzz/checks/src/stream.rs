//! A provider's stream: `dialect plan bytes`.

use steadfast_chat::Event;
use steadfast_client::dialect::codec;
use steadfast_core::Dialect;

use crate::{
    content::{check_failure, completion, content_of, has_opaque, read_stream, write_stream},
    input::{Input, cut},
};

/// * Splitting the bytes makes no difference to events or failure.
/// * It has one end, last, or a failure with a message, never both.
/// * In its own dialect its frames are forwarded unchanged.
/// * Written in another dialect it can be read, and has the same content up to where it broke.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let from = input.dialect();
    let plan = input.byte();
    let text = input.rest();
    let (events, failure) = read_stream(from, [text.clone()]);
    let (pieces, other) = read_stream(from, cut(&text, plan));
    assert_eq!(events, pieces, "a split made a difference");
    let shown = |failure: &steadfast_core::Failure| {
        let body = failure.upstream().map(|upstream| upstream.body.clone());
        (failure.to_string(), failure.evidence().to_owned(), failure.usage().copied(), body)
    };
    assert_eq!(failure.as_ref().map(shown), other.as_ref().map(shown));

    let ends = events.iter().filter(|event| event.is_end()).count();
    match &failure {
        Some(failure) => {
            assert_eq!(ends, 0, "an end and a failure");
            check_failure(failure);
        }
        None => assert!(ends == 1 && events.last().is_some_and(Event::is_end)),
    }
    let deltas: usize = events.iter().map(|event| event.deltas.len()).sum();
    assert!(deltas <= 2 * text.len() + 8, "{deltas} deltas of {} bytes", text.len());

    // The end may be rewritten, when the empty line after it is missing.
    let frames = events.iter().filter(|event| !event.is_end()).filter_map(|e| e.frame.as_ref());
    let relayed: Vec<u8> = frames.flat_map(|frame| frame.bytes.to_vec()).collect();
    assert!(text.starts_with(&relayed), "frames changed");

    let answer = completion(from, &events);
    let wanted = content_of(from, &events);
    for to in Dialect::ALL {
        let bare = events.iter().map(|event| Event::new(event.deltas.clone())).collect::<Vec<_>>();
        for events in [&events, &bare] {
            let Ok(mut written) = write_stream(from, to, events) else { continue };
            if let Some(failure) = &failure {
                // Gemini has no terminal event: only this marks it as broken.
                written.extend_from_slice(&codec(to).encode_stream_error(failure));
            }
            let shown = String::from_utf8_lossy(&written).into_owned();
            assert!(
                written.len() <= 512 * text.len() + 4_096,
                "{} bytes of {}",
                written.len(),
                text.len()
            );
            let (again, broke) = read_stream(to, [written.into()]);
            if failure.is_none() {
                assert!(broke.is_none(), "{from} to {to}: {broke:?}\n{shown}");
                if !has_opaque(&answer) {
                    assert_eq!(content_of(to, &again), wanted, "{from} to {to}\n{shown}");
                }
            } else {
                let ended = again.iter().any(Event::is_end);
                assert!(!ended && broke.is_some(), "{from} to {to}: an end made up\n{shown}");
            }
        }
    }
}
