//! JSON kept as it was written.

use std::fmt;

use bytes::Bytes;
use bytestring::ByteString;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::DeserializeOwned};
use serde_json::{Map, Value, value::RawValue};

use crate::surrogates;

/// Fields of a dialect that this crate has no type for, in their order; usually none, which
/// allocates nothing.
pub type Extra = Option<Box<Map<String, Value>>>;

/// One JSON value as text, exactly as it was written: numbers keep their digits, keys their order.
/// Cheap to clone. Read from a body it is a part of it, and keeps all of it.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct RawJson(ByteString);

/// Text that is not one JSON value.
#[derive(Debug, thiserror::Error)]
#[error("not valid JSON: {0}")]
pub struct InvalidJson(#[from] serde_json::Error);

impl RawJson {
    /// Keeps `text` when it is one JSON value.
    ///
    /// # Errors
    ///
    /// When it is not; the error says where.
    pub fn parse(text: &str) -> Result<Self, InvalidJson> {
        let raw: &RawValue = serde_json::from_str(text)?;
        Ok(Self::from_raw(raw))
    }

    /// Keeps a value that serde has already checked.
    pub fn from_raw(raw: &RawValue) -> Self {
        Self(raw.get().into())
    }

    /// Keeps the text of one JSON value that its reader has checked. Any other text makes requests
    /// that providers refuse.
    #[doc(hidden)]
    pub fn from_checked(text: &str) -> Self {
        Self(text.into())
    }

    /// The same, as a part of `body` where `text` is one: the body is kept, and nothing is copied.
    #[doc(hidden)]
    pub fn from_checked_part(text: &str, body: &Bytes) -> Self {
        let start = text.as_ptr().addr().checked_sub(body.as_ptr().addr());
        let part = start.and_then(|start| {
            let end = start.checked_add(text.len()).filter(|end| *end <= body.len())?;
            ByteString::try_from(body.slice(start..end)).ok()
        });
        part.map_or_else(|| Self::from_checked(text), Self)
    }

    /// Writes `value` as compact JSON.
    pub fn from_value(value: &Value) -> Self {
        Self(value.to_string().into())
    }

    /// The text.
    pub fn get(&self) -> &str {
        &self.0
    }

    /// Reads it into a type. Half of a surrogate pair that stands alone is read as U+FFFD.
    ///
    /// # Errors
    ///
    /// When the value does not have that type's shape.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        surrogates::read(&self.0)
    }

    /// The value as a tree. It was valid JSON when it was read; null when it nests too deep for
    /// serde_json.
    pub fn to_value(&self) -> Value {
        self.read().unwrap_or(Value::Null)
    }
}

impl fmt::Debug for RawJson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RawJson({} bytes)", self.0.len())
    }
}

impl Serialize for RawJson {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let raw: &RawValue = serde_json::from_str(&self.0).map_err(serde::ser::Error::custom)?;
        raw.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for RawJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Box::<RawValue>::deserialize(deserializer).map(|raw| Self::from_raw(&raw))
    }
}

/// For serde's `with`: an [`Extra`] is read by itself, so that what a provider's body could hold is
/// not nested too deep for serde_json inside a message. What is too deep even then is left out.
pub(crate) mod extra {
    use super::{Deserialize, Deserializer, Extra, RawJson, RawValue, Serialize, Serializer};

    pub(crate) fn serialize<S: Serializer>(
        extra: &Extra,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        extra.serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Extra, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        Ok(RawJson::from_raw(&raw).read().ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_every_digit_and_the_order_of_keys() {
        let text = r#"{"b":1.10,"a":12345678901234567890123,"b":[ ]}"#;
        let raw = RawJson::parse(text).unwrap();
        assert_eq!(raw.get(), text);
        assert_eq!(serde_json::to_string(&raw).unwrap(), text);
        assert_eq!(serde_json::from_str::<RawJson>(text).unwrap(), raw);
    }

    #[test]
    fn a_part_of_a_body_is_not_copied_and_any_other_text_is() {
        let body = Bytes::from_static(br#"{"messages":[{"a":"\u00fc"},{}]}"#);
        let text = std::str::from_utf8(&body).unwrap();
        for (part, shared) in
            [(&text[13..27], true), (text, true), (&text[28..30], true), ("{}", false)]
        {
            let raw = RawJson::from_checked_part(part, &body);
            assert_eq!((raw.get(), raw.get().as_ptr() == part.as_ptr()), (part, shared));
        }
        // What ends beyond the body, as a part of it does.
        let raw = RawJson::from_checked_part(&text[13..27], &body.slice(..20));
        assert_eq!(raw.get(), &text[13..27]);
    }

    #[test]
    fn half_of_a_surrogate_pair_is_kept_and_read_as_a_replacement() {
        let text = r#"{"description":"cut \ud83d"}"#;
        let raw = RawJson::parse(text).unwrap();
        assert_eq!(serde_json::to_string(&raw).unwrap(), text);
        assert_eq!(raw.to_value()["description"], "cut \u{fffd}");
    }

    #[test]
    fn the_error_names_the_position() {
        let error = RawJson::parse("{\"a\":}").unwrap_err();
        assert!(error.to_string().contains("column 6"), "{error}");
        assert!(RawJson::parse("1 2").is_err());
    }
}
