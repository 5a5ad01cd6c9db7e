//! A client of raw frames over HTTP/2, for what no library would send.

use std::{net::SocketAddr, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, timeout, timeout_at},
};

use crate::{check::Failed, wire::SOON};

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const PRIORITY: u8 = 2;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PUSH_PROMISE: u8 = 5;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;

pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;
pub(crate) const ACK: u8 = 1;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A frame that came.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

impl Frame {
    /// The status in a block of headers that is the first on its connection.
    pub(crate) fn status(&self) -> Option<u16> {
        // A dynamic table's new size may stand before it.
        let block = self.payload.iter().position(|byte| byte & 0xe0 != 0x20)?;
        match &self.payload[block..] {
            [0x88, ..] => Some(200),
            [0x89, ..] => Some(204),
            [0x8a, ..] => Some(206),
            [0x8b, ..] => Some(304),
            [0x8c, ..] => Some(400),
            [0x8d, ..] => Some(404),
            [0x8e, ..] => Some(500),
            // A literal under the name of a static entry, which is `:status` from 8 to 14.
            [0x48 | 0x08 | 0x18, length, rest @ ..] => digits(*length, rest),
            _ => None,
        }
    }
}

/// Three digits, by Huffman or not.
fn digits(length: u8, rest: &[u8]) -> Option<u16> {
    let text = rest.get(..usize::from(length & 0x7f))?;
    if length & 0x80 == 0 {
        return std::str::from_utf8(text).ok()?.parse().ok();
    }
    let bits: String = text.iter().map(|byte| format!("{byte:08b}")).collect();
    let (mut at, mut number) = (0, 0);
    for _ in 0..3 {
        // 0 to 2 are five bits long, 3 to 9 six, from 011001 on.
        let five = u16::from_str_radix(bits.get(at..at + 5)?, 2).ok()?;
        if five < 3 {
            (number, at) = (number * 10 + five, at + 5);
        } else {
            let six = u16::from_str_radix(bits.get(at..at + 6)?, 2).ok()?;
            (number, at) = (number * 10 + six.checked_sub(22)?, at + 6);
        }
    }
    Some(number)
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Http2 {
    stream: TcpStream,
    buffer: Vec<u8>,
    pub(crate) ended: bool,
}

impl Http2 {
    /// Connects, and sends the preface and these settings.
    pub(crate) async fn connect(addr: SocketAddr, settings: &[(u16, u32)]) -> Result<Self, Failed> {
        let mut own = Self::bare(addr).await?;
        own.send(PREFACE).await;
        own.send(frame(SETTINGS, 0, 0, &settings_payload(settings))).await;
        Ok(own)
    }

    /// Connects, and sends nothing.
    pub(crate) async fn bare(addr: SocketAddr) -> Result<Self, Failed> {
        let stream = timeout(SOON, TcpStream::connect(addr)).await??;
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: Vec::new(), ended: false })
    }

    /// Sends bytes; whether they went out.
    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        self.stream.write_all(bytes.as_ref()).await.is_ok()
    }

    /// The next frame, at most until `deadline`. Settings and pings are acknowledged.
    pub(crate) async fn next(&mut self, deadline: Instant) -> Option<Frame> {
        loop {
            if let [a, b, c, kind, flags, id @ ..] = &self.buffer[..]
                && id.len() >= 4
            {
                let length = usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c);
                if self.buffer.len() >= 9 + length {
                    let (kind, flags) = (*kind, *flags);
                    let id = [id[0] & 0x7f, id[1], id[2], id[3]];
                    let payload = self.buffer[9..9 + length].to_vec();
                    self.buffer.drain(..9 + length);
                    let stream = u32::from_be_bytes(id);
                    if flags & ACK == 0 && matches!(kind, SETTINGS | PING) {
                        let echo = if kind == PING { &payload[..] } else { &[] };
                        self.send(frame(kind, ACK, 0, echo)).await;
                    }
                    return Some(Frame { kind, flags, stream, payload });
                }
            }
            if self.ended {
                return None;
            }
            match timeout_at(deadline, self.stream.read_buf(&mut self.buffer)).await {
                Ok(Ok(count)) if count > 0 => {}
                Ok(_) => self.ended = true,
                Err(_) => return None,
            }
        }
    }

    /// All frames until the connection ends, or nothing comes for `silence`.
    pub(crate) async fn frames(&mut self, silence: Duration) -> Vec<Frame> {
        let mut all = Vec::new();
        while let Some(frame) = self.next(Instant::now() + silence).await {
            all.push(frame);
        }
        all
    }

    /// Reads stream `id` to its end, giving back what its windows lose; its body, if it ended well.
    pub(crate) async fn body(&mut self, id: u32, limit: Duration) -> Option<Vec<u8>> {
        let deadline = Instant::now() + limit;
        let mut body = Vec::new();
        loop {
            let next = self.next(deadline).await?;
            if next.stream != id {
                continue;
            }
            match next.kind {
                DATA => {
                    body.extend_from_slice(&next.payload);
                    if let Ok(more @ 1..) = u32::try_from(next.payload.len()) {
                        let more = more.to_be_bytes();
                        self.send(frame(WINDOW_UPDATE, 0, 0, &more)).await;
                        self.send(frame(WINDOW_UPDATE, 0, id, &more)).await;
                    }
                }
                RST_STREAM => return None,
                _ => {}
            }
            if next.flags & END_STREAM != 0 && matches!(next.kind, DATA | HEADERS) {
                return Some(body);
            }
        }
    }
}

/// A frame.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap_or(u32::MAX).to_be_bytes();
    let head = [&length[1..], &[kind, flags], &stream.to_be_bytes()].concat();
    [&head, payload].concat()
}

/// The payload of settings.
pub(crate) fn settings_payload(settings: &[(u16, u32)]) -> Vec<u8> {
    let one = |&(key, value): &(u16, u32)| [&key.to_be_bytes()[..], &value.to_be_bytes()].concat();
    settings.iter().flat_map(one).collect()
}

/// A block of headers, each in full.
pub(crate) fn block(headers: &[(&str, &str)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, value) in headers {
        out.push(0);
        text(&mut out, name);
        text(&mut out, value);
    }
    out
}

/// A length and a text without Huffman.
pub(crate) fn text(out: &mut Vec<u8>, text: &str) {
    let mut left = text.len();
    if left < 127 {
        out.push(left as u8);
    } else {
        out.push(127);
        left -= 127;
        while left >= 128 {
            out.push((left % 128) as u8 | 128);
            left /= 128;
        }
        out.push(left as u8);
    }
    out.extend_from_slice(text.as_bytes());
}

/// The headers of a question, with more.
pub(crate) fn question_headers(more: &[(&str, &str)]) -> Vec<u8> {
    let own = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/v1/chat/completions"),
        (":authority", "127.0.0.1"),
        ("content-type", "application/json"),
    ];
    block(&[&own[..], more].concat())
}

/// A whole question on stream `id`.
pub(crate) fn question(id: u32, body: &str, more: &[(&str, &str)]) -> Vec<u8> {
    let headers = frame(HEADERS, END_HEADERS, id, &question_headers(more));
    [headers, frame(DATA, END_STREAM, id, body.as_bytes())].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_read_however_it_is_written() {
        let status = |payload: &[u8]| {
            let (kind, flags, stream) = (HEADERS, END_HEADERS, 1);
            Frame { kind, flags, stream, payload: payload.to_vec() }.status()
        };
        assert_eq!(status(&[0x88, 0x61]), Some(200));
        assert_eq!(status(&[0x20, 0x8c]), Some(400), "behind the size of a table");
        assert_eq!(status(b"\x48\x03413"), Some(413));
        // 401 and 503 by Huffman.
        assert_eq!(status(&[0x48, 0x82, 0b0110_1000, 0b0000_0001]), Some(401));
        assert_eq!(status(&[0x48, 0x83, 0b0110_1100, 0b0000_1100, 0b1111_1111]), Some(503));
        assert_eq!(status(&[0x40, 0x01]), None);
        assert_eq!(status(&[]), None);
    }

    #[test]
    fn a_frame_has_its_length_and_a_long_text_too() {
        assert_eq!(frame(PING, 0, 0, &[7; 8])[..9], [0, 0, 8, 6, 0, 0, 0, 0, 0]);
        let mut out = Vec::new();
        text(&mut out, &"y".repeat(1337));
        // 1337 - 127 = 1210 = 9 * 128 + 58.
        assert_eq!(out[..3], [127, 58 | 128, 9]);
    }
}
