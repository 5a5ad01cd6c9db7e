//! What stands at one position of a chain.

use std::{fmt, slice};

use schemars::JsonSchema;
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{SeqAccess, Visitor, value::SeqAccessDeserializer},
};

/// One position of a chain: a provider, or several that are equal and share the calls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum Link {
    /// A provider by its name.
    One(String),
    /// Equal ones.
    Equals(Vec<String>),
}

impl Link {
    /// The names of its providers.
    pub fn names(&self) -> &[String] {
        match self {
            Link::One(name) => slice::from_ref(name),
            Link::Equals(names) => names,
        }
    }

    /// The same without the provider `name`; `None` when that leaves nothing.
    pub(crate) fn without(&self, name: &str) -> Option<Self> {
        let rest: Vec<_> = self.names().iter().filter(|one| *one != name).cloned().collect();
        (!rest.is_empty()).then_some(Link::Equals(rest))
    }
}

impl From<&str> for Link {
    fn from(name: &str) -> Self {
        Link::One(name.to_owned())
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.names().join(" | "))
    }
}

/// Not by trying the variants: so an error says what would be right.
impl<'de> Deserialize<'de> for Link {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Links;

        impl<'de> Visitor<'de> for Links {
            type Value = Link;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a provider, or a list of names of equal ones")
            }

            fn visit_str<E>(self, name: &str) -> Result<Link, E> {
                Ok(name.into())
            }

            fn visit_seq<A: SeqAccess<'de>>(self, names: A) -> Result<Link, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(names)).map(Link::Equals)
            }
        }

        deserializer.deserialize_any(Links)
    }
}
