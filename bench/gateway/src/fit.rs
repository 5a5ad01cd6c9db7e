//! Finds the end of an answer's body and counts its events.

use crate::Error;

/// Reads a body chunk by chunk.
#[derive(Debug)]
pub(crate) struct Fit {
    framing: Framing,
    events: u64,
    /// The last byte was a line feed.
    line_end: bool,
    chunks: u64,
}

#[derive(Debug)]
enum Framing {
    /// So many bytes are left.
    Length(usize),
    /// In a chunk's size line.
    Size(usize),
    /// In a chunk, of which so many bytes are left.
    Chunk(usize),
    /// In the line end after a chunk.
    Behind,
    /// In the line after the last chunk.
    Last,
    Over,
}

impl Fit {
    /// The body that `head` announces.
    pub(crate) fn of_head(head: &str) -> Result<Self, Error> {
        let field = |wanted: &str| {
            head.lines().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                name.eq_ignore_ascii_case(wanted).then(|| value.trim())
            })
        };
        let framing = match field("content-length") {
            Some(length) => Framing::Length(length.parse()?),
            None if field("transfer-encoding")
                .is_some_and(|t| t.eq_ignore_ascii_case("chunked")) =>
            {
                Framing::Size(0)
            }
            None => return Err("an answer has no framing".into()),
        };
        Ok(Self { framing, events: 0, line_end: false, chunks: 0 })
    }

    /// Takes the next bytes.
    pub(crate) fn feed(&mut self, mut bytes: &[u8]) -> Result<(), Error> {
        if let Framing::Length(0) = self.framing {
            self.framing = Framing::Over;
        }
        while let Some(&first) = bytes.first() {
            match &mut self.framing {
                Framing::Length(left) | Framing::Chunk(left) => {
                    let take = bytes.len().min(*left);
                    *left -= take;
                    let done = *left == 0;
                    let (mine, rest) = bytes.split_at(take);
                    self.count(mine);
                    bytes = rest;
                    if done {
                        self.framing = match self.framing {
                            Framing::Chunk(_) => Framing::Behind,
                            _ => Framing::Over,
                        };
                    }
                }
                Framing::Size(size) => {
                    bytes = &bytes[1..];
                    match (first, char::from(first).to_digit(16)) {
                        (b'\r', _) => {}
                        (b'\n', _) if *size == 0 => self.framing = Framing::Last,
                        (b'\n', _) => {
                            self.framing = Framing::Chunk(*size);
                            self.chunks += 1;
                        }
                        (_, Some(digit)) => *size = *size * 16 + digit as usize,
                        (_, None) => return Err("a chunk has no size".into()),
                    }
                }
                Framing::Behind => {
                    bytes = &bytes[1..];
                    if first == b'\n' {
                        self.framing = Framing::Size(0);
                    }
                }
                Framing::Last => {
                    bytes = &bytes[1..];
                    if first == b'\n' {
                        self.framing = Framing::Over;
                    }
                }
                Framing::Over => return Err("there are bytes after an answer".into()),
            }
        }
        Ok(())
    }

    fn count(&mut self, body: &[u8]) {
        let mut before = self.line_end;
        let mut last = None;
        for at in memchr::memchr_iter(b'\n', body) {
            let follows = match last {
                Some(last) => last + 1 == at,
                None => at == 0 && before,
            };
            self.events += u64::from(follows);
            last = if follows { None } else { Some(at) };
            before = false;
        }
        if let Some(end) = body.len().checked_sub(1) {
            self.line_end = last == Some(end);
        }
    }

    /// Whether the body has ended.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.framing, Framing::Over | Framing::Length(0))
    }

    /// How many events have arrived: empty lines.
    pub(crate) fn events(&self) -> u64 {
        self.events
    }

    /// How many HTTP chunks have arrived.
    pub(crate) fn chunks(&self) -> u64 {
        self.chunks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splitting_makes_no_difference_to_the_counts() {
        let body = b"9\r\ndata: a\n\n\r\n13\r\ndata: bb\n\ndata: c\n\n\r\n0\r\n\r\n";
        for cut in 0..body.len() {
            let mut fit =
                Fit::of_head("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").unwrap();
            fit.feed(&body[..cut]).unwrap();
            assert!(!fit.is_over());
            fit.feed(&body[cut..]).unwrap();
            assert_eq!((fit.is_over(), fit.events(), fit.chunks()), (true, 3, 2), "{cut}");
        }
    }

    #[test]
    fn a_body_ends_at_its_length() {
        let mut fit = Fit::of_head("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n").unwrap();
        fit.feed(b"ab").unwrap();
        assert!(!fit.is_over());
        fit.feed(b"c").unwrap();
        assert!(fit.is_over());
        assert!(Fit::of_head("HTTP/1.1 200 OK\r\n\r\n").is_err());
    }
}
