//! Server-sent events: `plan limit bytes`.

use bytes::Bytes;
use steadfast_client::sse::{EventTooLarge, Rest, SseFrame, SseParser};

use crate::input::{Input, cut};

#[derive(Debug, PartialEq)]
struct Read {
    frames: Vec<SseFrame>,
    end: Result<Rest, EventTooLarge>,
}

fn read(chunks: &[Bytes], limit: usize) -> Read {
    let mut parser = SseParser::with_limit(limit);
    let mut frames = Vec::new();
    for chunk in chunks {
        parser.push(chunk.clone());
        loop {
            match parser.next_frame() {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(large) => return Read { frames, end: Err(large) },
            }
        }
    }
    Read { frames, end: Ok(parser.finish()) }
}

/// * Splitting the input makes no difference.
/// * Joined, the frames are the input again.
/// * No frame is larger than the limit; without a frame above it nothing is refused.
/// * A frame read by itself is the same as in the stream.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let plan = input.byte();
    let limit = match input.byte() {
        byte @ 1..32 => usize::from(byte),
        _ => usize::MAX,
    };
    let text = input.rest();
    let whole = read(std::slice::from_ref(&text), limit);
    let pieces = read(&cut(&text, plan), limit);
    assert_eq!(whole, pieces, "a split made a difference");

    let mut joined = Vec::new();
    for frame in &whole.frames {
        assert!(!frame.raw.is_empty() && frame.raw.len() <= limit);
        joined.extend_from_slice(&frame.raw);
    }
    match &whole.end {
        Ok(Rest::Nothing) => {}
        Ok(Rest::Blank(raw)) => {
            assert!(raw.iter().all(|byte| matches!(byte, b'\r' | b'\n')) && raw.len() <= 2);
            joined.extend_from_slice(raw);
        }
        Ok(Rest::Frame(frame) | Rest::Incomplete(frame)) => {
            assert!(frame.raw.len() <= limit);
            joined.extend_from_slice(&frame.raw);
        }
        Ok(other) => panic!("{other:?} is new here"),
        Err(large) => {
            assert!(large.limit == limit && text.len() > limit);
            assert!(text.starts_with(&joined));
            return;
        }
    }
    assert_eq!(joined, text, "bytes were lost or made up");

    for (at, frame) in whole.frames.iter().enumerate() {
        // These bytes are a byte order mark only at the beginning of a stream.
        if at > 0 && frame.raw.starts_with(b"\xef\xbb\xbf") {
            continue;
        }
        let again = read(std::slice::from_ref(&frame.raw), usize::MAX);
        let same = match (&again.frames[..], again.end) {
            ([one], Ok(Rest::Nothing)) => one == frame,
            // It ended with a carriage return.
            ([], Ok(Rest::Frame(one))) => one == *frame,
            ([], Ok(Rest::Blank(raw))) => raw == frame.raw,
            _ => false,
        };
        assert!(same, "{frame:?} is another by itself");
    }
}
