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
use super::map::{Map, words};

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

/// Codes by the normal form of their names.
static TABLE: LazyLock<Map<{ MAX_NAME / 8 }, Code>> = LazyLock::new(|| {
    let mut table = Vec::new();
    for Group(reason, weight, twist, names) in GROUPS {
        for &name in *names {
            let code = Code { name, reason: *reason, weight: *weight, twist: *twist };
            if let Some(key) = Name::of(name) {
                table.push((words(&key.bytes), code));
            }
        }
    }
    Map::new(table)
});

/// A name in lower case without punctuation; zeros behind it.
struct Name {
    bytes: [u8; MAX_NAME],
    length: usize,
}

impl Name {
    /// The normal form of `name`, unless it is none.
    fn of(name: &str) -> Option<Self> {
        let mut bytes = [0; MAX_NAME];
        let mut length = 0;
        for byte in name.bytes() {
            match NORMAL[usize::from(byte)] {
                0 => return None,
                SKIPPED => {}
                normal => {
                    *bytes.get_mut(length)? = normal;
                    length += 1;
                }
            }
        }
        (length > 0).then_some(Self { bytes, length })
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// What [`NORMAL`] has for punctuation.
const SKIPPED: u8 = 1;

/// What a byte is in a name's normal form: itself in lower case, [`SKIPPED`], or zero where it
/// can not stand in a name.
const NORMAL: [u8; 256] = {
    let mut table = [0; 256];
    let mut byte = 0u8;
    loop {
        table[byte as usize] = if byte.is_ascii_alphanumeric() {
            byte.to_ascii_lowercase()
        } else if matches!(byte, b'_' | b'-' | b'.' | b' ' | b'/') {
            SKIPPED
        } else {
            0
        };
        if byte == u8::MAX {
            break table;
        }
        byte += 1;
    }
};

fn exact(name: &str) -> Option<Code> {
    TABLE.get(&words(&Name::of(name)?.bytes)).copied()
}

/// Builds the tables now rather than at the first failure.
pub(crate) fn warm() {
    LazyLock::force(&TABLE);
    roots::warm();
}

/// What `name` means, whatever vendor says it. A dotted name (`Throttling.RateQuota`,
/// `litellm.RateLimitError`) is tried whole, then by its last and its first part.
pub(crate) fn lookup(name: &str) -> Option<Code> {
    // `channel:invalid_key` of new-api; `ThrottlingException:http://...` in Amazon's header;
    // `ns#Name` in its JSON.
    let name = name.strip_prefix("channel:").unwrap_or(name);
    let end = name.bytes().position(|byte| matches!(byte, b':' | b','));
    let name = end.map_or(name, |end| &name[..end]);
    let start = name.bytes().rposition(|byte| byte == b'#');
    let name = start.map_or(name, |start| &name[start + 1..]).trim();
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
    if !is_number(code) {
        return None;
    }
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

/// Whether a code may be a vendor's own: all of those are numbers, and most names are none.
fn is_number(code: &str) -> bool {
    code.starts_with(|c: char| c.is_ascii_digit() || c == '-')
}

/// Whether `part`, which is in lower case, is in `text` however that is written.
pub(crate) fn contains_ignore_case(text: &str, part: &str) -> bool {
    let Some(&first) = part.as_bytes().first() else { return true };
    text.as_bytes().windows(part.len()).any(|window| {
        window[0].eq_ignore_ascii_case(&first) && window.eq_ignore_ascii_case(part.as_bytes())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_has_two_meanings() {
        let table = &*TABLE;
        for (name, code) in table.entries() {
            let known = table.get(name).unwrap();
            assert_eq!(
                (known.reason, known.weight, known.twist),
                (code.reason, code.weight, code.twist),
                "{} and {}",
                known.name,
                code.name
            );
        }
        let names: usize = GROUPS.iter().map(|group| group.3.len()).sum();
        assert_eq!(
            table.entries().len(),
            names,
            "a name is too long or has a character of its own"
        );
        for Vendor(_, codes) in VENDORS {
            for (code, ..) in *codes {
                assert!(is_number(code), "{code} is no number");
            }
        }
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
