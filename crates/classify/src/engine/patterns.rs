//! What providers' messages mean: the tables are in the submodules, the machine is here.
//!
//! A pattern is a conjunction of alternatives (`[a or b] and [c or d]`) of plain phrases, with
//! vetoes and a set of statuses. All phrases of all patterns are found in one pass over the
//! lower-cased text; a pattern then is a few bit operations. Phrases are written in lower case
//! with a straight apostrophe.

mod account;
mod breakage;
mod provider;
mod request;
mod shape;
mod window;
mod words;

use std::sync::LazyLock;

use smallvec::SmallVec;
use steadfast_core::{Reason, Retry};

use super::{
    codes::Twist,
    index::{Index, MAX_PHRASES},
};

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
const GOOGLE: &str = "@google";
const CEREBRAS: &str = "@cerebras";

const CIRCUMSTANCES: [&str; 2] = [GOOGLE, CEREBRAS];

/// One of them, by its place there.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Circumstance {
    Google,
    Cerebras,
}

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
    /// A bit for each phrase.
    seen: [u64; MAX_PHRASES / 64],
    /// A bit for each pattern of which all groups were met.
    whole: u128,
    vetoed: u128,
}

#[derive(Debug)]
struct Matcher {
    phrases: Vec<&'static str>,
    /// Each phrase as evidence.
    evidence: Vec<String>,
    index: Index,
    /// By phrase.
    members: Vec<Vec<Member>>,
    /// In the order they are asked.
    patterns: Vec<Row>,
    /// The phrases that are circumstances.
    circumstances: [Option<usize>; 2],
}

#[derive(Debug)]
struct Row {
    pattern: &'static Pattern,
    /// The state that means all groups were met.
    full: u8,
    /// The groups' phrases by number, where they have to be in order.
    ordered: Vec<Vec<u16>>,
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
        let numbers = |names: &&[&str]| {
            let found = names.iter().filter_map(|name| phrases.binary_search(name).ok());
            found.filter_map(|number| u16::try_from(number).ok()).collect()
        };
        let ordered = if pattern.gap == 0 { &[][..] } else { pattern.need };
        let ordered = ordered.iter().map(numbers).collect();
        patterns.push(Row { pattern, full, ordered });
    }
    let evidence = phrases.iter().map(|phrase| format!("pattern:{phrase}")).collect();
    let circumstances = CIRCUMSTANCES.map(|name| phrases.binary_search(&name).ok());
    Matcher { index: Index::new(&phrases), phrases, evidence, members, patterns, circumstances }
});

/// Builds the tables now rather than at the first failure.
pub(crate) fn warm() {
    LazyLock::force(&MATCHER);
}

/// The phrases found in `lower`, which is in lower case.
pub(crate) fn scan(lower: &str) -> Found {
    let matcher = &*MATCHER;
    let mut found = Found {
        states: [0; MAX_PATTERNS],
        phrases: [0; MAX_PATTERNS],
        seen: [0; MAX_PHRASES / 64],
        whole: 0,
        vetoed: 0,
    };
    matcher.index.scan(lower.as_bytes(), &matcher.phrases, |phrase| found.mark(matcher, phrase));
    found
}

impl Found {
    fn mark(&mut self, matcher: &Matcher, phrase: usize) {
        self.seen[phrase / 64] |= 1 << (phrase % 64);
        for member in &matcher.members[phrase] {
            let pattern = usize::from(member.pattern);
            if member.bit == VETOED {
                self.vetoed |= 1 << pattern;
                continue;
            }
            self.states[pattern] |= member.bit;
            if self.states[pattern] == matcher.patterns[pattern].full {
                self.whole |= 1 << pattern;
            }
            if member.bit == 1 && self.phrases[pattern] == 0 {
                self.phrases[pattern] = u16::try_from(phrase + 1).unwrap_or(0);
            }
        }
    }

    /// The phrases of an ordered pattern that were found.
    fn alternatives(&self, matcher: &Matcher, row: &Row) -> SmallVec<[Alternatives; 3]> {
        let seen = |phrase: &&u16| {
            let phrase = usize::from(**phrase);
            self.seen[phrase / 64] & (1 << (phrase % 64)) != 0
        };
        let phrase = |phrase: &u16| matcher.phrases[usize::from(*phrase)];
        row.ordered.iter().map(|group| group.iter().filter(seen).map(phrase).collect()).collect()
    }

    /// With a circumstance.
    pub(crate) fn note(&mut self, circumstance: Circumstance) {
        let matcher = &*MATCHER;
        if let Some(phrase) = matcher.circumstances[circumstance as usize] {
            self.mark(matcher, phrase);
        }
    }
}

/// The first pattern of `tier` that holds, and its phrase that was found, as evidence.
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
        let row = &matcher.patterns[index];
        let pattern = row.pattern;
        let holds = pattern.tier == tier
            && pattern.on.allows(status)
            && (pattern.gap == 0
                || follow(lower.as_bytes(), &found.alternatives(matcher, row), pattern.gap));
        if holds {
            let phrase = usize::from(found.phrases[index]).checked_sub(1);
            return Some((pattern, phrase.map_or("", |phrase| &matcher.evidence[phrase])));
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

/// The alternatives of one group that a text has.
type Alternatives = SmallVec<[&'static str; 4]>;

/// Whether one of each group's phrases follows one of the group before it in `text`.
fn follow(text: &[u8], groups: &[Alternatives], gap: usize) -> bool {
    let Some((first, rest)) = groups.split_first() else { return true };
    first.iter().any(|start| {
        places(text, start).take(MAX_STARTS).any(|at| chain(&text[at + start.len()..], rest, gap))
    })
}

fn chain(text: &[u8], groups: &[Alternatives], gap: usize) -> bool {
    let Some((first, rest)) = groups.split_first() else { return true };
    first.iter().any(|phrase| {
        let window = &text[..text.len().min(gap + phrase.len())];
        places(window, phrase).next().is_some_and(|at| chain(&text[at + phrase.len()..], rest, gap))
    })
}

/// Where `phrase` stands in `text`. Texts are too short for a searcher that has to be built.
fn places(text: &[u8], phrase: &str) -> impl Iterator<Item = usize> {
    let phrase = phrase.as_bytes();
    let first = phrase.first().copied().unwrap_or_default();
    memchr::memchr_iter(first, text).filter(move |&at| text[at..].starts_with(phrase))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::index::PREFIX;

    #[test]
    fn the_tables_are_well_formed() {
        let matcher = &*MATCHER;
        let count: usize = TABLES.iter().map(|table| table.len()).sum();
        assert_eq!(matcher.patterns.len(), count, "at most {MAX_PATTERNS} patterns");
        assert!(matcher.phrases.len() < MAX_PHRASES, "{}", matcher.phrases.len());
        for phrase in &matcher.phrases {
            assert!(phrase.len() >= PREFIX, "{phrase} is too short to be found");
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
        let groups =
            [Alternatives::from_slice(&["model"]), Alternatives::from_slice(&["not found"])];
        let follows = |text: &str| follow(text.as_bytes(), &groups, 20);
        assert!(follows("the model x was not found"));
        assert!(!follows("not found: model"));
        assert!(!follows("model ............................. not found"));
        assert!(follows("model ............................. model not found"));
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
