//! Deterministic values that look random: ids, seeds, signatures.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

const ALPHABET: &[u8] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// Hashes the parts with their lengths, so that `("ab", "c")` and `("a", "bc")` differ.
pub(crate) fn digest(parts: &[&[u8]]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

/// A seed for a generator: the same for the same parts.
pub(crate) fn seed(parts: &[&[u8]]) -> u64 {
    let d = digest(parts);
    u64::from_le_bytes([d[0], d[1], d[2], d[3], d[4], d[5], d[6], d[7]])
}

/// `prefix` and `len` characters of `[0-9A-Za-z]`.
pub(crate) fn id(rng: &mut fastrand::Rng, prefix: &str, len: usize) -> String {
    let mut out = String::with_capacity(prefix.len() + len);
    out.push_str(prefix);
    for _ in 0..len {
        out.push(char::from(ALPHABET[rng.usize(..ALPHABET.len())]));
    }
    out
}

/// Makes and verifies the signatures of thinking and function calls.
#[derive(Clone, Debug)]
pub(crate) struct Signer {
    key: [u8; 32],
}

impl Signer {
    pub(crate) fn new(dialect: &str, provider: &str, seed: u64) -> Self {
        Self { key: digest(&[dialect.as_bytes(), provider.as_bytes(), &seed.to_le_bytes()]) }
    }

    /// Signs `text`; base64, as the providers' own are.
    pub(crate) fn sign(&self, text: &str) -> String {
        let a = digest(&[&self.key, b"signature", text.as_bytes()]);
        let b = digest(&[&self.key, &a]);
        STANDARD.encode([a, b].concat())
    }

    pub(crate) fn verifies(&self, text: &str, signature: &str) -> bool {
        self.sign(text) == signature
    }

    /// Signs thinking, and what it is bound to.
    pub(crate) fn bind(&self, text: &str, binding: Binding) -> String {
        let bound = [binding.prefix, binding.before].concat();
        let mac = digest(&[&self.key, b"thinking", text.as_bytes(), &bound]);
        STANDARD.encode([&mac[..], &bound].concat())
    }

    /// What thinking with this signature is bound to; `None` where the signature is not its own.
    pub(crate) fn bound(&self, text: &str, signature: &str) -> Option<Binding> {
        let bytes = STANDARD.decode(signature).ok()?;
        let (mac, bound) = bytes.split_at_checked(32)?;
        let own = digest(&[&self.key, b"thinking", text.as_bytes(), bound]) == mac;
        Binding::read(bound).filter(|_| own)
    }

    /// Data of a redacted thinking block, which only this provider recognises.
    pub(crate) fn enclose(&self, secret: &str, binding: Binding) -> String {
        let bound = [&binding.prefix[..], &binding.before, secret.as_bytes()].concat();
        let mac = digest(&[&self.key, b"redacted", &bound]);
        STANDARD.encode([&mac[..], &bound].concat())
    }

    /// What such data is bound to; `None` where it is not this provider's.
    pub(crate) fn enclosed(&self, data: &str) -> Option<Binding> {
        Binding::read(self.own(data)?.get(..32)?)
    }

    /// The secret in such data; `None` where it is not this provider's.
    pub(crate) fn opened(&self, data: &str) -> Option<String> {
        String::from_utf8(self.own(data)?.split_off(32)).ok()
    }

    /// What such data has behind its authentication; at least a binding.
    fn own(&self, data: &str) -> Option<Vec<u8>> {
        let mut bytes = STANDARD.decode(data).ok().filter(|bytes| bytes.len() >= 64)?;
        let bound = bytes.split_off(32);
        (digest(&[&self.key, b"redacted", &bound])[..] == bytes[..]).then_some(bound)
    }
}

/// What a thinking block is bound to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Binding {
    /// A digest of everything before it but thinking.
    pub(crate) prefix: [u8; 16],
    /// A digest of the thinking block before it; zeros for the first.
    pub(crate) before: [u8; 16],
}

impl Binding {
    fn read(bytes: &[u8]) -> Option<Self> {
        let (prefix, before) = bytes.split_at_checked(16)?;
        Some(Self { prefix: prefix.try_into().ok()?, before: before.try_into().ok()? })
    }
}

/// The first half of a digest.
pub(crate) fn short(bytes: &[u8]) -> [u8; 16] {
    let mut half = [0; 16];
    half.copy_from_slice(&digest(&[bytes])[..16]);
    half
}

/// A secret, redacted so that journal entries can be compared: the first eight bytes of its hash
/// and its last four characters (only of keys long enough to stay safe).
pub(crate) fn redact(secret: &str) -> String {
    let d = digest(&[secret.as_bytes()]);
    let hex: String = d[..8].iter().map(|b| format!("{b:02x}")).collect();
    let chars = secret.chars().count();
    let tail: String =
        if chars >= 12 { secret.chars().skip(chars - 4).collect() } else { String::new() };
    format!("sha256:{hex}…{tail}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signer_verifies_its_own_and_nothing_else() {
        let ours = Signer::new("anthropic", "a", 1);
        let other = Signer::new("anthropic", "a", 2);
        let signature = ours.sign("so be it");
        assert!(ours.verifies("so be it", &signature));
        assert!(!ours.verifies("so be it.", &signature));
        assert!(!other.verifies("so be it", &signature));
        let binding = Binding { prefix: [1; 16], before: [2; 16] };
        let bound = ours.bind("so be it", binding);
        assert_eq!(ours.bound("so be it", &bound), Some(binding));
        assert_eq!(ours.bound("so be it.", &bound), None);
        assert_eq!(other.bound("so be it", &bound), None);
        let data = ours.enclose("hidden", binding);
        assert_eq!(ours.enclosed(&data), Some(binding));
        assert_eq!(other.enclosed(&data), None);
        for no in ["not base64!", "AAAA", ""] {
            assert_eq!((ours.enclosed(no), ours.bound("so be it", no)), (None, None));
        }
    }

    #[test]
    fn a_redacted_key_is_comparable_and_short_ones_show_nothing() {
        let key = "sk-abcdefghijklmnop";
        assert_eq!(redact(key), redact(key));
        assert_ne!(redact(key), redact("sk-abcdefghijklmnoq"));
        assert!(redact(key).ends_with("mnop"));
        assert!(redact("short").ends_with('…'));
        assert!(!redact(key).contains("abcdef"));
    }
}
