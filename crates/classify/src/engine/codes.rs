//! What providers' codes, types, status strings and exceptions mean.

use std::{collections::HashMap, sync::LazyLock};

use aho_corasick::AhoCorasick;
use smallvec::SmallVec;
use steadfast_core::Reason;

use super::{
    sockets,
    table::{Row, Table, TableError, automaton, built_in, table},
    vendors::{self, Vendor},
};

const CODES: Table = table!("codes.txt");
const PARTS: Table = table!("name_parts.txt");

/// How much a code decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Weight {
    /// Says no more than a status would; statuses and rules decide first.
    Hint,
    /// Decides unless an exact rule says otherwise: providers use it for more than one thing.
    Firm,
    /// Decides.
    Final,
}

/// What a code or a rule changes about the reason's default verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Effect {
    #[default]
    None,
    /// It does not clear within a minute.
    NoRetry,
    /// A window that opens again by itself: hours from now, unless a short wait is stated.
    Reopens,
    /// The model misbehaved, not the request: the same request may well succeed.
    Retry,
    /// It does not clear by itself.
    Permanent,
    /// The rule is one vendor's own: another one takes the same request.
    Elsewhere,
}

impl Effect {
    pub(crate) fn of(row: &Row, column: usize) -> Result<Self, TableError> {
        row.one_of(
            column,
            &[
                ("", Effect::None),
                ("no-retry", Effect::NoRetry),
                ("reopens", Effect::Reopens),
                ("retry", Effect::Retry),
                ("permanent", Effect::Permanent),
                ("elsewhere", Effect::Elsewhere),
            ],
        )
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Code {
    /// As the provider spells it; shown as evidence.
    pub(crate) name: &'static str,
    pub(crate) reason: Reason,
    pub(crate) weight: Weight,
    pub(crate) effect: Effect,
}

/// A name in lower case without punctuation.
type Normal = SmallVec<[u8; 64]>;

/// Codes by the vendor who alone means this by them, if any, and by their normal form.
type Codes = HashMap<(Option<Vendor>, Normal), Code>;

static ALL: LazyLock<Codes> = LazyLock::new(|| built_in(read(CODES)));

fn read(table: Table) -> Result<Codes, TableError> {
    let mut codes = Codes::new();
    for row in table.rows(3, 5)? {
        let name = row.text(0);
        let weights = [("hint", Weight::Hint), ("firm", Weight::Firm), ("final", Weight::Final)];
        let code = Code {
            name,
            reason: row.reason(1)?,
            weight: row.one_of(2, &weights)?,
            effect: Effect::of(&row, 3)?,
        };
        let vendor = match row.text(4) {
            "" => None,
            name => Some(
                vendors::named(name)
                    .ok_or_else(|| row.error(format!("`{name}` is no vendor of vendors.txt")))?,
            ),
        };
        let normal = normal(name).ok_or_else(|| {
            row.error(format!("`{name}` is too long for a code, or has a character no code has"))
        })?;
        if vendor.is_none() && normal.iter().all(u8::is_ascii_digit) {
            return Err(row.error(format!("`{name}` is a number: whose?")));
        }
        row.insert(&mut codes, (vendor, normal), code)?;
    }
    // Clients put the name of a socket error where others put a code.
    for (_, name, transport) in sockets::all() {
        let reason = super::transport::reason(*transport);
        let code = Code { name, reason, weight: Weight::Hint, effect: Effect::None };
        if let Some(normal) = normal(name) {
            codes.entry((None, normal)).or_insert(code);
        }
    }
    Ok(codes)
}

/// What the parts of unknown names mean.
#[derive(Debug)]
struct NameParts {
    automaton: AhoCorasick,
    /// By the automaton's patterns; `None` for those that say nothing.
    reasons: Vec<Option<Reason>>,
}

static NAME_PARTS: LazyLock<NameParts> = LazyLock::new(|| built_in(read_parts(PARTS)));

fn read_parts(table: Table) -> Result<NameParts, TableError> {
    let mut parts: Vec<&str> = Vec::new();
    let mut reasons = Vec::new();
    for row in table.rows(2, 2)? {
        let part = row.text(0);
        if !part.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit()) {
            return Err(row.error(format!("`{part}` has more than small letters and digits")));
        }
        if let Some(known) = parts.iter().find(|known| part.contains(**known)) {
            return Err(row.error(format!("`{part}` is never reached: `{known}` is above it")));
        }
        parts.push(part);
        reasons.push(if row.text(1) == "none" { None } else { Some(row.reason(1)?) });
    }
    Ok(NameParts { automaton: automaton(parts), reasons })
}

/// Reads the tables now rather than at the first failure.
pub(crate) fn warm() {
    LazyLock::force(&ALL);
    LazyLock::force(&NAME_PARTS);
}

/// The normal form of `name`, unless it is none.
fn normal(name: &str) -> Option<Normal> {
    let mut normal = Normal::new();
    if name.len() > normal.inline_size() {
        return None;
    }
    for byte in name.bytes() {
        match byte {
            b'_' | b'-' | b'.' | b' ' | b'/' => {}
            byte if byte.is_ascii_alphanumeric() => normal.push(byte.to_ascii_lowercase()),
            _ => return None,
        }
    }
    (!normal.is_empty()).then_some(normal)
}

/// What `name` means to `vendors`, or whoever says it. A dotted name (`Throttling.RateQuota`,
/// `litellm.RateLimitError`) is tried whole, then by its last and its first part.
pub(crate) fn lookup(name: &str, vendors: &[Vendor]) -> Option<Code> {
    // `channel:invalid_key` of new-api; `ThrottlingException:http://...` in Amazon's header;
    // `ns#Name` in its JSON.
    let name = name.strip_prefix("channel:").unwrap_or(name);
    let name = name.split([':', ',']).next()?;
    let name = name.rsplit('#').next()?.trim();
    exact(name, vendors).or_else(|| {
        let (_, last) = name.rsplit_once('.')?;
        exact(last, vendors).or_else(|| exact(name.split('.').next()?, vendors))
    })
}

fn exact(name: &str, vendors: &[Vendor]) -> Option<Code> {
    let mut key = (None, normal(name)?);
    for vendor in vendors {
        key.0 = Some(*vendor);
        if let Some(code) = ALL.get(&key) {
            return Some(*code);
        }
    }
    key.0 = None;
    ALL.get(&key).copied()
}

/// What a name of no table seems to mean.
pub(crate) fn guess(name: &str) -> Option<Reason> {
    let normal = normal(name)?;
    let NameParts { automaton, reasons } = &*NAME_PARTS;
    let first = automaton.find_overlapping_iter(&normal).map(|hit| hit.pattern()).min()?;
    reasons[first]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_are_well_formed() {
        read(CODES).unwrap();
        read_parts(PARTS).unwrap();
    }

    #[test]
    fn mistakes_are_named() {
        for (text, error) in [
            ("a | auth | final\nA- | auth | final", "codes.txt:2: `A-` is listed twice"),
            ("a | nope | final", "codes.txt:1: `nope` is no reason"),
            ("a | auth | strong", "codes.txt:1: `strong` is none of: hint, firm, final"),
            ("a | auth | final | | nobody", "codes.txt:1: `nobody` is no vendor of vendors.txt"),
            ("1113 | auth | final", "codes.txt:1: `1113` is a number: whose?"),
            (
                "a! | auth | final",
                "codes.txt:1: `a!` is too long for a code, or has a character no code has",
            ),
        ] {
            let found = read(Table { file: "codes.txt", text }).unwrap_err();
            assert_eq!(found.to_string(), format!("data/{error}"));
        }
        for (text, error) in [
            (
                "timeout | timeout\nreadtimeout | network",
                "2: `readtimeout` is never reached: `timeout` is above it",
            ),
            ("time_out | timeout", "1: `time_out` has more than small letters and digits"),
        ] {
            let found = read_parts(Table { file: "name_parts.txt", text }).unwrap_err();
            assert_eq!(found.to_string(), format!("data/name_parts.txt:{error}"));
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
            ("AuthFailure.SecretIdNotFound", Reason::Auth),
            ("WSAECONNRESET", Reason::Network),
            ("WSAETIMEDOUT", Reason::Timeout),
        ] {
            assert_eq!(lookup(name, &[]).map(|code| code.reason), Some(reason), "{name}");
        }
        for name in ["", ".", "cat", "insufficient quota!", &"x".repeat(500), "é"] {
            assert!(lookup(name, &[]).is_none(), "{name}");
        }
    }

    #[test]
    fn numbers_are_a_vendors_own() {
        let reason = |provider: &str, code: &str| {
            lookup(code, &vendors::of(provider)).map(|code| code.reason)
        };
        assert_eq!(reason("zai-coding", "1113"), Some(Reason::Billing));
        assert_eq!(reason("MiniMax", "1002"), Some(Reason::RateLimit));
        assert_eq!(reason("zai", "insufficient_quota"), Some(Reason::Billing));
        assert_eq!(reason("openai", "1113"), None);
    }

    #[test]
    fn names_are_taken_apart() {
        for (name, expected) in [
            ("request_quota_exceeded", Some(Reason::RateLimit)),
            ("EngineDeadError", Some(Reason::ServerError)),
            ("aiohttp.client_exceptions.ClientPayloadError", Some(Reason::Network)),
            ("httpx.ConnectTimeout", Some(Reason::Timeout)),
            ("SubscriptionExpired", Some(Reason::Billing)),
            ("ApiKeyNotFound", Some(Reason::Auth)),
            ("ModelDeploymentNotFound", Some(Reason::ModelNotFound)),
            ("MissingSessionID", Some(Reason::Format)),
            ("ServiceBusy", Some(Reason::Overloaded)),
            ("System.InvalidOperationException", None),
            ("ValueError", None),
            ("SomeError", None),
            ("", None),
            ("not a name!", None),
        ] {
            assert_eq!(guess(name), expected, "{name}");
        }
    }
}
