//! A tolerant walk over JSON and what resembles it.
//!
//! Provider errors arrive as JSON, as the `repr` of a Python dict, as a JavaScript inspection
//! with bare keys, cut off, or with stray commas. One pull parser reads them all, in one walk,
//! without recursion and without allocating: it yields what it understands and skips the rest.

use std::borrow::Cow;

/// What the walk met.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Item<'a> {
    /// An object or array began under `key` (empty inside arrays and at the root).
    Open { key: &'a str, array: bool },
    /// The innermost object or array ended.
    Close,
    /// A string.
    Text { key: &'a str, text: Raw<'a> },
    /// A number, `true`, `null`, `None` or any other bare word.
    Word { key: &'a str, word: &'a str },
}

/// A string as it stands in the source, between its quotes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Raw<'a> {
    raw: &'a str,
    escaped: bool,
}

impl<'a> Raw<'a> {
    /// The string without escapes. Borrowed when there are none.
    pub(crate) fn text(self) -> Cow<'a, str> {
        if self.escaped { Cow::Owned(unescape(self.raw)) } else { Cow::Borrowed(self.raw) }
    }

    pub(crate) fn is_empty(self) -> bool {
        self.raw.is_empty()
    }
}

/// The walk. Yields items until the text ends; [`depth`](Walk::depth) tells when a root closed.
#[derive(Debug)]
pub(crate) struct Walk<'a> {
    text: &'a str,
    at: usize,
    key: &'a str,
    depth: usize,
}

impl<'a> Walk<'a> {
    pub(crate) fn new(text: &'a str) -> Self {
        Self { text, at: 0, key: "", depth: 0 }
    }

    /// How many objects and arrays are open.
    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    /// Bytes read so far.
    pub(crate) fn position(&self) -> usize {
        self.at
    }

    fn skip_space(&mut self) {
        let bytes = self.text.as_bytes();
        while let Some(byte) = bytes.get(self.at) {
            match byte {
                b' ' | b'\t' | b'\r' | b'\n' => self.at += 1,
                _ => break,
            }
        }
    }

    /// Whether a colon follows: what was read is a key. Eats it.
    fn colon(&mut self) -> bool {
        let before = self.at;
        self.skip_space();
        if self.text.as_bytes().get(self.at) == Some(&b':') {
            self.at += 1;
            true
        } else {
            self.at = before;
            false
        }
    }

    /// The string that begins at the quote under the cursor.
    fn string(&mut self, quote: u8) -> Raw<'a> {
        let bytes = self.text.as_bytes();
        let start = self.at + 1;
        let mut at = start;
        let mut escaped = false;
        loop {
            let Some(found) = bytes.get(at..).and_then(|rest| memchr::memchr2(quote, b'\\', rest))
            else {
                // Cut off: what there is.
                self.at = bytes.len();
                return Raw { raw: self.text.get(start..).unwrap_or(""), escaped };
            };
            at += found;
            if bytes[at] == quote {
                self.at = at + 1;
                return Raw { raw: &self.text[start..at], escaped };
            }
            escaped = true;
            // The escaped character may be several bytes long; the next search starts inside it
            // and can not mistake its bytes for a quote, because those are ASCII.
            at += 2;
        }
    }
}

impl<'a> Iterator for Walk<'a> {
    type Item = Item<'a>;

    fn next(&mut self) -> Option<Item<'a>> {
        loop {
            self.skip_space();
            let byte = *self.text.as_bytes().get(self.at)?;
            match byte {
                b'{' | b'[' => {
                    self.at += 1;
                    self.depth += 1;
                    return Some(Item::Open {
                        key: std::mem::take(&mut self.key),
                        array: byte == b'[',
                    });
                }
                b'}' | b']' => {
                    self.at += 1;
                    self.depth = self.depth.saturating_sub(1);
                    self.key = "";
                    return Some(Item::Close);
                }
                b'"' | b'\'' => {
                    let text = self.string(byte);
                    if self.colon() {
                        self.key = text.raw;
                        continue;
                    }
                    return Some(Item::Text { key: std::mem::take(&mut self.key), text });
                }
                // A comma after a key is a stray one: its value is still to come.
                b',' | b':' => self.at += 1,
                // An escape outside a string, as in the `repr` of bytes: `\n` between tokens.
                b'\\' => {
                    self.at += 1;
                    if matches!(self.text.as_bytes().get(self.at), Some(b'n' | b'r' | b't')) {
                        self.at += 1;
                    }
                }
                _ => {
                    let rest = &self.text[self.at..];
                    let end = rest
                        .bytes()
                        .position(|b| b",:{}[]\"' \t\r\n\\".contains(&b))
                        .unwrap_or(rest.len());
                    let word = &rest[..end];
                    self.at += end;
                    if self.colon() {
                        self.key = word;
                        continue;
                    }
                    return Some(Item::Word { key: std::mem::take(&mut self.key), word });
                }
            }
        }
    }
}

/// `raw` with JSON's and Python's escapes resolved; unknown ones are kept without their slash.
pub(crate) fn unescape(raw: &str) -> String {
    let mut out = String::with_capacity(raw.len());
    let mut rest = raw;
    while let Some(slash) = memchr::memchr(b'\\', rest.as_bytes()) {
        out.push_str(&rest[..slash]);
        let mut chars = rest[slash + 1..].chars();
        match chars.next() {
            None => return out,
            Some('n') => out.push('\n'),
            Some('r') => out.push('\r'),
            Some('t') => out.push('\t'),
            Some('b' | 'f') => out.push(' '),
            Some('u') => {
                if let Some((c, used)) = unicode(chars.as_str()) {
                    out.push(c);
                    rest = &chars.as_str()[used..];
                    continue;
                }
                out.push('u');
            }
            Some('x') => {
                let hex = chars.as_str().get(..2).and_then(|hex| u8::from_str_radix(hex, 16).ok());
                if let Some(byte) = hex {
                    out.push(char::from(byte));
                    rest = &chars.as_str()[2..];
                    continue;
                }
                out.push('x');
            }
            Some(other) => out.push(other),
        }
        rest = chars.as_str();
    }
    out.push_str(rest);
    out
}

/// The character of `XXXX` or `XXXX\uXXXX`, and how many bytes it took.
fn unicode(text: &str) -> Option<(char, usize)> {
    let unit =
        |from: usize| text.get(from..from + 4).and_then(|hex| u32::from_str_radix(hex, 16).ok());
    let first = unit(0)?;
    if !(0xD800..0xDC00).contains(&first) {
        return Some((char::from_u32(first).unwrap_or('\u{FFFD}'), 4));
    }
    if text.get(4..6) == Some("\\u")
        && let Some(second) = unit(6).filter(|unit| (0xDC00..0xE000).contains(unit))
    {
        let code = 0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00);
        return Some((char::from_u32(code).unwrap_or('\u{FFFD}'), 10));
    }
    Some(('\u{FFFD}', 4))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn flat(text: &str) -> String {
        Walk::new(text)
            .map(|item| match item {
                Item::Open { key, array } => format!("{key}{} ", if array { '[' } else { '{' }),
                Item::Close => "} ".to_owned(),
                Item::Text { key, text } => format!("{key}=`{}` ", text.text()),
                Item::Word { key, word } => format!("{key}={word} "),
            })
            .collect::<String>()
            .trim_end()
            .to_owned()
    }

    #[test]
    fn reads_json_and_its_relatives_alike() {
        let expected = "{ error{ code=`x` n=1 none=null } }";
        assert_eq!(flat(r#"{"error":{"code":"x","n":1,"none":null}}"#), expected);
        assert_eq!(flat("{'error': {'code': 'x', 'n': 1, 'none': null}}"), expected);
        assert_eq!(flat("{ error: { code: 'x', n: 1, none: null } }"), expected);
        assert_eq!(flat(r#",{"error":,{"code":"x",,"n":1,"none":null},}"#), expected);
        assert_eq!(flat(r#"{"a":["b",2]} {"c":true}"#), "{ a[ =`b` =2 } } { c=true }");
    }

    #[test]
    fn a_cut_text_yields_what_there_is() {
        assert_eq!(flat(r#"{"error":{"message":"cut he"#), "{ error{ message=`cut he`");
        assert_eq!(flat(r#"{"a":"b\"#), "{ a=`b`");
    }

    #[test]
    fn escapes() {
        for (raw, expected) in [
            (r#"a\"b\\c\nd"#, "a\"b\\c\nd"),
            (r"\u00e9 \ud83d\ude00 \ud83d", "é 😀 \u{FFFD}"),
            (r"it\'s \xe9", "it's é"),
            (r"\q \u12", "q u12"),
        ] {
            assert_eq!(unescape(raw), expected, "{raw}");
        }
    }

    proptest! {
        #[test]
        fn ends_on_any_text(text in "\\PC{0,400}") {
            prop_assert!(Walk::new(&text).count() <= text.len() + 1);
        }

        #[test]
        fn agrees_with_a_strict_parser(text in "[a-z\\\\\"'\n{}:,é😀]{0,60}") {
            let json = serde_json::json!({ "k": &text }).to_string();
            let items: Vec<_> = Walk::new(&json).collect();
            prop_assert_eq!(items.len(), 3);
            let Item::Text { key: "k", text: raw } = items[1] else { panic!("{items:?}") };
            prop_assert_eq!(raw.text(), text);
        }
    }
}
