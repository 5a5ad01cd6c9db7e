//! JSON text that has not been checked, read from its beginning to its end.

use std::borrow::Cow;

use super::Raw;

/// How deep [`Raw::check`] looks itself: 64 levels. What nests deeper is left to serde, which needs
/// no stack for it.
const DEPTH: usize = 64;

/// From how many bytes on it is worth calling the vector instructions.
const LONG: usize = 32;

/// Reads text that has not been checked, and checks it by the grammar of RFC 8259 on the way, as
/// serde does. Whatever it can not read is `None`, after which it is of no use.
#[derive(Clone)]
pub(crate) struct Cursor<'a> {
    text: &'a str,
    at: usize,
    /// There is no control character in the text, not even a line end: then strings have none.
    clean: bool,
    /// There are escapes in the string that was read last.
    escaped: bool,
}

impl<'a> Cursor<'a> {
    /// At the beginning of `text`.
    pub(crate) fn new(text: &'a [u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        let text = text.trim_matches([' ', '\t', '\n', '\r']);
        // A minimum, which compiles to vector instructions.
        let clean = text.bytes().fold(u8::MAX, u8::min) >= b' ';
        Some(Self { text, at: 0, clean, escaped: false })
    }

    /// Whether all has been read.
    pub(crate) fn is_over(&self) -> bool {
        self.at == self.text.len()
    }

    /// Reads a value of any kind.
    pub(crate) fn raw(&mut self) -> Option<Raw<'a>> {
        let from = self.at;
        self.value(DEPTH)?;
        self.text.get(from..self.at).map(Raw)
    }

    /// The text from here to where `ahead` is, a clone that went on; goes there.
    pub(crate) fn up_to(&mut self, ahead: &Self) -> Option<Raw<'a>> {
        let from = std::mem::replace(&mut self.at, ahead.at);
        self.text.get(from..self.at).map(Raw)
    }

    /// Passes a string of which every character can be read.
    pub(crate) fn sound(&mut self) -> Option<&'a str> {
        self.eat(b'"')?;
        let inner = self.string()?;
        (!self.escaped || is_sound(inner.as_bytes())).then_some(inner)
    }

    /// What the next value begins with.
    pub(crate) fn begins(&self, with: u8) -> bool {
        self.peek() == Some(with)
    }

    /// Reads a value of any kind; null is none.
    pub(crate) fn there(&mut self) -> Option<Option<Raw<'a>>> {
        if self.null() { Some(None) } else { self.raw().map(Some) }
    }

    /// Reads a string, or null.
    pub(crate) fn words(&mut self) -> Option<Option<Cow<'a, str>>> {
        if self.null() {
            return Some(None);
        }
        let from = self.at;
        self.eat(b'"')?;
        let inner = self.string()?;
        if !self.escaped {
            return Some(Some(Cow::Borrowed(inner)));
        }
        serde_json::from_str(self.text.get(from..self.at)?)
            .ok()
            .map(|words| Some(Cow::Owned(words)))
    }

    /// Passes a string of which every character can be read, or null.
    pub(crate) fn sound_or_null(&mut self) -> Option<Option<&'a str>> {
        if self.null() { Some(None) } else { self.sound().map(Some) }
    }

    /// Reads a whole number from zero, or null.
    pub(crate) fn count(&mut self) -> Option<Option<u64>> {
        if self.null() {
            return Some(None);
        }
        let (from, mut count) = (self.at, 0_u64);
        while let Some(digit @ b'0'..=b'9') = self.peek() {
            count = count.checked_mul(10)?.checked_add(u64::from(digit - b'0'))?;
            self.at += 1;
        }
        // No number begins with a zero but zero, and none of another kind is read here.
        let zeros = self.at - from > 1 && self.text.as_bytes()[from] == b'0';
        let ends = !matches!(self.peek(), Some(b'.' | b'e' | b'E'));
        (self.at > from && !zeros && ends).then_some(Some(count))
    }

    /// Reads true, false or null.
    pub(crate) fn flag(&mut self) -> Option<Option<bool>> {
        match self.peek()? {
            b't' => self.word(b"true").map(|()| Some(true)),
            b'f' => self.word(b"false").map(|()| Some(false)),
            _ => self.word(b"null").map(|()| None),
        }
    }

    /// Passes the value of the field whose name has just been read, and which nobody asks for. A name
    /// that stands for something else than its own letters is out of the ordinary.
    pub(crate) fn pass(&mut self) -> Option<()> {
        if self.is_escaped() {
            return None;
        }
        self.value(DEPTH)
    }

    /// Whether there are escapes in the string, or name, that has just been read.
    pub(crate) fn is_escaped(&self) -> bool {
        self.escaped
    }

    /// Passes a null, or what `read` passes.
    pub(crate) fn null_or(&mut self, read: impl FnOnce(&mut Self) -> Option<()>) -> Option<()> {
        if self.null() { Some(()) } else { read(self) }
    }

    /// Reads a null, if there is one.
    pub(crate) fn null(&mut self) -> bool {
        self.peek() == Some(b'n') && self.word(b"null").is_some()
    }

    /// Reads an object: `read` is given the name of each member as it is written, without its
    /// quotes, and has to read the value.
    pub(crate) fn object(
        &mut self,
        mut read: impl FnMut(&mut Self, &'a str) -> Option<()>,
    ) -> Option<()> {
        self.eat(b'{')?;
        self.space();
        if self.eat(b'}').is_some() {
            return Some(());
        }
        loop {
            self.space();
            self.eat(b'"')?;
            let name = self.string()?;
            self.space();
            self.eat(b':')?;
            self.space();
            read(self, name)?;
            self.space();
            if self.eat(b',').is_none() {
                return self.eat(b'}');
            }
        }
    }

    /// Reads a list: `read` has to read each item.
    pub(crate) fn list(&mut self, mut read: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        self.eat(b'[')?;
        self.space();
        if self.eat(b']').is_some() {
            return Some(());
        }
        loop {
            self.space();
            read(self)?;
            self.space();
            if self.eat(b',').is_none() {
                return self.eat(b']');
            }
        }
    }

    /// Passes a value that may nest so deep.
    fn value(&mut self, depth: usize) -> Option<()> {
        match self.peek()? {
            b'"' => {
                self.at += 1;
                self.string().map(drop)
            }
            b'{' => {
                let depth = depth.checked_sub(1)?;
                self.object(|cursor, _| cursor.value(depth))
            }
            b'[' => {
                let depth = depth.checked_sub(1)?;
                self.list(|cursor| cursor.value(depth))
            }
            b't' => self.word(b"true"),
            b'f' => self.word(b"false"),
            b'n' => self.word(b"null"),
            _ => self.number(),
        }
    }

    #[inline]
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    #[inline]
    fn space(&mut self) {
        // Seldom any.
        if self.peek().is_some_and(|byte| byte <= b' ') {
            self.spaces();
        }
    }

    fn spaces(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    #[inline]
    fn eat(&mut self, wanted: u8) -> Option<()> {
        (self.peek() == Some(wanted)).then(|| self.at += 1)
    }

    fn word(&mut self, word: &[u8]) -> Option<()> {
        self.text.as_bytes()[self.at..].starts_with(word).then(|| self.at += word.len())
    }

    /// Behind the opening quote: passes the rest of the string, and gives what is in it.
    fn string(&mut self) -> Option<&'a str> {
        let (bytes, from) = (self.text.as_bytes(), self.at);
        self.escaped = false;
        // Names, and most words, are short and have no escapes in them.
        let mut at = from;
        while let Some(eight) = bytes.get(at..).and_then(<[u8]>::first_chunk) {
            if let Some(found) = special(*eight) {
                at += found;
                if bytes.get(at) == Some(&b'"') {
                    self.at = at + 1;
                    return self.text.get(from..at);
                }
                break;
            }
            at += 8;
            if at - from >= LONG {
                break;
            }
        }
        self.at = at;
        self.string_from(from)
    }

    /// In a string that began at `from`: passes the rest of it.
    fn string_from(&mut self, from: usize) -> Option<&'a str> {
        let bytes = self.text.as_bytes();
        loop {
            self.at += plain(&bytes[self.at..], self.clean);
            let byte = self.peek()?;
            self.at += 1;
            match byte {
                b'"' => return self.text.get(from..self.at - 1),
                b'\\' => {
                    self.escaped = true;
                    let escape = self.peek()?;
                    self.at += 1;
                    match escape {
                        b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => {}
                        b'u' => {
                            let digits = bytes.get(self.at..self.at + 4)?;
                            if !digits.iter().all(u8::is_ascii_hexdigit) {
                                return None;
                            }
                            self.at += 4;
                        }
                        _ => return None,
                    }
                }
                // A control character.
                _ => return None,
            }
        }
    }

    fn number(&mut self) -> Option<()> {
        let _ = self.eat(b'-');
        if self.eat(b'0').is_none() {
            self.digits()?;
        }
        if self.eat(b'.').is_some() {
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        Some(())
    }

    /// At least one.
    fn digits(&mut self) -> Option<()> {
        let from = self.at;
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        (self.at > from).then_some(())
    }
}

/// The fields of an object that have been read, by their numbers: one that stands there twice is out
/// of the ordinary.
#[derive(Default)]
pub(crate) struct Seen(u16);

impl Seen {
    /// `value`, which was read for the field number `field`, when it is the first one.
    pub(crate) fn first<T>(&mut self, field: u8, value: Option<T>) -> Option<T> {
        let before = self.0;
        self.0 |= 1 << field;
        value.filter(|_| before != self.0)
    }

    /// Whether the field number `field` was there.
    pub(crate) fn has(&self, field: u8) -> bool {
        self.0 & (1 << field) != 0
    }
}

/// Whether the escapes of a string, which are well-formed, say characters that there are: half of a
/// surrogate pair is none.
fn is_sound(mut inner: &[u8]) -> bool {
    let unit = |bytes: &[u8]| {
        let digits = std::str::from_utf8(bytes.strip_prefix(b"\\u")?.get(..4)?).ok()?;
        u16::from_str_radix(digits, 16).ok()
    };
    while let Some(at) = memchr::memchr(b'\\', inner) {
        inner = &inner[at..];
        let passed = match unit(inner) {
            None => 2,
            Some(0xd800..=0xdbff) => match unit(&inner[6..]) {
                Some(0xdc00..=0xdfff) => 12,
                _ => return false,
            },
            Some(0xdc00..=0xdfff) => return false,
            Some(_) => 6,
        };
        inner = &inner[passed..];
    }
    true
}

/// How many bytes come before a quote, a backslash or, unless the text is `clean` of them, a
/// control character.
pub(crate) fn plain(bytes: &[u8], clean: bool) -> usize {
    let mut at = 0;
    while let Some(eight) = bytes.get(at..).and_then(<[u8]>::first_chunk::<8>) {
        if clean && at >= LONG {
            let rest = &bytes[at..];
            return at + memchr::memchr2(b'"', b'\\', rest).unwrap_or(rest.len());
        }
        if let Some(found) = special(*eight) {
            return at + found;
        }
        at += 8;
    }
    let rest = &bytes[at..];
    let special = |byte: &u8| *byte < b' ' || matches!(byte, b'"' | b'\\');
    at + rest.iter().position(special).unwrap_or(rest.len())
}

/// The first of eight bytes that is a quote, a backslash or a control character.
#[inline]
fn special(eight: [u8; 8]) -> Option<usize> {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    const HIGH: u64 = u64::from_le_bytes([0x80; 8]);
    // The lowest bit that is set tells the first byte that is zero.
    let zero = |eight: u64| eight.wrapping_sub(ONES) & !eight;
    let eight = u64::from_le_bytes(eight);
    let quote = zero(eight ^ u64::from_le_bytes([b'"'; 8]));
    let slash = zero(eight ^ u64::from_le_bytes([b'\\'; 8]));
    let control = eight.wrapping_sub(u64::from_le_bytes([b' '; 8])) & !eight;
    let found = (quote | slash | control) & HIGH;
    (found != 0).then(|| found.trailing_zeros() as usize / 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sound_is_what_serde_can_read() {
        for text in [
            r#""""#,
            r#""plain""#,
            r#""\n\"\\u00e9""#,
            r#""\u00e9\u0000""#,
            r#""\ud83d\ude00!""#,
            r#""\uD83D\uDE00\uD83D\uDE00""#,
            r#""\ud83d""#,
            r#""\ud83d\n""#,
            r#""\ud83d\u0041""#,
            r#""\ud83d\ud83d\ude00""#,
            r#""\ude00""#,
            r#""\\ud83d""#,
        ] {
            let sound = Cursor::new(text.as_bytes()).unwrap().sound().is_some();
            assert_eq!(sound, serde_json::from_str::<String>(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn counts_are_what_serde_reads() {
        for text in [
            "0",
            "7",
            "10",
            "00",
            "01",
            "-1",
            "-0",
            "1.0",
            "1e2",
            "1E2",
            "18446744073709551615",
            "18446744073709551616",
            "x",
            "",
            "null",
            "true",
        ] {
            let mut cursor = Cursor::new(text.as_bytes()).unwrap();
            let read = cursor.count().filter(|_| cursor.is_over());
            let wanted = serde_json::from_str::<Option<u64>>(text).ok();
            // What serde reads besides is left to it.
            assert!(read == wanted || read.is_none(), "{text}");
            assert_eq!(
                read.is_some(),
                text == "null" || text.parse::<u64>().is_ok() && wanted.is_some()
            );
        }
    }
}
