//! The names of what is in the store.

use std::{borrow::Cow, fmt::Write as _};

use sha2::{Digest, Sha256};

/// The version of what is in the store: nodes of versions that could not read each other's do not see each other's.
const SCHEMA: u32 = 1;

/// The longest part of a key that is spelled out. A longer one is its digest, so that no caller can fill the store with
/// names alone.
const SPELLED_OUT: usize = 256;

/// Begins a digest; a part that begins so is written as one, or it could be another's.
const DIGEST: char = '#';

/// Between a fact's key and its node.
const UNIT: char = '\u{1f}';

/// The keys of one fleet. They have a hash tag, so that a cluster keeps them on one node, where a script can change
/// several at once.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    root: Box<str>,
    /// Channels are the same in all databases of a server, unlike keys.
    database: i64,
}

impl Keys {
    pub(crate) fn new(prefix: &str, database: i64) -> Self {
        Self { root: format!("{{{prefix}}}:{SCHEMA}").into(), database }
    }

    /// Which fleet has this prefix.
    pub(crate) fn owner(&self) -> String {
        format!("{}:owner", self.root)
    }

    /// When each node was heard of.
    pub(crate) fn heard(&self) -> String {
        format!("{}:heard", self.root)
    }

    /// What each node shows of itself.
    pub(crate) fn nodes(&self) -> String {
        format!("{}:nodes", self.root)
    }

    /// The kinds of facts that there are.
    pub(crate) fn kinds(&self) -> String {
        format!("{}:kinds", self.root)
    }

    /// The facts of one kind.
    pub(crate) fn facts(&self, kind: &str) -> String {
        format!("{}:facts:{}", self.root, bounded(kind))
    }

    /// When each fact of one kind ends.
    pub(crate) fn ends(&self, kind: &str) -> String {
        format!("{}:ends:{}", self.root, bounded(kind))
    }

    /// Where facts are announced.
    pub(crate) fn events(&self) -> String {
        format!("{}:events:{}", self.root, self.database)
    }

    /// A value.
    pub(crate) fn value(&self, space: &str, key: &str) -> String {
        format!("{}:value:{}:{}", self.root, bounded(space), bounded(key))
    }

    /// A claim.
    pub(crate) fn claim(&self, key: &str) -> String {
        format!("{}:claim:{}", self.root, bounded(key))
    }

    /// Who has which part of something.
    pub(crate) fn share(&self, key: &str) -> String {
        format!("{}:share:{}", self.root, bounded(key))
    }

    /// What has been spent of an account.
    pub(crate) fn account(&self, key: &str) -> String {
        format!("{}:account:{}", self.root, bounded(key))
    }

    /// Which nodes spend from an account.
    pub(crate) fn spenders(&self, key: &str) -> String {
        format!("{}:spenders:{}", self.root, bounded(key))
    }

    /// The token of the last claim.
    pub(crate) fn token(&self) -> String {
        format!("{}:token", self.root)
    }
}

/// Which register of the facts of a kind it is.
pub(crate) fn field(key: &str, node: &str) -> String {
    format!("{}{UNIT}{node}", bounded(key))
}

fn bounded(part: &str) -> Cow<'_, str> {
    if part.len() <= SPELLED_OUT && !part.starts_with(DIGEST) {
        return Cow::Borrowed(part);
    }
    let mut digest = String::from(DIGEST);
    for byte in Sha256::digest(part.as_bytes()) {
        // Writing to a string does not fail.
        let _ = write!(digest, "{byte:02x}");
    }
    Cow::Owned(digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_the_prefix_as_their_hash_tag() {
        let keys = Keys::new("blue", 2);
        assert_eq!(keys.value("affinity", "a}b"), "{blue}:1:value:affinity:a}b");
        assert_eq!(keys.events(), "{blue}:1:events:2");
        assert_eq!(field("openai", "n1"), "openai\u{1f}n1");
    }

    #[test]
    fn a_long_part_is_short_and_its_own() {
        let long = "x".repeat(5_000);
        let digest = bounded(&long).into_owned();
        assert_eq!(digest.len(), 65);
        assert_ne!(digest, bounded(&format!("{long}x")));
        assert_ne!(bounded(&digest), digest, "nobody can name another's digest");
    }
}
