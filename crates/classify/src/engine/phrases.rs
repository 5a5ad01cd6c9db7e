//! The phrases that a message contains, and the numbers that it states: found in one walk over
//! the text, by one automaton for all of them.

use std::{borrow::Cow, collections::HashMap, sync::LazyLock};

use aho_corasick::AhoCorasick;
use smallvec::SmallVec;

use super::{
    sockets,
    table::{Row, Table, TableError, automaton, built_in, table},
    transport,
};

const PHRASES: Table = table!("phrases.txt");
const NUMBERS: Table = table!("numbers.txt");

/// A set of phrases, by its position in [`Phrases::sets`].
pub(crate) type Set = usize;

/// Most sets there may be.
const MAX_SETS: usize = 256;

/// What a number means, by the text before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Number {
    Wait,
    Limit,
    Requested,
    WindowSum,
    Output,
    Prompt,
    QuotaLimit,
    QuotaRequested,
    Most,
    Compared,
}

const MEANINGS: [(&str, Number); 10] = [
    ("wait", Number::Wait),
    ("limit", Number::Limit),
    ("requested", Number::Requested),
    ("window-sum", Number::WindowSum),
    ("output", Number::Output),
    ("prompt", Number::Prompt),
    ("quota-limit", Number::QuotaLimit),
    ("quota-requested", Number::QuotaRequested),
    ("most", Number::Most),
    ("compared", Number::Compared),
];

/// A text to search for, and what it is part of.
#[derive(Debug)]
struct Entry {
    text: Cow<'static, str>,
    sets: Vec<Set>,
    /// What a number behind it means, each with its rank: the lowest of a meaning counts.
    numbers: Vec<(Number, usize)>,
}

#[derive(Debug)]
struct Phrases {
    automaton: AhoCorasick,
    /// By the automaton's patterns.
    entries: Vec<Entry>,
    sets: Vec<&'static str>,
}

static ALL: LazyLock<Phrases> = LazyLock::new(|| built_in(read(PHRASES, NUMBERS)));

/// The entries so far.
#[derive(Default)]
struct Builder {
    entries: Vec<Entry>,
    by_text: HashMap<Cow<'static, str>, usize>,
    sets: Vec<&'static str>,
}

impl Builder {
    fn entry(&mut self, text: Cow<'static, str>) -> &mut Entry {
        let number = *self.by_text.entry(text.clone()).or_insert_with(|| {
            self.entries.push(Entry { text, sets: Vec::new(), numbers: Vec::new() });
            self.entries.len() - 1
        });
        &mut self.entries[number]
    }

    fn set(&mut self, name: &'static str) -> Set {
        // Nearly always that of the line before.
        self.sets.iter().rposition(|known| *known == name).unwrap_or_else(|| {
            self.sets.push(name);
            self.sets.len() - 1
        })
    }
}

fn read(phrases: Table, numbers: Table) -> Result<Phrases, TableError> {
    let mut builder = Builder::default();
    for row in phrases.rows(2, 2)? {
        let text = row.phrase(1);
        well_formed(&row, text)?;
        let set = builder.set(row.text(0));
        if set >= MAX_SETS - 2 {
            return Err(row.error(format!("more than {} sets", MAX_SETS - 2)));
        }
        let entry = builder.entry(text.into());
        if entry.sets.contains(&set) {
            return Err(row.error(format!("`{text}` is listed twice in `{}`", row.text(0))));
        }
        entry.sets.push(set);
    }
    for (rank, row) in numbers.rows(2, 2)?.into_iter().enumerate() {
        let text = row.text(1);
        well_formed(&row, text)?;
        let number = row.one_of(0, &MEANINGS)?;
        let entry = builder.entry(text.into());
        if entry.numbers.iter().any(|(known, _)| *known == number) {
            return Err(row.error(format!("`{text}` is listed twice for `{}`", row.text(0))));
        }
        entry.numbers.push((number, rank));
    }
    // Two sets more.
    for (number, name, kind) in sockets::all() {
        let set = builder.set(match transport::reason(*kind) {
            steadfast_core::Reason::Timeout => "socket.timeout",
            _ => "socket.network",
        });
        for text in sockets::phrases(*number, name) {
            builder.entry(text.into()).sets.push(set);
        }
    }
    let automaton = automaton(builder.entries.iter().map(|entry| entry.text.as_bytes()));
    Ok(Phrases { automaton, entries: builder.entries, sets: builder.sets })
}

/// What a text has to be for [`normalized`] texts to contain it.
fn well_formed(row: &Row, text: &str) -> Result<(), TableError> {
    let form = normalized(text);
    // A space at the end asks for the end of a word.
    if text != form && text.strip_suffix(' ') != Some(&form) {
        return Err(row.error(format!("`{text}` is never found; write it `{form}`")));
    }
    if text.chars().count() < 2 {
        return Err(row.error(format!("`{text}` is too short")));
    }
    Ok(())
}

/// Reads the tables now rather than at the first failure.
pub(crate) fn warm() {
    LazyLock::force(&ALL);
}

/// The set of that name.
pub(crate) fn set(name: &str) -> Option<Set> {
    ALL.sets.iter().position(|known| *known == name)
}

/// `text` in lower case, with ASCII quotes and single spaces, none of them at its ends.
pub(crate) fn normalized(text: &str) -> String {
    let mut text = Cow::Borrowed(text);
    if !text.is_ascii() {
        let ascii = text.chars().map(|c| match c {
            '’' | '‘' => '\'',
            '“' | '”' => '"',
            c if c.is_whitespace() => ' ',
            c => c,
        });
        text = Cow::Owned(ascii.collect());
    }
    let mut normalized = String::with_capacity(text.len());
    for part in text.split_ascii_whitespace() {
        if !normalized.is_empty() {
            normalized.push(' ');
        }
        normalized.push_str(part);
    }
    normalized.make_ascii_lowercase();
    normalized
}

/// What was found in a text.
#[derive(Debug)]
pub(crate) struct Found {
    /// How long the text is, and where it begins behind the name of an exception.
    length: usize,
    begin: usize,
    sets: [bool; MAX_SETS],
    /// The phrases in the order in which they end.
    spans: SmallVec<[Span; 8]>,
    /// By meaning: the rank of the text before the number, and where the number begins.
    numbers: [Option<(usize, usize)>; MEANINGS.len()],
}

#[derive(Clone, Copy, Debug)]
struct Span {
    entry: usize,
    start: usize,
    end: usize,
}

/// Searches for all phrases in `text`, which is [`normalized`].
pub(crate) fn find(text: &str) -> Found {
    let Phrases { automaton, entries, .. } = &*ALL;
    let mut found = Found {
        length: text.len(),
        begin: behind_name(text),
        sets: [false; _],
        spans: SmallVec::new(),
        numbers: [None; _],
    };
    for hit in automaton.find_overlapping_iter(text) {
        let span = Span { entry: hit.pattern().as_usize(), start: hit.start(), end: hit.end() };
        let bytes = text.as_bytes();
        if !begins_apart(bytes, span.start) {
            continue;
        }
        let entry = &entries[span.entry];
        if !entry.numbers.is_empty()
            && let Some(at) = number_behind(bytes, span.end)
        {
            for (number, rank) in &entry.numbers {
                let best = &mut found.numbers[*number as usize];
                if best.is_none_or(|(known, _)| *rank < known) {
                    *best = Some((*rank, at));
                }
            }
        }
        if !entry.sets.is_empty() && ends_apart(bytes, span.end) {
            entry.sets.iter().for_each(|set| found.sets[*set] = true);
            found.spans.push(span);
        }
    }
    found
}

/// Where a text begins behind the name of an exception, such as `error: `.
fn behind_name(text: &str) -> usize {
    match text.find(' ') {
        Some(space) if text[..space].ends_with(':') => space + 1,
        _ => 0,
    }
}

/// Whether what begins at `start` is no part of a longer word or number.
fn begins_apart(text: &[u8], start: usize) -> bool {
    let Some(before) = start.checked_sub(1).map(|at| text[at]) else { return true };
    if !text[start].is_ascii_alphanumeric() {
        return true;
    }
    let fraction = matches!(before, b'.' | b',')
        && text[start].is_ascii_digit()
        && start.checked_sub(2).is_some_and(|at| text[at].is_ascii_digit());
    !before.is_ascii_alphanumeric() && !fraction
}

/// Whether what ends before `end` does not end within a number. A word may continue.
fn ends_apart(text: &[u8], end: usize) -> bool {
    if !text[end - 1].is_ascii_digit() {
        return true;
    }
    match text.get(end) {
        Some(b'.' | b',') => !text.get(end + 1).is_some_and(u8::is_ascii_digit),
        next => !next.is_some_and(u8::is_ascii_alphanumeric),
    }
}

/// Where the number begins that follows at once, or behind one space.
fn number_behind(text: &[u8], end: usize) -> Option<usize> {
    let at = match text.get(end)? {
        b' ' => end + 1,
        _ if text[end - 1].is_ascii_alphanumeric() => return None,
        _ => end,
    };
    text.get(at)?.is_ascii_digit().then_some(at)
}

impl Found {
    /// Whether a phrase of `set` was found.
    pub(crate) fn has(&self, set: Set) -> bool {
        self.sets[set]
    }

    /// The same for a set that code asks for; its name has to be one.
    pub(crate) fn has_named(&self, name: &str) -> bool {
        debug_assert!(set(name).is_some(), "no set is called {name}");
        set(name).is_some_and(|set| self.has(set))
    }

    /// The phrase of `set` that was found first.
    pub(crate) fn first(&self, set: Set) -> Option<&'static str> {
        let entries = &ALL.entries;
        let span = self.spans.iter().find(|span| entries[span.entry].sets.contains(&set))?;
        Some(&entries[span.entry].text)
    }

    /// Whether the text is about a phrase of `set` and nothing else: it has at most `most` bytes, or
    /// begins with the phrase.
    pub(crate) fn is_about(&self, set: Set, most: usize) -> bool {
        let begins = |span: &Span| {
            (span.start == 0 || span.start == self.begin)
                && ALL.entries[span.entry].sets.contains(&set)
        };
        self.length <= most || self.spans.iter().any(begins)
    }

    /// Whether a phrase of each set follows one of the set before it, at most `within` bytes
    /// behind it.
    pub(crate) fn in_order(&self, sets: &[Set], within: usize) -> bool {
        let Some(last) = sets.len().checked_sub(1) else { return true };
        // By set: where those phrases end that follow one of each set before it.
        let mut ends: Vec<Vec<usize>> = vec![Vec::new(); sets.len()];
        for span in &self.spans {
            let entry = &ALL.entries[span.entry];
            for (number, set) in sets.iter().enumerate() {
                // Only phrases that overlap with this one end behind its start: a few steps back.
                let follows = number.checked_sub(1).is_none_or(|before| {
                    let before = ends[before].iter().rev().find(|end| **end <= span.start);
                    before.is_some_and(|end| span.start - end <= within)
                });
                if follows && entry.sets.contains(set) {
                    if number == last {
                        return true;
                    }
                    ends[number].push(span.end);
                }
            }
        }
        false
    }

    /// Where a number of that meaning begins, and the text before it.
    pub(crate) fn number(&self, number: Number) -> Option<usize> {
        self.numbers[number as usize].map(|(_, at)| at)
    }
}

/// Every set of the file, with a phrase of it: for the tests of the rules.
#[cfg(test)]
pub(super) fn sets() -> Vec<(&'static str, Vec<&'static str>)> {
    let phrases = |set: usize| {
        let members = ALL.entries.iter().filter(move |entry| entry.sets.contains(&set));
        members.map(|entry| &*entry.text).collect()
    };
    ALL.sets.iter().enumerate().map(|(set, name)| (*name, phrases(set))).collect()
}

/// The phrases of one set that another phrase of it makes superfluous.
#[cfg(test)]
fn superfluous() -> Vec<String> {
    let mut superfluous = Vec::new();
    for (name, phrases) in sets() {
        for phrase in &phrases {
            for other in phrases.iter().filter(|other| *other != phrase) {
                let mut positions = phrase.match_indices(other);
                if positions.any(|(at, _)| {
                    begins_apart(phrase.as_bytes(), at)
                        && ends_apart(phrase.as_bytes(), at + other.len())
                }) {
                    superfluous.push(format!("{name} | {phrase} (contains `{other}`)"));
                }
            }
        }
    }
    superfluous
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_files_are_well_formed() {
        read(PHRASES, NUMBERS).unwrap();
        assert_eq!(superfluous(), [""; 0]);
    }

    #[test]
    fn mistakes_are_named() {
        let phrases = |text| Table { file: "phrases.txt", text };
        let numbers = |text| Table { file: "numbers.txt", text };
        for (text, error) in [
            ("a | Rate Limit", "phrases.txt:1: `Rate Limit` is never found; write it `rate limit`"),
            (
                "a | rate  limit",
                "phrases.txt:1: `rate  limit` is never found; write it `rate limit`",
            ),
            ("a | it’s", "phrases.txt:1: `it’s` is never found; write it `it's`"),
            ("a | \" rate\"", "phrases.txt:1: ` rate` is never found; write it `rate`"),
            ("a | x", "phrases.txt:1: `x` is too short"),
            ("a | xy\nb | xy\na | xy", "phrases.txt:3: `xy` is listed twice in `a`"),
        ] {
            let found = read(phrases(text), numbers("")).unwrap_err().to_string();
            assert_eq!(found, format!("data/{error}"));
        }
        let found = read(phrases(""), numbers("wait | in\nlimit | in\nwait | in")).unwrap_err();
        assert_eq!(found.to_string(), "data/numbers.txt:3: `in` is listed twice for `wait`");
    }

    #[test]
    fn texts_are_normalized() {
        for (text, expected) in [
            ("Rate\n\t  LIMIT", "rate limit"),
            ("“It’s”\u{a0}\u{3000}full \n", "\"it's\" full"),
            ("已超出\r\n限制", "已超出 限制"),
            ("", ""),
        ] {
            assert_eq!(normalized(text), expected, "{text:?}");
        }
    }

    fn has(text: &str, set: &str) -> bool {
        find(&normalized(text)).has_named(set)
    }

    #[test]
    fn phrases_begin_at_the_start_of_a_word() {
        assert!(has("the rate\n   limit reached", "rate-limit"));
        assert!(has("upstream_rate limits", "rate-limit"));
        assert!(!has("corporate limit", "rate-limit"));
        assert!(has("limit 10 (TPM): x", "throttle"));
        assert!(has("您的账户已欠费", "billing"));
        assert!(!has("", "billing"));
    }

    #[test]
    fn numbers_are_whole() {
        for (text, expected) in [
            ("connect: os error 10054", true),
            ("[WinError 10054] x", true),
            ("os error 100541", false),
            ("os error 10054a", false),
            ("os error 10054.5", false),
            ("os error 10054.", true),
        ] {
            assert_eq!(has(text, "socket.network"), expected, "{text}");
        }
        for (text, expected) in [
            ("your 5-hour limit", true),
            ("the 15-hour limit", false),
            ("2.5-hour limit", false),
            ("a5-hour limit", false),
        ] {
            assert_eq!(has(text, "reopens"), expected, "{text}");
        }
    }

    #[test]
    fn numbers_have_a_meaning_by_the_text_before_them() {
        let number = |text: &str, number| find(text).number(number).map(|at| text[at..].to_owned());
        for (text, meaning, expected) in [
            ("try again in 20s", Number::Wait, Some("20s")),
            ("try again in a while", Number::Wait, None),
            ("limit 6000, requested 7000", Number::QuotaRequested, Some("7000")),
            ("limit6000", Number::QuotaLimit, None),
            ("context length (4096)", Number::Limit, Some("4096)")),
            ("limit is 5, maximum context length is 9", Number::Limit, Some("9")),
        ] {
            assert_eq!(number(text, meaning).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn a_text_is_about_what_it_begins_with_or_has_little_besides() {
        let long = "x".repeat(80);
        for (text, expected) in [
            ("user cancelled".to_owned(), true),
            ("it was the user abort that ended it".to_owned(), true),
            (format!("user cancelled {long}"), true),
            (format!("aborterror: user cancelled {long}"), true),
            (format!("{long} user cancelled"), false),
            (format!("the user cancelled {long}"), false),
            (format!("it failed: user cancelled {long}"), false),
        ] {
            let set = set("user-cancelled").unwrap();
            assert_eq!(find(&text).is_about(set, 80), expected, "{text}");
        }
    }

    #[test]
    fn order_and_distance() {
        let sets = ["model", "missing-deployment"].map(|name| set(name).unwrap());
        let follows = |text: &str| find(text).in_order(&sets, 20);
        assert!(follows("the model x was not found"));
        assert!(!follows("not found: model"));
        assert!(!follows("model ............................. not found"));
        assert!(follows("model ............................. model not found"));
    }

    proptest! {
        #[test]
        fn agrees_with_a_naive_search(
            text in "[a-z ()]{0,4}(rate limits?|limit reached|\\(tpm\\)|per min|欠费|5| |x){0,6}",
        ) {
            let found = find(&text);
            for (name, phrases) in sets() {
                let naive = phrases.iter().any(|phrase| {
                    text.match_indices(phrase).any(|(at, _)| {
                        begins_apart(text.as_bytes(), at)
                            && ends_apart(text.as_bytes(), at + phrase.len())
                    })
                });
                prop_assert_eq!(found.has(set(name).unwrap()), naive, "{}", name);
            }
        }
    }
}
