//! JSON text that has been checked.

use std::borrow::Cow;

use bytes::Bytes;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use steadfast_chat::{
    RawJson,
    surrogates::{read, repaired},
};

/// The text of one JSON value, checked, without white space around it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Raw<'a>(&'a str);

impl<'a> Raw<'a> {
    /// A null.
    pub(crate) const NULL: Raw<'static> = Raw("null");

    /// A value that is there, whatever it is.
    pub(crate) const TRUE: Raw<'static> = Raw("true");

    /// The text.
    pub(crate) fn get(self) -> &'a str {
        self.0
    }

    /// The text, to be kept.
    pub(crate) fn kept(self) -> RawJson {
        RawJson::from_checked(self.0)
    }

    /// The text, to be kept with the body that it was read from.
    pub(crate) fn kept_in(self, body: &Bytes) -> RawJson {
        RawJson::from_checked_part(self.0, body)
    }

    /// The text, to be kept for any dialect: without halves of surrogate pairs, which some vendors
    /// refuse.
    pub(crate) fn repaired(self) -> RawJson {
        RawJson::from_checked(&repaired(self.0))
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

    /// The text of a string. Most have no escapes, and need not be parsed. Half of a surrogate pair
    /// that stands alone is U+FFFD.
    pub(crate) fn text(self) -> Result<Cow<'a, str>, serde_json::Error> {
        match self.inside().filter(|text| memchr::memchr(b'\\', text.as_bytes()).is_none()) {
            Some(text) => Ok(Cow::Borrowed(text)),
            None => read(self.0).map(Cow::Owned),
        }
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Raw<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        <&RawValue>::deserialize(deserializer).map(|raw| Raw(raw.get()))
    }
}
