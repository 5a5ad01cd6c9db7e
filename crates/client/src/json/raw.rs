//! JSON text that has been checked, walked without being parsed again.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use steadfast_chat::RawJson;

use super::cursor::{Cursor, plain};

/// The text of one JSON value, checked, without white space around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Raw<'a>(pub(super) &'a str);

impl<'a> Raw<'a> {
    /// A null.
    pub(crate) const NULL: Raw<'static> = Raw("null");

    /// `text` when it is one JSON value.
    ///
    /// # Errors
    ///
    /// What serde says of it.
    pub(crate) fn read(text: &'a [u8]) -> Result<Self, serde_json::Error> {
        match Self::check(text) {
            Some(raw) => Ok(raw),
            None => serde_json::from_slice::<&RawValue>(text).map(|raw| Raw(raw.get())),
        }
    }

    /// `text` when it is surely one JSON value; `None` when it is not or nests too deep to say.
    pub(crate) fn check(text: &'a [u8]) -> Option<Self> {
        let mut cursor = Cursor::new(text)?;
        let raw = cursor.raw()?;
        cursor.is_over().then_some(raw)
    }

    /// The text.
    pub(crate) fn get(self) -> &'a str {
        self.0
    }

    /// The text, to be kept.
    pub(crate) fn kept(self) -> RawJson {
        RawJson::from_checked(self.0)
    }

    /// Whether it is an object.
    pub(crate) fn is_object(self) -> bool {
        self.0.starts_with('{')
    }

    /// Whether it is a list.
    pub(crate) fn is_list(self) -> bool {
        self.0.starts_with('[')
    }

    /// What stands between the quotes of a string, as it is written.
    pub(crate) fn inside(self) -> Option<&'a str> {
        self.0.strip_prefix('"')?.strip_suffix('"')
    }

    /// The words of a string; `None` when it is none, or says a character that there is not.
    pub(crate) fn words(self) -> Option<Cow<'a, str>> {
        let inner = self.inside()?;
        if memchr::memchr(b'\\', inner.as_bytes()).is_none() {
            return Some(Cow::Borrowed(inner));
        }
        serde_json::from_str(self.0).ok().map(Cow::Owned)
    }

    /// The members of an object; none of anything else.
    pub(crate) fn members(self) -> impl Iterator<Item = (Raw<'a>, Raw<'a>)> {
        let mut walk = Walk::of(self, self.is_object());
        std::iter::from_fn(move || Some((walk.next()?, walk.next()?)))
    }

    /// The items of a list; none of anything else.
    pub(crate) fn items(self) -> impl Iterator<Item = Raw<'a>> {
        let mut walk = Walk::of(self, self.is_list());
        std::iter::from_fn(move || walk.next())
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Raw<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        <&RawValue>::deserialize(deserializer).map(|raw| Raw(raw.get()))
    }
}

/// The values of checked text, one after the other.
struct Walk<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Walk<'a> {
    fn of(raw: Raw<'a>, whole: bool) -> Self {
        // Behind the bracket.
        Self { text: if whole { raw.0 } else { "" }, at: 1 }
    }

    fn next(&mut self) -> Option<Raw<'a>> {
        let bytes = self.text.as_bytes();
        while matches!(bytes.get(self.at)?, b' ' | b'\t' | b'\n' | b'\r' | b',' | b':') {
            self.at += 1;
        }
        let from = self.at;
        self.at = end(bytes, from);
        // An empty value is the bracket at the end.
        self.text.get(from..self.at).filter(|text| !text.is_empty()).map(Raw)
    }
}

/// Where the value at `at` of checked text ends.
fn end(bytes: &[u8], mut at: usize) -> usize {
    let mut depth = 0_usize;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => at = string_end(bytes, at + 1),
            b'{' | b'[' => {
                depth += 1;
                at += 1;
                continue;
            }
            b'}' | b']' => {
                // The bracket around a scalar.
                if depth == 0 {
                    return at;
                }
                depth -= 1;
                at += 1;
            }
            b',' | b':' | b' ' | b'\t' | b'\n' | b'\r' if depth > 0 => {
                at += 1;
                continue;
            }
            _ => {
                while bytes.get(at).is_some_and(|byte| {
                    !matches!(byte, b',' | b'}' | b']' | b' ' | b'\t' | b'\n' | b'\r')
                }) {
                    at += 1;
                }
            }
        }
        if depth == 0 {
            return at;
        }
    }
    at
}

/// Behind the quote that ends the string which `at` is in.
fn string_end(bytes: &[u8], mut at: usize) -> usize {
    loop {
        at += plain(bytes.get(at..).unwrap_or_default(), true);
        match bytes.get(at) {
            Some(b'"') => return at + 1,
            // What follows a backslash is no end.
            Some(_) => at += 2,
            None => return bytes.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    #[test]
    fn says_what_serde_says() {
        for text in [
            "",
            " ",
            "null",
            "nul",
            "true ",
            "\n[1 ,2\t]",
            "[1,]",
            "[,1]",
            "{}",
            "{ }",
            "[ ]",
            "{\"a\":1}",
            "{\"a\" : 1 , \"b\":[{}]}",
            "{\"a\":1,}",
            "{a:1}",
            "{\"a\"}",
            "\"\\u12aF\"",
            "\"\\u12g4\"",
            "\"\\ud800\"",
            "\"\\x\"",
            "\"\\",
            "\"a",
            "\"a\nb\"",
            "\"\u{7f}\"",
            "0",
            "-0",
            "01",
            "-",
            "1.",
            ".5",
            "1.5e+10",
            "1e",
            "1E-",
            "+1",
            "1 2",
            "[1]]",
            "\u{feff}1",
            "{\"a\":tru}",
            "\u{b}1",
            "[\"\\\"]\"]",
        ] {
            let wanted = serde_json::from_str::<&RawValue>(text).ok().map(RawValue::get);
            assert_eq!(Raw::check(text.as_bytes()).map(Raw::get), wanted, "{text:?}");
        }
        assert!(Raw::check(b"\"\xff\"").is_none());
        let deep = "[".repeat(90) + &"]".repeat(90);
        assert!(Raw::check(deep.as_bytes()).is_none());
        assert_eq!(Raw::read(deep.as_bytes()).unwrap().get(), deep);
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            "\\PC{0,40}".prop_map(Value::from),
            proptest::collection::vec(
                prop::sample::select(vec!['"', '\\', '\n', '\u{1}', 'a', ']', '}', '{', '[']),
                0..20
            )
            .prop_map(|chars| Value::from(chars.into_iter().collect::<String>())),
        ];
        leaf.prop_recursive(4, 40, 6, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                proptest::collection::vec(("\\PC{0,6}", inner), 0..6)
                    .prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
            ]
        })
    }

    /// The same value by walking.
    fn walked(raw: Raw<'_>) -> Value {
        if raw.is_object() {
            let member =
                |(name, of): (Raw<'_>, Raw<'_>)| (name.words().unwrap().into(), walked(of));
            return Value::Object(raw.members().map(member).collect());
        }
        if raw.is_list() {
            return raw.items().map(walked).collect();
        }
        match raw.words() {
            Some(words) => Value::from(words),
            None => serde_json::from_str(raw.get()).unwrap(),
        }
    }

    proptest! {
        #[test]
        fn walking_finds_what_parsing_finds(value in value(), pretty in any::<bool>()) {
            let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) };
            let text = text.unwrap();
            let raw = Raw::check(text.as_bytes()).unwrap();
            let read: Value = serde_json::from_str(&text).unwrap();
            prop_assert_eq!(walked(raw), read);
        }

        #[test]
        fn agrees_with_serde_about_damaged_text(value in value(), at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<bool>()) {
            let mut text = serde_json::to_vec(&value).unwrap();
            let at = at.index(text.len());
            if cut { text.truncate(at) } else { text[at] = byte }
            let wanted = serde_json::from_slice::<&RawValue>(&text).ok().map(RawValue::get);
            prop_assert_eq!(Raw::check(&text).map(Raw::get), wanted);
        }

        #[test]
        fn never_panics(text in proptest::collection::vec(prop_oneof![
            any::<u8>(), Just(b'"'), Just(b'\\'), Just(b'{'), Just(b'}'), Just(b'['), Just(b','), Just(b':'),
        ], 0..80)) {
            let wanted = serde_json::from_slice::<&RawValue>(&text).is_ok();
            prop_assert_eq!(Raw::check(&text).is_some(), wanted);
        }
    }
}
