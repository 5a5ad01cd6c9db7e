//! What providers' codes, types and status words mean.
//!
//! The tables are in the submodules. Names are compared without case and punctuation, so
//! `insufficient_quota`, `InsufficientQuota` and `INSUFFICIENT-QUOTA` are one entry.

mod names;
mod roots;
mod vendors;

use std::sync::LazyLock;

use steadfast_core::Reason;

pub(crate) use self::roots::guess;
use self::{
    names::GROUPS,
    vendors::{VENDORS, Vendor},
};

/// How much a code settles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Weight {
    /// Says no more than a status would; statuses and words decide first.
    Hint,
    /// Decides unless exact words say otherwise: providers use it for more than one thing.
    Firm,
    /// Decides.
    Final,
}

/// What a code changes about the reason's default verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Twist {
    /// Nothing.
    Plain,
    /// It does not clear within a minute.
    Long,
    /// A window that opens again by itself: hours later, unless it says that it is soon.
    Later,
    /// The model misbehaved, not the request: the same request may well pass.
    Again,
    /// It does not pass by itself.
    Permanent,
    /// The rule is one vendor's own: another one takes the same request.
    Elsewhere,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Code {
    /// As the provider spells it; shown as evidence.
    pub(crate) name: &'static str,
    pub(crate) reason: Reason,
    pub(crate) weight: Weight,
    pub(crate) twist: Twist,
}

struct Group(Reason, Weight, Twist, &'static [&'static str]);

/// The longest name in the table is far below; longer text is no code.
const MAX_NAME: usize = 64;

/// Sorted by the hash of the normal form.
static TABLE: LazyLock<Vec<(u64, Code)>> = LazyLock::new(|| {
    let mut table: Vec<(u64, Code)> = Vec::new();
    for Group(reason, weight, twist, names) in GROUPS {
        for &name in *names {
            let code = Code { name, reason: *reason, weight: *weight, twist: *twist };
            let mut buffer = [0; MAX_NAME];
            if let Some(key) = normal(name, &mut buffer) {
                table.push((hash(key), code));
            }
        }
    }
    table.sort_by_key(|(hash, _)| *hash);
    table
});

/// `name` in lower case without punctuation, in `buffer`.
fn normal<'b>(name: &str, buffer: &'b mut [u8; MAX_NAME]) -> Option<&'b [u8]> {
    let mut length = 0;
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() {
            *buffer.get_mut(length)? = byte.to_ascii_lowercase();
            length += 1;
        } else if !matches!(byte, b'_' | b'-' | b'.' | b' ' | b'/') {
            return None;
        }
    }
    (length > 0).then(|| &buffer[..length])
}

/// FNV-1a: names are short.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn exact(name: &str) -> Option<Code> {
    let mut buffer = [0; MAX_NAME];
    let key = normal(name, &mut buffer)?;
    let wanted = hash(key);
    let table = &*TABLE;
    let code = table[table.binary_search_by_key(&wanted, |(hash, _)| *hash).ok()?].1;
    let mut buffer = [0; MAX_NAME];
    (normal(code.name, &mut buffer)? == key).then_some(code)
}

/// What `name` means, whatever vendor says it. A dotted name (`Throttling.RateQuota`,
/// `litellm.RateLimitError`) is tried whole, then by its last and its first part.
pub(crate) fn lookup(name: &str) -> Option<Code> {
    // `channel:invalid_key` of new-api; `ThrottlingException:http://...` in Amazon's header;
    // `ns#Name` in its JSON.
    let name = name.strip_prefix("channel:").unwrap_or(name);
    let name = name.split([':', ',']).next().unwrap_or(name);
    let name = name.rsplit('#').next().unwrap_or(name).trim();
    if name.is_empty() || name.len() > MAX_NAME {
        return None;
    }
    exact(name).or_else(|| {
        let last = name.rsplit_once('.')?.1;
        exact(last).or_else(|| exact(name.split('.').next()?))
    })
}

/// What the number `code` means at `provider`.
pub(crate) fn vendor(provider: &str, code: &str) -> Option<Code> {
    let Vendor(_, codes) = VENDORS
        .iter()
        .find(|Vendor(names, _)| names.iter().any(|name| contains_ignore_case(provider, name)))?;
    codes.iter().find(|(known, ..)| *known == code).map(|&(name, reason, weight, twist)| Code {
        name,
        reason,
        weight,
        twist,
    })
}

pub(crate) fn contains_ignore_case(text: &str, part: &str) -> bool {
    text.as_bytes().windows(part.len()).any(|window| window.eq_ignore_ascii_case(part.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_has_two_meanings() {
        let table = &*TABLE;
        for pair in table.windows(2) {
            if pair[0].0 == pair[1].0 {
                let (a, b) = (pair[0].1, pair[1].1);
                assert_eq!(
                    (a.reason, a.weight, a.twist),
                    (b.reason, b.weight, b.twist),
                    "{} and {}",
                    a.name,
                    b.name
                );
            }
        }
        let names: usize = GROUPS.iter().map(|group| group.3.len()).sum();
        assert_eq!(table.len(), names, "a name was too long or had a character of its own");
    }

    #[test]
    fn spelling_does_not_matter() {
        for (name, reason) in [
            ("InsufficientQuota", Reason::Billing),
            ("ThrottlingException:http://internal.amazon.com/coral/", Reason::RateLimit),
            ("com.amazon.coral.service#AccessDeniedException", Reason::Auth),
            ("Throttling.RateQuota", Reason::RateLimit),
            ("InternalError.Algo.DataInspectionFailed", Reason::ContentFilter),
            ("litellm.ContextWindowExceededError", Reason::ContextOverflow),
            ("permission-denied", Reason::Auth),
        ] {
            assert_eq!(lookup(name).map(|code| code.reason), Some(reason), "{name}");
        }
        for name in ["", ".", "cat", "insufficient quota!", &"x".repeat(500), "é"] {
            assert!(lookup(name).is_none(), "{name}");
        }
    }

    #[test]
    fn numbers_are_a_vendors_own() {
        assert_eq!(vendor("zai-coding", "1113").map(|code| code.reason), Some(Reason::Billing));
        assert_eq!(vendor("MiniMax", "1002").map(|code| code.reason), Some(Reason::RateLimit));
        assert!(vendor("openai", "1113").is_none());
    }
}
