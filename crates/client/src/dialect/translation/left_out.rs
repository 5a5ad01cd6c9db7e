//! The names of what was left out.

use std::{borrow::Cow, fmt};

use steadfast_chat::ChatRequest;
use steadfast_core::Dialect;

/// The most names that are kept: 32. What is left out of a request of real clients is below ten.
const MAX_NAMES: usize = 32;

/// The longest name of a field that nobody knows, in bytes: 64.
const MAX_NAME: usize = 64;

/// The fields that were left out of a request, or of an answer, because the other dialect has no word
/// for them and the answer can do without: as paths of the caller's dialect, such as `logit_bias` or
/// `messages[].content[text].cache_control`, each once.
///
/// Of an answer it is in the extensions of its head.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    names: Vec<Cow<'static, str>>,
    /// How many there were besides.
    more: usize,
}

impl LeftOut {
    /// Nothing.
    pub(crate) const fn new() -> Self {
        Self { names: Vec::new(), more: 0 }
    }

    /// Adds a field of the table.
    pub(super) fn add(&mut self, name: &'static str) {
        self.push(Cow::Borrowed(name));
    }

    /// Adds a field that is in no row: `name` below the row `parent`. The name is the sender's.
    pub(super) fn add_unknown(&mut self, parent: &str, name: &str) {
        let end = name.char_indices().map(|(at, _)| at).find(|at| *at >= MAX_NAME);
        let name = &name[..end.unwrap_or(name.len())];
        let dot = if parent.is_empty() { "" } else { "." };
        self.push(Cow::Owned(format!("{parent}{dot}{name}")));
    }

    /// Adds what OpenAI's dialect calls `param`, under the name that it has in the dialect of `request`.
    pub(crate) fn add_param(&mut self, request: &ChatRequest, param: &'static str) {
        let of = |dialect: Dialect| super::param_field(request, dialect, param);
        self.add(request.dialect().and_then(of).unwrap_or(param));
    }

    fn push(&mut self, name: Cow<'static, str>) {
        if self.names.contains(&name) {
        } else if self.names.len() < MAX_NAMES {
            self.names.push(name);
        } else {
            self.more += 1;
        }
    }

    /// Whether nothing was left out.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// The names, in the order of the request; at most 32.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(|name| &**name)
    }
}

impl fmt::Display for LeftOut {
    /// The names, separated by commas.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, name) in self.names().enumerate() {
            if at > 0 {
                f.write_str(", ")?;
            }
            f.write_str(name)?;
        }
        if self.more > 0 {
            write!(f, ", and {} more", self.more)?;
        }
        Ok(())
    }
}
