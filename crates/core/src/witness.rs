//! Whose calls have failed: a request that fails wherever it goes says little about the targets.

use std::{
    fmt,
    hash::{BuildHasher, Hash, Hasher},
    sync::LazyLock,
};

use foldhash::quality::RandomState;

use crate::CallContext;

/// Hashes differ from process to process, so that nobody can make two callers look the same.
static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::default);

/// The caller of a call as far as its failures are concerned: one tenant with one session, or with one
/// prompt.
///
/// Failures of one witness count once until another witness has seen one too. By default a call is a
/// witness of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Witness {
    /// 0: none.
    session: u32,
    prompt: u32,
}

impl Witness {
    /// The call is a witness of its own.
    pub const NONE: Self = Self { session: 0, prompt: 0 };

    /// The witness of a call with this context, and with this [digest](PromptDigest) of its prompt.
    #[inline]
    pub fn new(context: &CallContext, prompt: Option<u64>) -> Self {
        let tenant = context.tenant();
        let of = |kind: u8, rest: &dyn Fn(&mut dyn Hasher)| {
            let mut hasher = HASHER.build_hasher();
            (kind, tenant).hash(&mut hasher);
            rest(&mut hasher);
            // Never 0, which is none.
            (hasher.finish() as u32).max(1)
        };
        let session =
            context.session().map(|session| of(1, &|hasher| hasher.write(session.as_bytes())));
        let prompt = prompt.map(|prompt| of(2, &|hasher| hasher.write_u64(prompt)));
        Self { session: session.unwrap_or(0), prompt: prompt.unwrap_or(0) }
    }

    /// The same; a call of which neither is known is a witness of its own, in all of its attempts.
    #[inline]
    pub fn of(context: &CallContext, prompt: Option<u64>) -> Self {
        match Self::new(context, prompt) {
            Self::NONE => {
                let call = fastrand::u32(1..);
                // Both parts, so that it is no session's and no prompt's.
                Self { session: call, prompt: call }
            }
            known => known,
        }
    }

    /// Whether it can be recognised in another call, or in another attempt of the same one.
    pub const fn is_known(self) -> bool {
        self.session != 0 || self.prompt != 0
    }

    /// Whether both are of one caller.
    pub const fn is_same(self, other: Self) -> bool {
        (self.session != 0 && self.session == other.session)
            || (self.prompt != 0 && self.prompt == other.prompt)
    }
}

/// How a conversation begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Beginning {
    /// A [digest](PromptDigest) of what its user wrote first.
    pub digest: u64,
    /// Nobody has answered yet.
    pub is_first_turn: bool,
}

impl Beginning {
    /// With this digest of what was written first.
    pub const fn new(digest: u64, is_first_turn: bool) -> Self {
        Self { digest, is_first_turn }
    }
}

/// A digest of a prompt: of the lengths of its texts, and of the beginning and the end of each. It takes
/// the same time whatever the length.
#[derive(Clone)]
pub struct PromptDigest {
    hasher: <RandomState as BuildHasher>::Hasher,
}

/// What is read of a text at each of its ends, in bytes.
const SAMPLE: usize = 256;

/// What is read of a text: its beginning and its end, or all of one that is not long.
#[inline]
pub(crate) fn sample(text: &[u8]) -> (&[u8], &[u8]) {
    if text.len() <= 2 * SAMPLE {
        return (text, &[]);
    }
    (&text[..SAMPLE], &text[text.len() - SAMPLE..])
}

impl Default for PromptDigest {
    fn default() -> Self {
        Self { hasher: HASHER.build_hasher() }
    }
}

impl PromptDigest {
    /// Adds a text, or other data.
    #[inline]
    pub fn add(&mut self, text: &[u8]) {
        self.hasher.write_usize(text.len());
        let (beginning, end) = sample(text);
        self.hasher.write(beginning);
        if !end.is_empty() {
            self.hasher.write(end);
        }
    }

    /// The digest of all that was added.
    pub fn finish(&self) -> u64 {
        self.hasher.finish()
    }
}

impl fmt::Debug for PromptDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PromptDigest").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(texts: &[&str]) -> u64 {
        let mut digest = PromptDigest::default();
        for text in texts {
            digest.add(text.as_bytes());
        }
        digest.finish()
    }

    #[test]
    fn texts_differ_by_length_and_ends() {
        let long = "x".repeat(10_000);
        let other = format!("{}y{}", "x".repeat(9_000), "x".repeat(1_000));
        let shifted = format!("y{}", "x".repeat(9_999));
        assert_eq!(digest(&["hello"]), digest(&["hello"]));
        assert_ne!(digest(&["hello"]), digest(&["hell", "o"]));
        assert_ne!(digest(&[&long]), digest(&[&other]));
        assert_ne!(digest(&[&long]), digest(&[&shifted]));
    }

    #[test]
    fn one_session_or_one_prompt_of_a_tenant_is_one_witness() {
        let of = |tenant: &str, session: &str, prompt| {
            let context = CallContext::new().with_tenant(tenant);
            let context = if session.is_empty() { context } else { context.with_session(session) };
            Witness::new(&context, prompt)
        };
        let one = of("acme", "s", Some(1));
        assert!(one.is_same(one) && one.is_known());
        assert!(one.is_same(of("acme", "s", Some(2))), "the session");
        assert!(one.is_same(of("acme", "", Some(1))), "the prompt");
        assert!(!one.is_same(of("acme", "t", Some(2))));
        assert!(!one.is_same(of("umbrella", "s", Some(1))), "another tenant");
        let none = Witness::new(&CallContext::new(), None);
        assert!(!none.is_known() && !none.is_same(none), "each call by itself");
    }
}
