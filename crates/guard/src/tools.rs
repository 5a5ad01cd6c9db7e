//! The tools that the guard knows, as data.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::PolicyError;

/// What a tool changes. In the configuration its name in lower case: `read_only`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Kind {
    /// Not known, or it depends on the arguments: a shell. A new call of it that succeeds with a new
    /// result, or an empty one, counts as a change; a repeated one does not.
    #[default]
    Other,
    /// It reads.
    ReadOnly,
    /// It changes something: after its success, counts of earlier calls restart.
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
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct ToolSpec {
    /// Its name; compared without regard to case.
    pub name: String,
    /// What else it is called. All its names are counted together.
    pub aliases: Vec<String>,
    /// What it changes.
    pub kind: Kind,
    /// How often a task may call it, 0 for never: any task, named or not. Without it the limit is
    /// [`per_tool`](crate::TaskLimits::per_tool), where that is set.
    pub limit: Option<u32>,
    /// Its limit in place of [`per_tool`](crate::TaskLimits::per_tool), where that is set: of the
    /// built-in tools.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub(crate) usual: Option<u32>,
}

/// The limits of one tool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ToolLimits {
    own: Option<u32>,
    usual: Option<u32>,
}

impl ToolLimits {
    /// How often a task may call it that may call one tool `per_tool` times.
    pub(crate) fn with(self, per_tool: Option<u32>) -> Option<u32> {
        self.own.or(per_tool.map(|any| self.usual.unwrap_or(any)))
    }

    /// Whether it is another than that of any tool.
    pub(crate) const fn is_own(self) -> bool {
        self.own.is_some() || self.usual.is_some()
    }
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

    pub(crate) const fn limits(&self) -> ToolLimits {
        ToolLimits { own: self.limit, usual: self.usual }
    }

    /// With a limit of its own.
    #[must_use]
    pub fn with_limit(mut self, limit: u32) -> Self {
        self.limit = Some(limit);
        self
    }
}

/// The tools of a configuration, and the built-in ones except for names that it uses.
#[cfg(feature = "serde")]
pub(crate) fn read<'de, D>(deserializer: D) -> Result<Vec<ToolSpec>, D::Error>
where
    D: serde::Deserializer<'de>,
{
    let own = Vec::<ToolSpec>::deserialize(deserializer)?;
    let is_free = |name: &String| !own.iter().any(|tool| tool.is_called(name));
    let built_in = crate::data::tools().into_iter().filter_map(|mut spec| {
        let names = std::iter::once(spec.name).chain(spec.aliases);
        let mut free = names.filter(is_free);
        spec.name = free.next()?;
        spec.aliases = free.collect();
        Some(spec)
    });
    let mut all: Vec<ToolSpec> = built_in.collect();
    all.extend(own);
    Ok(all)
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
