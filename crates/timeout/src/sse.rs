//! Distinguishes content from keep-alives in a stream of server-sent events.

/// Reads the bytes of a stream of server-sent events, in chunks cut at any byte.
#[derive(Debug, Default)]
pub(crate) struct Sse {
    line: Line,
    /// The name of the current event is `ping`.
    ping: bool,
    /// The last byte was a carriage return: a line feed after it belongs to the same line end.
    after_cr: bool,
}

/// The part of a line the last byte was in.
#[derive(Debug)]
enum Line {
    /// The name of a field, so far.
    Field(Name),
    /// The name of an event, so far.
    Event(Name),
    /// Data.
    Data,
    /// Anything else.
    Other,
}

/// The beginning of a short word.
#[derive(Clone, Copy, Debug, Default)]
struct Name {
    bytes: [u8; 6],
    len: usize,
}

impl Default for Line {
    fn default() -> Self {
        Line::Field(Name::default())
    }
}

impl Name {
    /// Adds a byte; false when it is full.
    fn push(&mut self, byte: u8) -> bool {
        match self.bytes.get_mut(self.len) {
            Some(free) => {
                *free = byte;
                self.len += 1;
                true
            }
            None => false,
        }
    }

    fn get(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

impl Sse {
    /// Whether there is content in `bytes`: data other than white space, in an event that is not a
    /// ping.
    pub(crate) fn feed(&mut self, mut bytes: &[u8]) -> bool {
        let mut content = false;
        while let Some((&byte, rest)) = bytes.split_first() {
            let after_cr = std::mem::replace(&mut self.after_cr, byte == b'\r');
            if byte == b'\n' && after_cr {
                bytes = rest;
                continue;
            }
            if byte == b'\n' || byte == b'\r' {
                self.end_line();
                bytes = rest;
                continue;
            }
            match &mut self.line {
                Line::Field(name) => {
                    let fits = name.push(byte);
                    self.line = match name.get() {
                        b"data:" => Line::Data,
                        b"event:" => Line::Event(Name::default()),
                        start
                            if fits
                                && (b"data:".starts_with(start)
                                    || b"event:".starts_with(start)) =>
                        {
                            Line::Field(*name)
                        }
                        _ => Line::Other,
                    };
                    bytes = rest;
                }
                Line::Event(name) => {
                    if byte != b' ' && !name.push(byte) {
                        self.line = Line::Other;
                    }
                    bytes = rest;
                }
                Line::Data | Line::Other => {
                    let end = memchr::memchr2(b'\n', b'\r', bytes).unwrap_or(bytes.len());
                    let (text, rest) = bytes.split_at(end);
                    content |= matches!(self.line, Line::Data)
                        && !self.ping
                        && text.iter().any(|byte| !byte.is_ascii_whitespace());
                    bytes = rest;
                }
            }
        }
        content
    }

    fn end_line(&mut self) {
        match std::mem::take(&mut self.line) {
            Line::Event(name) => self.ping = name.get() == b"ping",
            // An empty line ends the event.
            Line::Field(name) if name.len == 0 => self.ping = false,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Line by line, over the whole text.
    fn naive(text: &str) -> bool {
        let mut ping = false;
        let normal = text.replace("\r\n", "\n").replace('\r', "\n");
        let mut content = false;
        let mut lines: Vec<&str> = normal.split('\n').collect();
        let unfinished = lines.pop().unwrap_or_default();
        for line in lines {
            if line.is_empty() {
                ping = false;
            } else if let Some(name) = line.strip_prefix("event:") {
                ping = name.replace(' ', "") == "ping";
            } else if let Some(data) = line.strip_prefix("data:") {
                content |= !ping && !data.trim_ascii().is_empty();
            }
        }
        if let Some(data) = unfinished.strip_prefix("data:") {
            content |= !ping && !data.trim_ascii().is_empty();
        }
        content
    }

    #[test]
    fn keep_alives_and_content() {
        for (text, content) in [
            (": ping\n\n", false),
            (":\n\n:\r\n\r\n", false),
            ("event: ping\ndata: {\"type\": \"ping\"}\n\n", false),
            ("event:ping\r\ndata: {}\r\n\r\n", false),
            ("event: ping\ndata: {}\n\ndata: x\n\n", true),
            ("event: pingpong\ndata: {}\n\n", true),
            ("event: content_block_delta\ndata: {}\n\n", true),
            ("id: 7\nretry: 100\n\n", false),
            ("data:\n\ndata: \n\n", false),
            ("data: {\"choices\":[]}\n\n", true),
            ("da", false),
            ("\u{feff}", false),
        ] {
            assert_eq!(Sse::default().feed(text.as_bytes()), content, "{text:?}");
            assert_eq!(naive(text), content, "the model, {text:?}");
        }
    }

    proptest! {
        /// For any chunks, the result is that of the naive reader.
        #[test]
        fn agrees_with_a_reader_of_lines(
            parts in proptest::collection::vec(
                proptest::sample::select(vec![
                    "event", ":", " ", "ping", "data", "\n", "\r\n", "\r", "x", "event: ping\n",
                    "data: y\n", "\n\n", "id", "é",
                ]),
                0..24,
            ),
            cuts in proptest::collection::vec(0usize..80, 0..6),
        ) {
            let text = parts.concat();
            let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.min(text.len())).collect();
            cuts.sort_unstable();
            let mut sse = Sse::default();
            let (mut at, mut content) = (0, false);
            for cut in cuts.into_iter().chain([text.len()]) {
                content |= sse.feed(&text.as_bytes()[at..cut]);
                at = cut;
            }
            prop_assert_eq!(content, naive(&text));
        }

        #[test]
        fn takes_any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            Sse::default().feed(&bytes);
        }
    }
}
