//! What providers' messages mean: the tables are in the submodules, the machine is here.
//!
//! A pattern is a conjunction of alternatives (`[a or b] and [c or d]`) of plain phrases, with
//! vetoes and a set of statuses. All phrases of all patterns are found in one pass over the
//! lower-cased text; a pattern then is a few bit operations. Phrases are written in lower case
//! with a straight apostrophe.

mod account;
mod breakage;
mod index;
mod provider;
mod request;
mod shape;
mod window;
mod words;

use std::sync::LazyLock;

use steadfast_core::{Reason, Retry};

use self::index::Index;
use super::codes::Twist;

/// When a pattern is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tier {
    /// The words leave no doubt: before the codes that have several meanings.
    Exact,
    /// After those codes.
    Loose,
}

/// Statuses a pattern applies to. Without a status (none known, or a 2xx) every pattern applies.
#[derive(Clone, Copy, Debug)]
pub(crate) enum On {
    Any,
    Only(&'static [u16]),
    Not(&'static [u16]),
}

#[derive(Debug)]
pub(crate) struct Pattern {
    pub(crate) reason: Reason,
    pub(crate) twist: Twist,
    pub(crate) retry: Option<Retry>,
    tier: Tier,
    need: &'static [&'static [&'static str]],
    veto: &'static [&'static str],
    on: On,
    /// The alternatives must follow each other in order within so many bytes.
    gap: usize,
}

const fn exact(reason: Reason, need: &'static [&'static [&'static str]]) -> Pattern {
    Pattern {
        reason,
        twist: Twist::Plain,
        retry: None,
        tier: Tier::Exact,
        need,
        veto: &[],
        on: On::Any,
        gap: 0,
    }
}

const fn loose(reason: Reason, need: &'static [&'static [&'static str]]) -> Pattern {
    Pattern { tier: Tier::Loose, ..exact(reason, need) }
}

impl Pattern {
    const fn veto(self, veto: &'static [&'static str]) -> Self {
        Self { veto, ..self }
    }

    const fn only(self, statuses: &'static [u16]) -> Self {
        Self { on: On::Only(statuses), ..self }
    }

    const fn not(self, statuses: &'static [u16]) -> Self {
        Self { on: On::Not(statuses), ..self }
    }

    const fn in_order(self, gap: usize) -> Self {
        Self { gap, ..self }
    }

    const fn twist(self, twist: Twist) -> Self {
        Self { twist, ..self }
    }

    const fn retry(self, retry: Retry) -> Self {
        Self { retry: Some(retry), ..self }
    }
}

/// Circumstances a pattern may ask for or veto like a phrase; they are not in the text.
pub(crate) const GOOGLE: &str = "@google";
pub(crate) const CEREBRAS: &str = "@cerebras";

const CIRCUMSTANCES: [&str; 2] = [GOOGLE, CEREBRAS];

/// Asked in this order; the first that holds decides.
const TABLES: [&[Pattern]; 8] = [
    account::PATTERNS,
    window::PATTERNS,
    request::FIRST,
    provider::PATTERNS,
    breakage::PATTERNS,
    request::PATTERNS,
    shape::PATTERNS,
    breakage::WRAPPERS,
];

/// Most patterns there may be; a test holds the tables to it.
const MAX_PATTERNS: usize = 128;

/// The bit of a pattern's state that a veto sets; the others are its groups.
const VETOED: u8 = 0x80;

/// What a phrase does to a pattern when it is found.
#[derive(Clone, Copy, Debug)]
struct Member {
    pattern: u8,
    bit: u8,
}

/// Which patterns were met in a text.
#[derive(Clone)]
pub(crate) struct Found {
    /// The groups met, by pattern.
    states: [u8; MAX_PATTERNS],
    /// The phrase that met a pattern's first group, by its number plus one.
    phrases: [u16; MAX_PATTERNS],
    /// A bit for each pattern of which all groups were met.
    whole: u128,
    vetoed: u128,
}

#[derive(Debug)]
struct Matcher {
    phrases: Vec<&'static str>,
    index: Index,
    /// By phrase.
    members: Vec<Vec<Member>>,
    /// In the order they are asked, with the state that means all groups were met.
    patterns: Vec<(&'static Pattern, u8)>,
}

static MATCHER: LazyLock<Matcher> = LazyLock::new(|| {
    let all = || TABLES.iter().flat_map(|table| table.iter()).take(MAX_PATTERNS);
    let mut phrases: Vec<&'static str> = CIRCUMSTANCES.to_vec();
    for pattern in all() {
        phrases.extend(pattern.need.iter().copied().flatten().chain(pattern.veto));
    }
    phrases.sort_unstable();
    phrases.dedup();
    let mut members = vec![Vec::new(); phrases.len()];
    let mut patterns = Vec::new();
    for (index, pattern) in (0u8..).zip(all()) {
        let mut join = |names: &[&'static str], bit: u8| {
            for name in names {
                if let Ok(phrase) = phrases.binary_search(name) {
                    members[phrase].push(Member { pattern: index, bit });
                }
            }
        };
        let mut full = 0;
        for (group, names) in pattern.need.iter().take(7).enumerate() {
            let bit = 1 << group;
            join(names, bit);
            full |= bit;
        }
        join(pattern.veto, VETOED);
        patterns.push((pattern, full));
    }
    Matcher { index: Index::new(&phrases), phrases, members, patterns }
});

/// Builds the tables now rather than at the first failure.
pub(crate) fn warm() {
    LazyLock::force(&MATCHER);
}

/// The phrases found in `lower`, which is in lower case.
pub(crate) fn scan(lower: &str) -> Found {
    let matcher = &*MATCHER;
    let mut found =
        Found { states: [0; MAX_PATTERNS], phrases: [0; MAX_PATTERNS], whole: 0, vetoed: 0 };
    matcher.index.scan(lower.as_bytes(), &matcher.phrases, |phrase| found.mark(matcher, phrase));
    found
}

impl Found {
    fn mark(&mut self, matcher: &Matcher, phrase: usize) {
        for member in &matcher.members[phrase] {
            let pattern = usize::from(member.pattern);
            if member.bit == VETOED {
                self.vetoed |= 1 << pattern;
                continue;
            }
            self.states[pattern] |= member.bit;
            if self.states[pattern] == matcher.patterns[pattern].1 {
                self.whole |= 1 << pattern;
            }
            if member.bit == 1 && self.phrases[pattern] == 0 {
                self.phrases[pattern] = u16::try_from(phrase + 1).unwrap_or(0);
            }
        }
    }

    /// With a circumstance.
    pub(crate) fn note(&mut self, circumstance: &'static str) {
        let matcher = &*MATCHER;
        if let Ok(phrase) = matcher.phrases.binary_search(&circumstance) {
            self.mark(matcher, phrase);
        }
    }
}

/// The first pattern of `tier` that holds, and its phrase that was found.
pub(crate) fn decide(
    tier: Tier,
    found: &Found,
    lower: &str,
    status: Option<u16>,
) -> Option<(&'static Pattern, &'static str)> {
    let matcher = &*MATCHER;
    let mut left = found.whole & !found.vetoed;
    while left != 0 {
        let index = left.trailing_zeros() as usize;
        left &= left - 1;
        let (pattern, _) = matcher.patterns[index];
        let holds = pattern.tier == tier
            && pattern.on.allows(status)
            && (pattern.gap == 0 || pattern.follows(lower));
        if holds {
            let phrase = usize::from(found.phrases[index]).checked_sub(1);
            return Some((pattern, phrase.map_or("", |phrase| matcher.phrases[phrase])));
        }
    }
    None
}

impl On {
    fn allows(self, status: Option<u16>) -> bool {
        match (self, status) {
            (On::Any, _) | (_, None) => true,
            (On::Only(statuses), Some(status)) => statuses.contains(&status),
            (On::Not(statuses), Some(status)) => !statuses.contains(&status),
        }
    }
}

/// How many places are tried where an ordered pattern may begin. Texts that repeat its first
/// phrase more often are echoes of a conversation.
const MAX_STARTS: usize = 16;

impl Pattern {
    /// Whether the alternatives follow each other in `lower`.
    fn follows(&self, lower: &str) -> bool {
        let Some((first, rest)) = self.need.split_first() else { return true };
        first.iter().any(|start| {
            memchr::memmem::find_iter(lower.as_bytes(), start)
                .take(MAX_STARTS)
                .any(|at| chain(&lower.as_bytes()[at + start.len()..], rest, self.gap))
        })
    }
}

fn chain(text: &[u8], groups: &[&[&str]], gap: usize) -> bool {
    let Some((first, rest)) = groups.split_first() else { return true };
    first.iter().any(|phrase| {
        let window = &text[..text.len().min(gap + phrase.len())];
        memchr::memmem::find(window, phrase.as_bytes())
            .is_some_and(|at| chain(&text[at + phrase.len()..], rest, gap))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_are_well_formed() {
        let matcher = &*MATCHER;
        let count: usize = TABLES.iter().map(|table| table.len()).sum();
        assert_eq!(matcher.patterns.len(), count, "at most {MAX_PATTERNS} patterns");
        assert!(matcher.phrases.len() < index::MAX_PHRASES, "{}", matcher.phrases.len());
        for phrase in &matcher.phrases {
            assert!(phrase.len() >= index::PREFIX, "{phrase} is too short to be found");
            assert!(!phrase.starts_with(' '), "{phrase} would never begin a word");
            assert_eq!(*phrase, phrase.to_lowercase(), "phrases are in lower case");
            assert!(!phrase.contains('’'), "{phrase}: straight apostrophes");
        }
        for pattern in TABLES.iter().flat_map(|table| table.iter()) {
            assert!(!pattern.need.is_empty());
            assert!(pattern.need.iter().all(|group| !group.is_empty()), "{pattern:?}");
            assert!(pattern.need.len() <= 7, "{pattern:?}");
        }
    }

    #[test]
    fn order_and_distance() {
        let pattern = loose(Reason::ModelNotFound, &[&["model"], &["not found"]]).in_order(20);
        assert!(pattern.follows("the model x was not found"));
        assert!(!pattern.follows("not found: model"));
        assert!(!pattern.follows("model ............................. not found"));
        assert!(pattern.follows("model ............................. model not found"));
    }

    #[test]
    fn overlapping_phrases_are_all_found_and_vetoes_hold() {
        let reason = |text: &str| {
            decide(Tier::Exact, &scan(text), text, None).map(|(pattern, _)| pattern.reason)
        };
        assert_eq!(reason("prompt is too long"), Some(Reason::ContextOverflow));
        assert_ne!(reason("prompt is too long, rate limit"), Some(Reason::ContextOverflow));
        assert_eq!(reason("not insufficient balance"), Some(Reason::Billing));
    }
}
