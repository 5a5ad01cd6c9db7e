//! What the frames of HTTP/2 can hold, counted without reading their headers.

use std::collections::BTreeMap;

use bytes::{BufMut, Bytes, BytesMut};

use crate::input::Input;

/// What a client of HTTP/2 sends first.
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const END_STREAM: u8 = 1;
const PADDED: u8 = 8;

/// A connection of frames whose lengths are right: each is `type flags stream length payload`.
pub(super) fn frames(input: &mut Input<'_>) -> Bytes {
    let mut out = BytesMut::from(PREFACE);
    // Settings come first.
    out.put_slice(&[0, 0, 0, 4, 0, 0, 0, 0, 0]);
    while !input.is_empty() {
        let (kind, flags, stream) = (input.byte(), input.byte(), input.byte());
        let length = input.byte();
        let payload = input.take(usize::from(length));
        out.put_uint(payload.len() as u64, 3);
        out.put_slice(&[kind % 16, flags]);
        out.put_u32(u32::from(stream));
        out.put_slice(payload);
    }
    out.freeze()
}

/// What there is of frames.
#[derive(Debug, Default)]
pub(super) struct Frames {
    /// How many begin a request, or could.
    pub(super) heads: usize,
    /// What there is of bodies, by stream.
    pub(super) bodies: BTreeMap<u32, FramedBody>,
}

/// The data of a stream.
#[derive(Debug, Default)]
pub(super) struct FramedBody {
    data: Vec<u8>,
    ended: bool,
    /// A client that wants no answer any more may end its body by that; what came before may be dropped.
    is_reset: bool,
}

impl FramedBody {
    /// Whether a handler can have received `body`, and its end if it is `whole`.
    pub(super) fn can_be(&self, body: &[u8], whole: bool) -> bool {
        let ends = !whole || self.is_reset || (self.ended && self.data.len() == body.len());
        ends && self.data.starts_with(body)
    }
}

/// Counts the frames that follow the preface.
pub(super) fn count(bytes: &[u8]) -> Frames {
    let mut found = Frames::default();
    let mut rest = bytes.strip_prefix(PREFACE).unwrap_or_default();
    while let Some((head, after)) = rest.split_first_chunk::<9>() {
        let [a, b, c, kind, flags, stream @ ..] = *head;
        let length = u32::from_be_bytes([0, a, b, c]) as usize;
        let (payload, next) = after.split_at_checked(length).unwrap_or((after, b""));
        let stream = u32::from_be_bytes(stream) & 0x7fff_ffff;
        if kind == HEADERS {
            found.heads += 1;
        }
        let body = found.bodies.entry(stream).or_default();
        match kind {
            DATA if !body.ended => {
                body.data.extend_from_slice(unpadded(payload, flags & PADDED != 0));
                body.ended = flags & END_STREAM != 0;
            }
            HEADERS => body.ended |= flags & END_STREAM != 0,
            RESET => body.is_reset = true,
            _ => {}
        }
        rest = next;
    }
    found
}

fn unpadded(payload: &[u8], is_padded: bool) -> &[u8] {
    match payload.split_first() {
        Some((padding, rest)) if is_padded => {
            &rest[..rest.len().saturating_sub(usize::from(*padding))]
        }
        _ => payload,
    }
}
