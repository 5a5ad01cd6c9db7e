//! Keys of values that every node makes alike.

use std::fmt;

/// Bytes that a name and what goes with it have room in.
const USUAL: usize = 128;

/// The key of a value: a digest of what the value is about, the same in each process and on each machine. It shows
/// nothing of what it is made of, though whoever can guess that can see whether the guess is right.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SharedKey([u8; 16]);

impl SharedKey {
    /// As it is written in a store: 32 hexadecimal digits.
    pub fn text(&self) -> String {
        format!("{:032x}", u128::from_be_bytes(self.0))
    }

    /// The key that is written so; `None` for any other text.
    pub fn read(text: &str) -> Option<Self> {
        let key = Self(u128::from_str_radix(text, 16).ok()?.to_be_bytes());
        (key.text() == text).then_some(key)
    }
}

impl fmt::Debug for SharedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text())
    }
}

/// Makes a [`SharedKey`]. By a hash that nobody finds two inputs for, as it has no seed: one tenant's value is never
/// another's, whatever names they give.
///
/// ```
/// use steadfast_core::shared::KeyDigest;
///
/// let key = |tenant, session: &str| {
///     let mut digest = KeyDigest::default();
///     digest.add_optional(tenant);
///     digest.add(session.as_bytes());
///     digest.key()
/// };
/// assert_eq!(key(Some("acme"), "s"), key(Some("acme"), "s"));
/// assert_ne!(key(Some("acme"), "s"), key(None, "acmes"));
/// ```
///
/// What is added is kept, and hashed when the key is asked for: most calls make one of these and never ask.
#[derive(Clone, Default)]
pub struct KeyDigest(Vec<u8>);

impl KeyDigest {
    /// Adds a part, with its length.
    pub fn add(&mut self, part: &[u8]) {
        self.add_len(part.len());
        self.write(part);
    }

    /// Adds a part that may be missing, which is not the same as an empty one.
    pub fn add_optional(&mut self, part: Option<&str>) {
        match part {
            Some(part) => self.add(part.as_bytes()),
            None => self.write(&u64::MAX.to_be_bytes()),
        }
    }

    /// Adds a number.
    pub fn add_number(&mut self, number: u64) {
        self.add(&number.to_be_bytes());
    }

    /// Adds of a text its length, and its beginning and end alone where it is long; see
    /// [`PromptDigest`](crate::PromptDigest).
    pub fn add_sample(&mut self, text: &[u8]) {
        self.add_len(text.len());
        let (beginning, end) = crate::witness::sample(text);
        self.write(beginning);
        self.write(end);
    }

    /// The key of all that was added.
    #[cfg(feature = "shared")]
    pub fn key(&self) -> SharedKey {
        let hash = <sha2::Sha256 as sha2::Digest>::digest(&self.0);
        let mut key = [0; 16];
        key.copy_from_slice(&hash[..16]);
        SharedKey(key)
    }

    fn add_len(&mut self, len: usize) {
        self.write(&(len as u64).to_be_bytes());
    }

    fn write(&mut self, bytes: &[u8]) {
        if self.0.capacity() == 0 {
            self.0.reserve(USUAL);
        }
        self.0.extend_from_slice(bytes);
    }
}

impl fmt::Debug for KeyDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // What it is of may be nobody's business.
        f.debug_struct("KeyDigest").field("len", &self.0.len()).finish_non_exhaustive()
    }
}

#[cfg(all(test, feature = "shared"))]
mod tests {
    use super::*;

    fn key(parts: &[Option<&str>]) -> SharedKey {
        let mut digest = KeyDigest::default();
        parts.iter().for_each(|part| digest.add_optional(*part));
        digest.key()
    }

    #[test]
    fn a_key_is_the_same_in_each_process_and_version() {
        let text = "7fe752572179e7f2bd84fdcb5001ecfc";
        assert_eq!(key(&[Some("acme"), None]).text(), text);
        assert_eq!(SharedKey::read(text), Some(key(&[Some("acme"), None])));
        for wrong in ["", "7fe7", "+fe752572179e7f2bd84fdcb5001ecfc", &format!("{text}0")] {
            assert_eq!(SharedKey::read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn parts_differ_by_where_they_end() {
        let keys = [
            key(&[Some("ab"), Some("c")]),
            key(&[Some("a"), Some("bc")]),
            key(&[Some("abc"), None]),
            key(&[None, Some("abc")]),
            key(&[Some("abc"), Some("")]),
        ];
        for (at, one) in keys.iter().enumerate() {
            assert!(!keys[..at].contains(one), "{at}");
        }
    }

    #[test]
    fn of_a_long_text_the_ends_and_the_length_count() {
        let sample = |text: &str| {
            let mut digest = KeyDigest::default();
            digest.add_sample(text.as_bytes());
            digest.key()
        };
        let long = "x".repeat(10_000);
        assert_ne!(sample(&long), sample(&"x".repeat(10_001)));
        assert_ne!(sample(&long), sample(&format!("y{}", "x".repeat(9_999))));
        assert_eq!(sample("short"), sample("short"));
    }
}
