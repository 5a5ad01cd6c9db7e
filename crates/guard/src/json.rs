//! Hashes of JSON texts, without building a tree.

use std::{
    fmt,
    hash::{BuildHasher, Hash, Hasher},
    io::Write,
};

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use crate::{
    path::canonical,
    signature::Compiled,
    volatile::{is_volatile, stable},
};

/// What a text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    /// Arguments: every digit counts, but neither the order of keys nor the spelling of a path.
    Arguments,
    /// A result: neither the order of keys nor volatile values count.
    Result,
}

/// The hash of a JSON text; `None` when it is not JSON.
pub(crate) fn hash(c: &Compiled, reading: Reading, text: &str) -> Option<u64> {
    let mut json = serde_json::Deserializer::from_str(text);
    let hash = Node { c, reading, field: Field::Plain }.deserialize(&mut json).ok()?;
    json.end().ok().map(|()| hash)
}

/// The kind of a field, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Plain,
    /// It is a path.
    Path,
    /// It is different each time.
    Volatile,
}

/// A value.
#[derive(Clone, Copy)]
struct Node<'a> {
    c: &'a Compiled,
    reading: Reading,
    field: Field,
}

impl Node<'_> {
    fn hash(self, value: impl Hash) -> u64 {
        if self.field == Field::Volatile { 0 } else { self.c.hash(value) }
    }

    fn number(self, number: fmt::Arguments<'_>) -> u64 {
        // A longer number would be truncated.
        let mut digits = [0; 40];
        let mut rest = &mut digits[..];
        let _ = rest.write_fmt(number);
        let left = rest.len();
        let text = std::str::from_utf8(&digits[..digits.len() - left]).unwrap_or("");
        let volatile = self.reading == Reading::Result && is_volatile(text, "");
        self.hash((2_u8, if volatile { "" } else { text }))
    }
}

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = u64;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<u64, D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<u64, E> {
        Ok(self.hash(0_u8))
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<u64, E> {
        Ok(self.hash((1_u8, value)))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<u64, E> {
        Ok(self.number(format_args!("{value}")))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<u64, E> {
        Ok(self.number(format_args!("{value}")))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<u64, E> {
        Ok(self.number(format_args!("{value:?}")))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<u64, E> {
        Ok(match (self.reading, self.field) {
            (_, Field::Volatile) => 0,
            (Reading::Arguments, Field::Path) => {
                self.c.hash((3_u8, canonical(text, &self.c.policy.roots)))
            }
            (Reading::Arguments, _) => self.c.hash((3_u8, text)),
            (Reading::Result, _) => {
                let mut hash = self.c.hasher.build_hasher();
                stable(text, |piece| piece.hash(&mut hash));
                hash.finish()
            }
        })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<u64, A::Error> {
        let mut hash = self.c.hasher.build_hasher();
        let mut length = 0_usize;
        while let Some(item) = items.next_element_seed(Node { field: Field::Plain, ..self })? {
            hash.write_u64(item);
            length += 1;
        }
        (4_u8, length).hash(&mut hash);
        Ok(hash.finish())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<u64, A::Error> {
        let mut sum = 0_u64;
        while let Some((name, field)) = fields.next_key_seed(Name(self))? {
            let value = fields.next_value_seed(Node { field, ..self })?;
            // A sum does not depend on the order of the fields.
            sum = sum.wrapping_add(self.c.hash((name, value)));
        }
        Ok(self.c.hash((5_u8, sum)))
    }
}

/// A field's name.
struct Name<'a>(Node<'a>);

impl<'de> DeserializeSeed<'de> for Name<'_> {
    type Value = (u64, Field);

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Self::Value, D::Error> {
        json.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for Name<'_> {
    type Value = (u64, Field);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a field")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Self::Value, E> {
        let Node { c, reading, .. } = self.0;
        let policy = &c.policy;
        let field = match reading {
            Reading::Arguments if policy.path_fields.iter().any(|known| known == name) => {
                Field::Path
            }
            Reading::Result
                if policy.volatile_fields.iter().any(|known| known.eq_ignore_ascii_case(name)) =>
            {
                Field::Volatile
            }
            _ => Field::Plain,
        };
        Ok((c.hash(name), field))
    }
}
