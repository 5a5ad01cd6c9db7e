//! What is known of tools, as data.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::PolicyError;

/// What a tool does to the world. In configuration its name in lower case: `read_only`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Kind {
    /// Nobody knows, or it depends: a shell. A new call of it that succeeds and says something new,
    /// or nothing, may have changed the world and is taken for it; more of the same is not.
    #[default]
    Other,
    /// It reads.
    ReadOnly,
    /// It changes something: after its success the world is another, and counts of what was seen
    /// before begin anew.
    Mutating,
    /// It changes a file, named in its arguments; counted for each file.
    Edit,
    /// It checks whether something has happened yet.
    Poll,
}

impl Kind {
    /// The kind of that name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        let name = serde::de::value::StrDeserializer::<serde::de::value::Error>::new(name);
        Self::deserialize(name).ok()
    }
}

/// One tool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ToolSpec {
    /// Its name; compared without regard to case.
    pub name: String,
    /// What else it is called. All its names are counted together.
    pub aliases: Vec<String>,
    /// What it does to the world.
    pub kind: Kind,
    /// How often a task may call it; `None` for [`Limits::per_tool`](crate::Limits::per_tool), 0
    /// for never, [`u32::MAX`] for as often as it likes.
    pub limit: Option<u32>,
}

impl ToolSpec {
    /// A tool of this kind.
    pub fn new(name: impl Into<String>, kind: Kind) -> Self {
        Self { name: name.into(), kind, ..Self::default() }
    }

    /// With other names.
    #[must_use]
    pub fn with_aliases<A: Into<String>>(mut self, aliases: impl IntoIterator<Item = A>) -> Self {
        self.aliases = aliases.into_iter().map(Into::into).collect();
        self
    }

    /// Whether that is one of its names.
    pub fn is_called(&self, name: &str) -> bool {
        let mut names = std::iter::once(&self.name).chain(&self.aliases);
        names.any(|known| known.eq_ignore_ascii_case(name))
    }

    /// With a limit of its own.
    #[must_use]
    pub fn with_limit(mut self, limit: u32) -> Self {
        self.limit = Some(limit);
        self
    }
}

/// Every name in lower case, with its index in the table.
pub(crate) fn index(tools: &[ToolSpec]) -> Result<HashMap<Box<str>, usize>, PolicyError> {
    let mut index = HashMap::new();
    for (at, tool) in tools.iter().enumerate() {
        if tool.name.is_empty() {
            return Err(PolicyError::Unnamed(at));
        }
        for name in std::iter::once(&tool.name).chain(&tool.aliases) {
            let name = name.to_ascii_lowercase();
            if index.insert(name.as_str().into(), at).is_some_and(|other| other != at) {
                return Err(PolicyError::TwiceNamed(name));
            }
        }
    }
    Ok(index)
}
