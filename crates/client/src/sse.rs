//! Server-sent events, read piece by piece.
//!
//! The parser keeps the bytes of every frame, separators included: joined, the frames are the
//! input again, so a relay can pass them on untouched. How the input was cut into chunks makes no
//! difference to what comes out.
//!
//! ```
//! use steadfast_client::sse::SseParser;
//!
//! let mut parser = SseParser::default();
//! parser.push("event: ping\ndata: {\"a\"".into());
//! assert!(parser.next_frame().unwrap().is_none());
//! parser.push(":1}\n\n".into());
//! let frame = parser.next_frame().unwrap().unwrap();
//! assert_eq!(frame.event.as_deref(), Some(&b"ping"[..]));
//! assert_eq!(frame.data.as_deref(), Some(&b"{\"a\":1}"[..]));
//! assert_eq!(&frame.raw[..], b"event: ping\ndata: {\"a\":1}\n\n");
//! ```

use bytes::{Bytes, BytesMut};

/// The largest event read, in bytes: 16 MiB. A frame with a generated image in it is a few; more
/// than this is no answer of a model.
pub const MAX_EVENT: usize = 16 * 1024 * 1024;

const BOM: &[u8] = b"\xef\xbb\xbf";

/// One frame: the lines up to and with an empty one. An empty line where no frame has started is a
/// frame of its own, with nothing in it: some providers keep silent streams open with those, and
/// however many come, none is held.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SseFrame {
    /// Its bytes as they came, the empty line that ends it included.
    pub raw: Bytes,
    /// Its `event:` name.
    pub event: Option<Bytes>,
    /// Its `data:` lines, joined by line feeds. `None` when it has none: a comment, or a name
    /// without anything to it.
    pub data: Option<Bytes>,
    /// Its `id:`.
    pub id: Option<Bytes>,
    /// Its `retry:`, in milliseconds.
    pub retry: Option<u64>,
    /// Whether it has a comment, as keep-alives do.
    pub comment: bool,
    /// Whether it has a line that is no field of the specification, or no data and bytes that are
    /// no text. Without data that is a damaged frame.
    pub stray: bool,
}

/// An event larger than the parser's limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an event of the stream is larger than {limit} bytes")]
pub struct EventTooLarge {
    /// The limit, in bytes.
    pub limit: usize,
}

/// Reads frames from chunks.
#[derive(Debug)]
pub struct SseParser {
    /// The chunk that is being read.
    chunk: Bytes,
    /// The beginning of a frame that did not end in its chunk.
    partial: BytesMut,
    scan: Scan,
    limit: usize,
    /// Nothing has been taken yet: a byte order mark may stand here.
    fresh: bool,
}

impl Default for SseParser {
    fn default() -> Self {
        Self::with_limit(MAX_EVENT)
    }
}

impl SseParser {
    /// A parser for events of at most `limit` bytes.
    pub fn with_limit(limit: usize) -> Self {
        Self {
            chunk: Bytes::new(),
            partial: BytesMut::new(),
            scan: Scan::default(),
            limit,
            fresh: true,
        }
    }

    /// Adds a chunk. Frames are to be taken by [`next_frame`](Self::next_frame) until there is none;
    /// a chunk added before that costs a copy.
    pub fn push(&mut self, chunk: Bytes) {
        if self.chunk.is_empty() {
            self.chunk = chunk;
        } else {
            let mut both = BytesMut::from(&self.chunk[..]);
            both.extend_from_slice(&chunk);
            self.chunk = both.freeze();
        }
    }

    /// The next whole frame, or `None` when more bytes are needed. A frame that lies in one chunk
    /// shares its memory.
    ///
    /// # Errors
    ///
    /// When a frame exceeds the limit. The parser is of no use after that.
    pub fn next_frame(&mut self) -> Result<Option<SseFrame>, EventTooLarge> {
        if self.chunk.is_empty() {
            return Ok(None);
        }
        let end = self.scan.find_end(&self.chunk);
        let taken = end.unwrap_or(self.chunk.len());
        if self.partial.len() + taken > self.limit {
            return Err(EventTooLarge { limit: self.limit });
        }
        if end.is_none() {
            self.partial.extend_from_slice(&self.chunk);
            self.chunk = Bytes::new();
            return Ok(None);
        }
        let head = self.chunk.split_to(taken);
        Ok(Some(self.frame(head)))
    }

    /// What comes next, from the beginning of a frame; empty inside of one.
    pub(crate) fn at_hand(&self) -> &[u8] {
        if self.partial.is_empty() && !self.fresh { &self.chunk } else { &[] }
    }

    /// Takes `len` bytes of what is [at hand](Self::at_hand), which are known to be a frame. `None`
    /// when that is larger than the limit.
    pub(crate) fn take(&mut self, len: usize) -> Option<Bytes> {
        (len <= self.limit).then(|| self.chunk.split_to(len))
    }

    /// Ends the input: what is left. [`Rest::Incomplete`] when the last frame was not ended by an
    /// empty line, as after a cut connection.
    pub fn finish(&mut self) -> Rest {
        if self.partial.is_empty() {
            return Rest::Nothing;
        }
        let whole = self.scan.ends_here();
        let blank = !self.scan.any;
        self.scan = Scan::default();
        let frame = self.frame(Bytes::new());
        match (whole, blank) {
            (true, true) => Rest::Blank(frame.raw),
            (true, false) => Rest::Frame(frame),
            (false, _) => Rest::Incomplete(frame),
        }
    }

    fn frame(&mut self, last: Bytes) -> SseFrame {
        let raw = if self.partial.is_empty() {
            last
        } else {
            self.partial.extend_from_slice(&last);
            self.partial.split().freeze()
        };
        let fresh = std::mem::take(&mut self.fresh);
        SseFrame::parse(raw, fresh)
    }
}

/// What is left at the end of the input.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rest {
    /// Nothing.
    Nothing,
    /// An empty line whose end could not be recognised before: it ends with a
    /// carriage return, and a line feed might have followed.
    Blank(Bytes),
    /// A whole frame whose end could not be recognised before: its last line ends with a carriage
    /// return, and a line feed might have followed.
    Frame(SseFrame),
    /// A frame that was cut.
    Incomplete(SseFrame),
}

/// Finds the empty line that ends a frame, whatever the line ends are.
#[derive(Debug, Default)]
struct Scan {
    /// The current line has bytes.
    in_line: bool,
    /// The frame has a line that is not empty.
    any: bool,
    /// The last byte was a carriage return, and a line feed may belong to it.
    after_cr: bool,
    /// That carriage return ended an empty line.
    ends: bool,
}

impl Scan {
    /// Where the frame ends in `chunk`, when it does.
    fn find_end(&mut self, chunk: &[u8]) -> Option<usize> {
        let mut at = 0;
        while at < chunk.len() {
            if std::mem::take(&mut self.after_cr) {
                at += usize::from(chunk[at] == b'\n');
                if self.ends {
                    *self = Self::default();
                    return Some(at);
                }
                continue;
            }
            let Some(line) = memchr::memchr2(b'\r', b'\n', &chunk[at..]) else {
                self.in_line = true;
                self.any = true;
                return None;
            };
            let empty = line == 0 && !self.in_line;
            at += line + 1;
            self.in_line = false;
            self.any |= !empty;
            if chunk[at - 1] == b'\r' {
                self.after_cr = true;
                self.ends = empty;
            } else if empty {
                *self = Self::default();
                return Some(at);
            }
        }
        None
    }

    fn ends_here(&self) -> bool {
        self.after_cr && self.ends
    }
}

impl SseFrame {
    fn parse(raw: Bytes, first: bool) -> Self {
        let mut frame = SseFrame::default();
        let mut joined: Option<BytesMut> = None;
        let skip = if first && raw.starts_with(BOM) { BOM.len() } else { 0 };
        for line in lines(&raw[skip..]) {
            let colon = memchr::memchr(b':', line);
            if colon == Some(0) {
                frame.comment = true;
                continue;
            }
            let (name, value) = match colon {
                Some(at) => (&line[..at], &line[at + 1..]),
                None => (line, &line[line.len()..]),
            };
            let value = value.strip_prefix(b" ").unwrap_or(value);
            match name {
                b"data" => match (&mut joined, &frame.data) {
                    (Some(joined), _) => {
                        joined.extend_from_slice(b"\n");
                        joined.extend_from_slice(value);
                    }
                    (None, Some(one)) => {
                        let mut both = BytesMut::with_capacity(one.len() + value.len() + 1);
                        both.extend_from_slice(one);
                        both.extend_from_slice(b"\n");
                        both.extend_from_slice(value);
                        joined = Some(both);
                    }
                    (None, None) => frame.data = Some(raw.slice_ref(value)),
                },
                b"event" => frame.event = Some(raw.slice_ref(value)),
                // The specification has ids with a NUL ignored.
                b"id" if !value.contains(&0) => frame.id = Some(raw.slice_ref(value)),
                b"retry" => {
                    frame.retry = std::str::from_utf8(value).ok().and_then(|ms| ms.parse().ok());
                }
                b"id" => {}
                _ => frame.stray = true,
            }
        }
        if let Some(joined) = joined {
            frame.data = Some(joined.freeze());
        }
        // An event stream is UTF-8; with data, whoever reads that will see.
        frame.stray |= frame.data.is_none() && std::str::from_utf8(&raw).is_err();
        frame.raw = raw;
        frame
    }
}

/// The lines of `text` that are not empty, without their ends.
fn lines(mut text: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        while !text.is_empty() {
            let end = memchr::memchr2(b'\r', b'\n', text).unwrap_or(text.len());
            let (line, rest) = text.split_at(end);
            text = rest.get(1..).unwrap_or_default();
            if !line.is_empty() {
                return Some(line);
            }
        }
        None
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(chunks: &[&[u8]]) -> (Vec<SseFrame>, Rest) {
        let mut parser = SseParser::default();
        let mut frames = Vec::new();
        for chunk in chunks {
            parser.push(Bytes::copy_from_slice(chunk));
            while let Some(frame) = parser.next_frame().unwrap() {
                frames.push(frame);
            }
        }
        let rest = parser.finish();
        (frames, rest)
    }

    fn data(frame: &SseFrame) -> &str {
        std::str::from_utf8(frame.data.as_deref().unwrap_or_default()).unwrap()
    }

    #[test]
    fn fields_are_read_as_the_specification_says() {
        for (text, event, wanted) in [
            ("data: a\n\n", None, Some("a")),
            ("data:a\r\n\r\n", None, Some("a")),
            ("data:  a\r\rdata: b\r\r", None, Some(" a")),
            ("\u{feff}data: a\n\n", None, Some("a")),
            ("event: x\ndata: a\ndata: b\ndata:\n\n", Some("x"), Some("a\nb\n")),
            (": note\ndata: a\n\n", None, Some("a")),
            (": note\n\n", None, None),
            ("data\n\n", None, Some("")),
            ("event: x\n\n", Some("x"), None),
            ("datax: no\ndata: a\nnonsense\n\n", None, Some("a")),
        ] {
            let (frames, _) = read(&[text.as_bytes()]);
            let frame = &frames[0];
            assert_eq!(frame.event.as_deref(), event.map(str::as_bytes), "{text:?}");
            assert_eq!(frame.data.as_deref(), wanted.map(str::as_bytes), "{text:?}");
        }
        let (frames, _) = read(&[b": hi\nid: 7\nretry: 1500\n\n"]);
        assert_eq!(frames[0].id.as_deref(), Some(&b"7"[..]));
        assert_eq!((frames[0].retry, frames[0].comment), (Some(1_500), true));
    }

    #[test]
    fn an_unfinished_frame_is_reported_as_incomplete() {
        assert_eq!(read(&[b"data: a\n\n"]).1, Rest::Nothing);
        assert!(matches!(read(&[b"data: a\n\ndata: b"]).1, Rest::Incomplete(f) if data(&f) == "b"));
        assert!(matches!(read(&[b"data: a\n"]).1, Rest::Incomplete(f) if data(&f) == "a"));
        assert!(matches!(read(&[b"data: a\r\r"]).1, Rest::Frame(f) if data(&f) == "a"));
        assert!(matches!(read(&[b"data: a\n\n\r"]).1, Rest::Blank(raw) if raw == "\r"));
    }

    #[test]
    fn empty_lines_between_frames_are_frames_and_are_not_held() {
        let (frames, rest) = read(&[b"\n\r\n\rdata: a\n\n\n"]);
        let raw: Vec<&[u8]> = frames.iter().map(|frame| &frame.raw[..]).collect();
        assert_eq!(raw, [&b"\n"[..], b"\r\n", b"\r", b"data: a\n\n", b"\n"]);
        assert_eq!(rest, Rest::Nothing);
        for blank in [0, 1, 2, 4] {
            let frame = &frames[blank];
            assert!(frame.data.is_none() && !frame.comment && !frame.stray);
        }
        // A provider that keeps the stream open with them, for longer than an event may be.
        let mut parser = SseParser::with_limit(4);
        for _ in 0..1_000 {
            parser.push("\r".into());
            while parser.next_frame().unwrap().is_some() {}
            assert!(parser.partial.len() <= 1);
        }
    }

    #[test]
    fn a_frame_in_one_chunk_is_not_copied() {
        let chunk = Bytes::from_static(b"data: a\n\ndata: b\n\ndata: c");
        let mut parser = SseParser::default();
        parser.push(chunk.clone());
        let first = parser.next_frame().unwrap().unwrap();
        let second = parser.next_frame().unwrap().unwrap();
        assert!(parser.next_frame().unwrap().is_none());
        for (frame, at) in [(&first, 0), (&second, 9)] {
            assert_eq!(frame.raw.as_ptr(), chunk[at..].as_ptr());
            assert_eq!(frame.data.as_ref().unwrap().as_ptr(), chunk[at + 6..].as_ptr());
        }
    }

    #[test]
    fn an_event_too_large_is_an_error_before_it_is_held() {
        let mut parser = SseParser::with_limit(10);
        parser.push("data: 12\n\n".into());
        assert!(parser.next_frame().unwrap().is_some());
        parser.push("data: ".into());
        assert!(parser.next_frame().unwrap().is_none());
        parser.push("12345".into());
        assert_eq!(parser.next_frame(), Err(EventTooLarge { limit: 10 }));
    }

    fn stream() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            Just("data: {\"a\":1}".to_owned()),
            Just("event: x".to_owned()),
            Just(":".to_owned()),
            Just("\n".to_owned()),
            Just("\r\n".to_owned()),
            Just("\r".to_owned()),
            Just("\n\n".to_owned()),
            Just("\u{feff}".to_owned()),
            "[a-z:\u{e4}]{0,6}",
        ];
        proptest::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat().into_bytes())
    }

    proptest! {
        #[test]
        fn any_split_gives_the_same_frames(input in stream(), cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..8)) {
            let whole = read(&[&input]);
            let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(input.len() + 1)).collect();
            at.sort_unstable();
            let mut chunks = Vec::new();
            let mut from = 0;
            for to in at {
                chunks.push(&input[from..to]);
                from = to;
            }
            chunks.push(&input[from..]);
            prop_assert_eq!(&read(&chunks), &whole);

            let mut joined: Vec<u8> = whole.0.iter().flat_map(|frame| frame.raw.to_vec()).collect();
            match whole.1 {
                Rest::Nothing => {}
                Rest::Blank(raw) => joined.extend_from_slice(&raw),
                Rest::Frame(frame) | Rest::Incomplete(frame) => joined.extend_from_slice(&frame.raw),
            }
            prop_assert_eq!(joined, input);
        }

        #[test]
        fn never_panics(input in proptest::collection::vec(any::<u8>(), 0..300)) {
            read(&[&input]);
        }
    }
}
