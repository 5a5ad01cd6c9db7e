//! Where a call goes: provider, model, credential.

use std::{
    collections::HashMap,
    fmt,
    hash::{BuildHasher, Hash, Hasher},
    sync::{Arc, OnceLock},
};

use foldhash::quality::RandomState;
use parking_lot::RwLock;

use crate::Near;

/// Targets that are kept for as long as the process runs. More than anyone configures; names that
/// come from callers may be any number.
const KEPT: usize = 1_024;

/// The longest names that are kept, all three together, in bytes. Longer ones are nobody's
/// configuration.
const LONGEST: usize = 256;

/// Where a call goes: a provider, and optionally a model and the *name* of a credential there
/// (never the secret). Cheap to clone, compare and hash: it is the usual key of per-target state.
///
/// The first thousand targets of a process are kept until it ends, so that cloning one is copying
/// an address, from whatever core. Those beyond are counted pointers.
#[derive(Clone)]
pub struct Target(Repr);

#[derive(Clone)]
enum Repr {
    /// The only one with its names.
    Kept(&'static Inner),
    Counted(Near<Inner>),
}

struct Inner {
    /// `provider/model#credential`, as far as set.
    shown: Box<str>,
    /// Where in it the provider ends.
    provider: usize,
    /// Where the model ends, when there is one.
    model: Option<usize>,
    /// Of the three parts, so that a map lookup does not walk three strings.
    hash: u64,
}

impl Target {
    /// A provider, whatever its model and credential.
    pub fn new(provider: impl AsRef<str>) -> Self {
        Kept::global().target(provider.as_ref(), None, None)
    }

    /// The same provider and credential with this model.
    #[must_use]
    pub fn with_model(&self, model: impl AsRef<str>) -> Self {
        Kept::global().target(self.provider(), Some(model.as_ref()), self.credential())
    }

    /// The same provider and model with this credential, by its name.
    #[must_use]
    pub fn with_credential(&self, credential: impl AsRef<str>) -> Self {
        Kept::global().target(self.provider(), self.model(), Some(credential.as_ref()))
    }

    /// The same target, counted apart from the clones of this one, where clones are counted: see
    /// [`Near`].
    #[must_use]
    pub fn renewed(&self) -> Self {
        Self(match &self.0 {
            Repr::Kept(inner) => Repr::Kept(inner),
            Repr::Counted(inner) => Repr::Counted(inner.renewed()),
        })
    }

    #[inline]
    fn inner(&self) -> &Inner {
        match &self.0 {
            Repr::Kept(inner) => inner,
            Repr::Counted(inner) => inner,
        }
    }

    /// The provider's name.
    pub fn provider(&self) -> &str {
        self.inner().provider()
    }

    /// The model as the provider names it, when one is set.
    pub fn model(&self) -> Option<&str> {
        self.inner().model()
    }

    /// The credential's name, when one is set.
    pub fn credential(&self) -> Option<&str> {
        self.inner().credential()
    }

    /// `provider/model#credential`, as far as set.
    pub fn as_str(&self) -> &str {
        &self.inner().shown
    }
}

/// The targets that are kept. Each stands there once, by the hash of its names.
struct Kept {
    targets: RwLock<HashMap<u64, &'static Inner, foldhash::fast::RandomState>>,
    room: usize,
    /// Seeded: names may come from callers.
    seed: RandomState,
}

impl Kept {
    /// That of the process.
    fn global() -> &'static Self {
        static GLOBAL: OnceLock<Kept> = OnceLock::new();
        GLOBAL.get_or_init(|| Kept::new(KEPT))
    }

    fn new(room: usize) -> Self {
        Self { targets: RwLock::default(), room, seed: RandomState::default() }
    }

    fn target(&self, provider: &str, model: Option<&str>, credential: Option<&str>) -> Target {
        let hash = self.seed.hash_one((provider, model, credential));
        if let Some(&known) = self.targets.read().get(&hash)
            && known.is(provider, model, credential)
        {
            return Target(Repr::Kept(known));
        }
        let new = Inner::new(provider, model, credential, hash);
        if new.shown.len() > LONGEST {
            return Target(Repr::Counted(Near::new(Arc::new(new))));
        }
        let mut targets = self.targets.write();
        Target(match targets.get(&hash) {
            // Somebody was faster.
            Some(known) if known.is(provider, model, credential) => Repr::Kept(known),
            None if targets.len() < self.room => {
                let kept: &'static Inner = Box::leak(Box::new(new));
                targets.insert(hash, kept);
                Repr::Kept(kept)
            }
            // No room, or other names of the same hash.
            _ => Repr::Counted(Near::new(Arc::new(new))),
        })
    }
}

impl Inner {
    fn new(provider: &str, model: Option<&str>, credential: Option<&str>, hash: u64) -> Self {
        let length = |part: Option<&str>| part.map_or(0, |part| part.len() + 1);
        let mut shown = String::with_capacity(provider.len() + length(model) + length(credential));
        shown.push_str(provider);
        let model = model.map(|model| {
            shown.push('/');
            shown.push_str(model);
            shown.len()
        });
        if let Some(credential) = credential {
            shown.push('#');
            shown.push_str(credential);
        }
        Self { shown: shown.into(), provider: provider.len(), model, hash }
    }

    fn provider(&self) -> &str {
        &self.shown[..self.provider]
    }

    fn model(&self) -> Option<&str> {
        self.model.map(|end| &self.shown[self.provider + 1..end])
    }

    fn credential(&self) -> Option<&str> {
        let end = self.model.unwrap_or(self.provider);
        (end < self.shown.len()).then(|| &self.shown[end + 1..])
    }

    fn is(&self, provider: &str, model: Option<&str>, credential: Option<&str>) -> bool {
        self.provider() == provider && self.model() == model && self.credential() == credential
    }

    fn same(&self, other: &Self) -> bool {
        self.hash == other.hash
            && (self.provider, self.model) == (other.provider, other.model)
            && self.shown == other.shown
    }
}

impl PartialEq for Target {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            // There is one of each.
            (Repr::Kept(one), Repr::Kept(other)) => std::ptr::eq(*one, *other),
            _ => {
                let (one, other) = (self.inner(), other.inner());
                std::ptr::eq(one, other) || one.same(other)
            }
        }
    }
}

impl Eq for Target {}

impl Hash for Target {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.inner().hash);
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
        // The marks may be in the parts too, and a part may be empty.
        let odd = Target::new("a/b").with_model("c#d/e");
        assert_eq!((odd.provider(), odd.model(), odd.credential()), ("a/b", Some("c#d/e"), None));
        assert_ne!(odd, Target::new("a").with_model("b/c#d/e"));
        assert_ne!(odd, Target::new("a/b").with_model("c").with_credential("d/e"));
        let empty = Target::new("").with_model("").with_credential("");
        assert_eq!((empty.provider(), empty.model(), empty.credential()), ("", Some(""), Some("")));
        assert_ne!(empty, Target::new("").with_model(""));
    }

    #[test]
    fn beyond_what_is_kept_equality_is_by_content_too() {
        let kept = |target: &Target| matches!(target.0, Repr::Kept(_));
        let table = Kept::new(2);
        let make = |n: u32| table.target("openai", Some(&format!("m{n}")), None);
        let first: Vec<_> = (0..4).map(make).collect();
        assert_eq!(first.iter().map(kept).collect::<Vec<_>>(), [true, true, false, false]);
        for (n, target) in (0..4).zip(&first) {
            let again = make(n);
            assert_eq!(again, *target);
            assert_eq!(again.renewed(), *target);
            assert_eq!(kept(&again), kept(target), "the same for good");
            assert!(first.iter().filter(|other| **other == again).count() == 1);
        }
        let mut set: HashSet<_> = first.into_iter().collect();
        set.extend((0..4).map(make));
        assert_eq!(set.len(), 4);
        let long = "x".repeat(LONGEST + 1);
        let roomy = Kept::new(9);
        let (one, two) = (roomy.target(&long, None, None), roomy.target(&long, None, None));
        assert!(one == two && !kept(&one) && roomy.targets.read().is_empty());
    }
}
