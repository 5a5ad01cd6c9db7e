//! Where a call goes: provider, model, credential.

use std::{
    fmt,
    hash::{BuildHasher, Hash, Hasher},
    sync::{Arc, OnceLock},
};

use crate::Near;

/// Where a call goes: a provider, and optionally a model and the *name* of a credential there
/// (never the secret). Cheap to clone, compare and hash: it is the usual key of per-target state.
#[derive(Clone)]
pub struct Target(Near<Inner>);

struct Inner {
    provider: Box<str>,
    model: Option<Box<str>>,
    credential: Option<Box<str>>,
    /// Of the three above, so that a map lookup does not walk three strings.
    hash: u64,
    /// The three in one, once somebody has asked for it.
    shown: OnceLock<Box<str>>,
}

impl Target {
    /// A provider, whatever its model and credential.
    pub fn new(provider: impl Into<Box<str>>) -> Self {
        Self::from_parts(provider.into(), None, None)
    }

    /// The same provider and credential with this model.
    #[must_use]
    pub fn with_model(&self, model: impl Into<Box<str>>) -> Self {
        Self::from_parts(self.0.provider.clone(), Some(model.into()), self.0.credential.clone())
    }

    /// The same provider and model with this credential, by its name.
    #[must_use]
    pub fn with_credential(&self, credential: impl Into<Box<str>>) -> Self {
        Self::from_parts(self.0.provider.clone(), self.0.model.clone(), Some(credential.into()))
    }

    fn from_parts(
        provider: Box<str>,
        model: Option<Box<str>>,
        credential: Option<Box<str>>,
    ) -> Self {
        // Seeded once a process: names may come from callers.
        static SEED: OnceLock<foldhash::quality::RandomState> = OnceLock::new();
        let hash = SEED.get_or_init(foldhash::quality::RandomState::default).hash_one((
            &provider,
            &model,
            &credential,
        ));
        Self(Near::new(Arc::new(Inner { provider, model, credential, hash, shown: OnceLock::new() })))
    }

    /// The same target, counted apart from the clones of this one: see [`Near`].
    #[must_use]
    pub fn renewed(&self) -> Self {
        Self(self.0.renewed())
    }

    /// The provider's name.
    pub fn provider(&self) -> &str {
        &self.0.provider
    }

    /// The model as the provider names it, when one is set.
    pub fn model(&self) -> Option<&str> {
        self.0.model.as_deref()
    }

    /// The credential's name, when one is set.
    pub fn credential(&self) -> Option<&str> {
        self.0.credential.as_deref()
    }

    /// `provider/model#credential`, as far as set.
    pub fn as_str(&self) -> &str {
        self.0.shown.get_or_init(|| {
            let mut shown = String::from(self.provider());
            for (mark, part) in [('/', self.model()), ('#', self.credential())] {
                if let Some(part) = part {
                    shown.push(mark);
                    shown.push_str(part);
                }
            }
            shown.into()
        })
    }
}

impl PartialEq for Target {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(self.0.shared(), other.0.shared())
            || (self.0.hash == other.0.hash
                && self.0.provider == other.0.provider
                && self.0.model == other.0.model
                && self.0.credential == other.0.credential)
    }
}

impl Eq for Target {}

impl Hash for Target {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0.hash);
    }
}

impl fmt::Display for Target {
    /// `provider/model#credential`, as far as set.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Target({self})")
    }
}

impl From<&str> for Target {
    /// A provider by its name.
    fn from(provider: &str) -> Self {
        Self::new(provider)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn equality_is_by_content() {
        let a = Target::new("openai").with_model("gpt-4o").with_credential("main");
        let b = Target::new("openai").with_credential("main").with_model("gpt-4o");
        assert_eq!(a, b);
        assert_eq!(HashSet::from([a.clone(), b]).len(), 1);
        assert_ne!(a, Target::new("openai").with_model("gpt-4o"));
        assert_ne!(Target::new("a").with_model("b"), Target::new("a").with_credential("b"));
        assert_eq!(a.to_string(), "openai/gpt-4o#main");
        assert_eq!(Target::new("a").with_credential("b").as_str(), "a#b");
        assert_eq!(Target::new("a").as_str(), "a");
    }
}
