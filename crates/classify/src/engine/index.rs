//! Finds which of many phrases a text contains, at the beginnings of words or anywhere.
//!
//! At each place the next four bytes are looked up in a filter of bits, which says no almost
//! always; then the next eight in a small hash table, and only then are phrases compared. Phrases
//! shorter than eight bytes have a table of their own, of four. So the time is about a nanosecond
//! a byte, however many phrases there are.

use super::block::{Kinds, blocks, each};

/// Bytes by which short phrases are looked up; none may be shorter.
pub(crate) const PREFIX: usize = 4;

/// Bytes by which the others are.
const LONG: usize = 8;

/// Slots of a table: small enough for the first-level cache, large enough that a thousand phrases
/// leave most of them empty. A power of two.
const SLOTS: usize = 1 << 12;

/// More phrases than this would fill the tables.
pub(crate) const MAX_PHRASES: usize = SLOTS / 2;

/// Phrases by their beginnings: open addressing, linear probing.
#[derive(Debug)]
struct Table {
    /// The group's number plus one; zero is empty.
    slots: Box<[u16; SLOTS]>,
    groups: Vec<Group>,
}

/// Phrases that begin alike.
#[derive(Debug)]
struct Group {
    prefix: u64,
    phrases: Vec<Phrase>,
}

/// A phrase with its second eight bytes, which tell nearly all of a group apart without a call to
/// compare.
#[derive(Clone, Copy, Debug)]
struct Phrase {
    number: u16,
    second: u64,
    /// Which of them it has.
    mask: u64,
}

impl Phrase {
    fn new(number: u16, phrase: &str) -> Self {
        let mut second = [0; LONG];
        let mut mask = [0; LONG];
        let rest = phrase.as_bytes().iter().skip(LONG);
        for ((second, mask), byte) in second.iter_mut().zip(&mut mask).zip(rest) {
            *second = *byte;
            *mask = u8::MAX;
        }
        Self { number, second: u64::from_le_bytes(second), mask: u64::from_le_bytes(mask) }
    }
}

/// Bits of the filter: four kilobytes, of which a thousand beginnings set one in thirty-two. A
/// power of two.
const BITS: usize = 1 << 15;

/// Which beginnings of four bytes there are; says yes to a few others.
#[derive(Debug)]
struct Filter(Box<[u64; BITS / 64]>);

impl Filter {
    fn bit(prefix: u32) -> (usize, u64) {
        let bit = (prefix.wrapping_mul(0x9E37_79B1) >> (32 - BITS.trailing_zeros())) as usize;
        (bit / 64, 1 << (bit % 64))
    }

    fn add(&mut self, prefix: u32) {
        let (word, bit) = Self::bit(prefix);
        self.0[word] |= bit;
    }

    #[inline]
    fn has(&self, prefix: u32) -> bool {
        let (word, bit) = Self::bit(prefix);
        self.0[word] & bit != 0
    }
}

#[derive(Debug)]
pub(crate) struct Index {
    filter: Filter,
    long: Table,
    short: Table,
}

impl Table {
    fn new(prefixes: &[(u64, Phrase)]) -> Self {
        let mut groups: Vec<Group> = Vec::new();
        let mut slots = Box::new([0; SLOTS]);
        for &(prefix, phrase) in prefixes {
            match groups.iter_mut().find(|group| group.prefix == prefix) {
                Some(group) => group.phrases.push(phrase),
                None => groups.push(Group { prefix, phrases: vec![phrase] }),
            }
        }
        // A table that is half empty ends every probe; a test holds the phrases to it.
        groups.truncate(SLOTS / 2);
        for (number, group) in (1u16..).zip(&groups) {
            let mut slot = home(group.prefix);
            while slots[slot] != 0 {
                slot = (slot + 1) % SLOTS;
            }
            slots[slot] = number;
        }
        Self { slots, groups }
    }

    /// The phrases with this beginning.
    #[inline]
    fn get(&self, prefix: u64) -> &[Phrase] {
        let mut slot = home(prefix);
        loop {
            let Some(index) = self.slots[slot].checked_sub(1) else { return &[] };
            let group = &self.groups[usize::from(index)];
            if group.prefix == prefix {
                return &group.phrases;
            }
            slot = (slot + 1) % SLOTS;
        }
    }
}

impl Index {
    /// An index of `phrases`, by their position.
    pub(crate) fn new(phrases: &[&str]) -> Self {
        let (mut long, mut short) = (Vec::new(), Vec::new());
        let mut filter = Filter(Box::new([0; BITS / 64]));
        for (number, phrase) in (0u16..).zip(phrases) {
            let Some(start) = four(phrase.as_bytes()) else { continue };
            filter.add(start);
            let entry = Phrase::new(number, phrase);
            match eight(phrase.as_bytes()) {
                Some(prefix) => long.push((prefix, entry)),
                None => short.push((u64::from(start), entry)),
            }
        }
        Self { filter, long: Table::new(&long), short: Table::new(&short) }
    }

    /// Calls `found` with the number of each phrase in `text` that begins where a word or a run
    /// of punctuation does, each time it occurs.
    pub(crate) fn scan(&self, text: &[u8], phrases: &[&str], mut found: impl FnMut(usize)) {
        let mut before = 0;
        for (start, block) in blocks(text) {
            // A bit for each byte at which something begins, so that there is no branch for those
            // where nothing does.
            let kinds = Kinds::of(block);
            let inside = kinds.word & kinds.behind_word(&mut before);
            for at in each(Kinds::except(kinds.space | inside)) {
                if let Some(rest) = text.get(start + at..)
                    && four(rest).is_some_and(|start| self.filter.has(start))
                {
                    self.at(rest, phrases, &mut found);
                }
            }
        }
    }

    /// The same wherever a phrase begins.
    pub(crate) fn scan_anywhere(
        &self,
        text: &[u8],
        phrases: &[&str],
        mut found: impl FnMut(usize),
    ) {
        for (at, window) in text.windows(PREFIX).enumerate() {
            if four(window).is_some_and(|start| self.filter.has(start)) {
                self.at(&text[at..], phrases, &mut found);
            }
        }
    }

    /// Calls `found` with the phrases with which `text` begins. Kept out of the loops, which need
    /// the registers.
    #[inline(never)]
    fn at(&self, text: &[u8], phrases: &[&str], found: &mut impl FnMut(usize)) {
        if let Some(prefix) = eight(text) {
            let group = self.long.get(prefix);
            let second = if group.is_empty() { 0 } else { second(text) };
            for phrase in group.iter().filter(|phrase| second & phrase.mask == phrase.second) {
                let number = usize::from(phrase.number);
                if text.starts_with(phrases[number].as_bytes()) {
                    found(number);
                }
            }
        }
        let short = four(text).map_or(&[][..], |prefix| self.short.get(u64::from(prefix)));
        for phrase in short {
            let number = usize::from(phrase.number);
            if text.starts_with(phrases[number].as_bytes()) {
                found(number);
            }
        }
    }
}

/// The second eight bytes of a text, as far as it has them.
fn second(text: &[u8]) -> u64 {
    let rest = text.get(LONG..).unwrap_or_default();
    eight(rest).unwrap_or_else(|| {
        let mut bytes = [0; LONG];
        bytes[..rest.len()].copy_from_slice(rest);
        u64::from_le_bytes(bytes)
    })
}

fn eight(text: &[u8]) -> Option<u64> {
    text.first_chunk::<LONG>().map(|bytes| u64::from_le_bytes(*bytes))
}

fn four(text: &[u8]) -> Option<u32> {
    text.first_chunk::<PREFIX>().map(|bytes| u32::from_le_bytes(*bytes))
}

/// Fibonacci hashing: the high bits of a product with the golden ratio.
fn home(prefix: u64) -> usize {
    (prefix.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - SLOTS.trailing_zeros())) as usize
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PHRASES: [&str; 7] = [
        "rate limit",
        "rate",
        "(tpm)",
        "limit reached",
        "\u{6b20}\u{8d39}",
        "`inputs`",
        "rate limits",
    ];

    fn found(text: &str) -> Vec<usize> {
        let mut numbers = Vec::new();
        Index::new(&PHRASES).scan(text.as_bytes(), &PHRASES, |number| numbers.push(number));
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    }

    #[test]
    fn at_the_beginnings_of_words() {
        assert_eq!(found("the rate limit reached"), [0, 1, 3]);
        assert_eq!(found("upstream_rate limits"), [0, 1, 6]);
        assert!(found("corporate limit").is_empty());
        assert_eq!(found("(tpm): x"), [2]);
        assert_eq!(found("您的账户已欠费"), [4]);
        assert_eq!(found("`inputs` tokens"), [5]);
        assert!(found("rat").is_empty());
        assert!(found("").is_empty());
    }

    #[test]
    fn anywhere() {
        let mut numbers = Vec::new();
        Index::new(&PHRASES).scan_anywhere(b"corporate limits", &PHRASES, |n| numbers.push(n));
        numbers.sort_unstable();
        assert_eq!(numbers, [0, 1, 6]);
    }

    proptest! {
        #[test]
        fn agrees_with_a_naive_search(text in "[a-z ()]{0,4}(rate limits?|limit reached|\\(tpm\\)|`inputs`|欠费| |x){0,6}") {
            let naive: Vec<usize> = (0..PHRASES.len())
                .filter(|&number| {
                    text.match_indices(PHRASES[number]).any(|(at, _)| {
                        let before = text[..at].bytes().next_back();
                        let first = PHRASES[number].as_bytes()[0];
                        !(first.is_ascii_alphanumeric()
                            && before.is_some_and(|b| b.is_ascii_alphanumeric()))
                    })
                })
                .collect();
            prop_assert_eq!(found(&text), naive);
        }
    }
}
