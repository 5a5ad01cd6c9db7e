//! Where a call goes: provider, model, credential.

use std::{
    fmt,
    hash::{BuildHasher, Hash, Hasher},
    sync::{Arc, LazyLock},
};

use foldhash::quality::RandomState;

/// Where a call goes: a provider, and optionally a model and the *name* of a credential there
/// (never the secret). A counted pointer, cheap to clone, compare and hash: it is the usual key of
/// per-target state.
#[derive(Clone)]
pub struct Target(Arc<Parts>);

struct Parts {
    /// `provider/model#credential`, as far as set.
    text: Box<str>,
    /// The end of the provider in `text`.
    provider: usize,
    /// The end of the model in `text`, when there is one.
    model: Option<usize>,
    /// Of the three parts, so that a map lookup does not walk three strings.
    hash: u64,
}

impl Target {
    /// A provider, whatever its model and credential.
    pub fn new(provider: impl AsRef<str>) -> Self {
        Self::of(provider.as_ref(), None, None)
    }

    /// The same provider and credential with this model.
    #[must_use]
    pub fn with_model(&self, model: impl AsRef<str>) -> Self {
        Self::of(self.provider(), Some(model.as_ref()), self.credential())
    }

    /// The same provider and model with this credential, by its name.
    #[must_use]
    pub fn with_credential(&self, credential: impl AsRef<str>) -> Self {
        Self::of(self.provider(), self.model(), Some(credential.as_ref()))
    }

    fn of(provider: &str, model: Option<&str>, credential: Option<&str>) -> Self {
        /// Random, since names may come from callers.
        static SEED: LazyLock<RandomState> = LazyLock::new(RandomState::default);
        let hash = SEED.hash_one((provider, model, credential));
        Self(Arc::new(Parts::new(provider, model, credential, hash)))
    }

    /// The provider's name.
    pub fn provider(&self) -> &str {
        self.0.provider()
    }

    /// The model as the provider names it, when one is set.
    pub fn model(&self) -> Option<&str> {
        self.0.model()
    }

    /// The credential's name, when one is set.
    pub fn credential(&self) -> Option<&str> {
        self.0.credential()
    }

    /// `provider/model#credential`, as far as set.
    pub fn as_str(&self) -> &str {
        &self.0.text
    }
}

impl Parts {
    fn new(provider: &str, model: Option<&str>, credential: Option<&str>, hash: u64) -> Self {
        let length = |part: Option<&str>| part.map_or(0, |part| part.len() + 1);
        let mut text = String::with_capacity(provider.len() + length(model) + length(credential));
        text.push_str(provider);
        let model = model.map(|model| {
            text.push('/');
            text.push_str(model);
            text.len()
        });
        if let Some(credential) = credential {
            text.push('#');
            text.push_str(credential);
        }
        Self { text: text.into(), provider: provider.len(), model, hash }
    }

    fn provider(&self) -> &str {
        &self.text[..self.provider]
    }

    fn model(&self) -> Option<&str> {
        self.model.map(|end| &self.text[self.provider + 1..end])
    }

    fn credential(&self) -> Option<&str> {
        let end = self.model.unwrap_or(self.provider);
        (end < self.text.len()).then(|| &self.text[end + 1..])
    }

    fn same(&self, other: &Self) -> bool {
        self.hash == other.hash
            && (self.provider, self.model) == (other.provider, other.model)
            && self.text == other.text
    }
}

impl PartialEq for Target {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.same(&other.0)
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

/// As `provider`, `model` and `credential`, as far as set.
#[cfg(feature = "serde")]
mod keys {
    use std::borrow::Cow;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::Target;

    #[derive(Deserialize, Serialize)]
    #[serde(rename = "Target")]
    struct Keys<'a> {
        #[serde(borrow)]
        provider: Cow<'a, str>,
        #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
        model: Option<Cow<'a, str>>,
        #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
        credential: Option<Cow<'a, str>>,
    }

    impl Serialize for Target {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            let keys = Keys {
                provider: self.provider().into(),
                model: self.model().map(Into::into),
                credential: self.credential().map(Into::into),
            };
            keys.serialize(serializer)
        }
    }

    impl<'de> Deserialize<'de> for Target {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            let Keys { provider, model, credential } = Keys::deserialize(deserializer)?;
            Ok(Target::of(&provider, model.as_deref(), credential.as_deref()))
        }
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

    #[cfg(feature = "serde")]
    #[test]
    fn its_parts_are_written_apart() {
        let whole = Target::new("a/b").with_model("c#d\"").with_credential("main");
        let text = serde_json::to_string(&[Target::new("a"), whole.clone()]).unwrap();
        assert_eq!(
            text,
            r#"[{"provider":"a"},{"provider":"a/b","model":"c#d\"","credential":"main"}]"#
        );
        let read: [Target; 2] = serde_json::from_str(&text).unwrap();
        assert_eq!(read, [Target::new("a"), whole]);
        assert!(serde_json::from_str::<Target>(r#"{"model":"x"}"#).is_err());
    }

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
        // The separators may be in the parts too, and a part may be empty.
        let odd = Target::new("a/b").with_model("c#d/e");
        assert_eq!((odd.provider(), odd.model(), odd.credential()), ("a/b", Some("c#d/e"), None));
        assert_ne!(odd, Target::new("a").with_model("b/c#d/e"));
        assert_ne!(odd, Target::new("a/b").with_model("c").with_credential("d/e"));
        let empty = Target::new("").with_model("").with_credential("");
        assert_eq!((empty.provider(), empty.model(), empty.credential()), ("", Some(""), Some("")));
        assert_ne!(empty, Target::new("").with_model(""));
    }
}
