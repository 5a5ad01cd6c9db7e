//! JSON text that has been checked, taken apart without being parsed again.
//!
//! serde checks a body once. To have it parse each level of a request anew moves a call through the
//! gateway by some 5 %.

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use steadfast_chat::RawJson;

/// The text of one JSON value, checked, without white space around it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Raw<'a>(&'a str);

impl<'a> Raw<'a> {
    /// A null.
    pub(crate) const NULL: Raw<'static> = Raw("null");

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

    /// What stands between the quotes of a string without escapes.
    pub(crate) fn unescaped(self) -> Option<&'a str> {
        self.inside().filter(|inside| memchr::memchr(b'\\', inside.as_bytes()).is_none())
    }

    /// The text of a string.
    pub(crate) fn text(self) -> Result<String, serde_json::Error> {
        self.unescaped().map_or_else(|| serde_json::from_str(self.0), |text| Ok(text.to_owned()))
    }

    /// The names of an object's members, and their values; none of anything else.
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
        let rest = bytes.get(at..).unwrap_or_default();
        let Some(found) = memchr::memchr2(b'"', b'\\', rest) else { return bytes.len() };
        at += found + 1;
        if rest[found] == b'"' {
            return at;
        }
        // What follows a backslash is no end.
        at += 1;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

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
            let member = |(name, of): (Raw<'_>, Raw<'_>)| (name.text().unwrap(), walked(of));
            return Value::Object(raw.members().map(member).collect());
        }
        if raw.is_list() {
            return raw.items().map(walked).collect();
        }
        serde_json::from_str(raw.get()).unwrap()
    }

    proptest! {
        #[test]
        fn walking_finds_what_parsing_finds(value in value(), pretty in any::<bool>()) {
            let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) };
            let text = text.unwrap();
            let raw: Raw<'_> = serde_json::from_str(&text).unwrap();
            let read: Value = serde_json::from_str(&text).unwrap();
            prop_assert_eq!(walked(raw), read);
        }
    }
}
