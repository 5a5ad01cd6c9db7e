//! The name of a model.

use std::{fmt, ops::Deref, sync::Arc};

use serde::{Serialize, Serializer};

/// The name of a model, shared by its clones; dereferences to `str`. Empty when no model is named,
/// which allocates nothing.
///
/// ```
/// use steadfast_chat::ModelName;
///
/// let name = ModelName::from("claude-sonnet-4-5");
/// assert_eq!(name, "claude-sonnet-4-5");
/// assert!(name.starts_with("claude") && ModelName::default().is_empty());
/// ```
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct ModelName(Option<Arc<str>>);

impl ModelName {
    /// The name.
    pub fn as_str(&self) -> &str {
        self.0.as_deref().unwrap_or_default()
    }
}

impl Deref for ModelName {
    type Target = str;

    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl From<&str> for ModelName {
    fn from(name: &str) -> Self {
        Self((!name.is_empty()).then(|| name.into()))
    }
}

impl From<String> for ModelName {
    fn from(name: String) -> Self {
        name.as_str().into()
    }
}

impl From<&String> for ModelName {
    fn from(name: &String) -> Self {
        name.as_str().into()
    }
}

impl From<Arc<str>> for ModelName {
    fn from(name: Arc<str>) -> Self {
        Self((!name.is_empty()).then_some(name))
    }
}

impl PartialEq<str> for ModelName {
    fn eq(&self, other: &str) -> bool {
        self.as_str() == other
    }
}

impl PartialEq<&str> for ModelName {
    fn eq(&self, other: &&str) -> bool {
        self.as_str() == *other
    }
}

impl PartialEq<String> for ModelName {
    fn eq(&self, other: &String) -> bool {
        self.as_str() == other
    }
}

impl Serialize for ModelName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self)
    }
}

impl fmt::Display for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self)
    }
}

impl fmt::Debug for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}
