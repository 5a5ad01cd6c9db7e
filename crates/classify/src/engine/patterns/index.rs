//! Finds which of many phrases a text contains, at the beginnings of words.
//!
//! A phrase can only begin where a word or a run of punctuation does. At each such place the next
//! eight bytes are looked up in a small hash table, which says no almost always; only then are
//! phrases compared. Phrases shorter than that have a table of their own, of four bytes. So the
//! time is a nanosecond or two a byte, however many phrases there are.

/// Bytes by which short phrases are looked up; none may be shorter.
pub(super) const PREFIX: usize = 4;

/// Bytes by which the others are.
const LONG: usize = 8;

/// Slots of a table: small enough for the first-level cache, large enough that a thousand phrases
/// leave most of them empty. A power of two.
const SLOTS: usize = 1 << 12;

/// More phrases than this would fill the tables.
#[cfg(test)]
pub(super) const MAX_PHRASES: usize = SLOTS / 2;

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
    numbers: Vec<u16>,
}

#[derive(Debug)]
pub(super) struct Index {
    long: Table,
    short: Table,
}

impl Table {
    fn new(prefixes: &[(u64, u16)]) -> Self {
        let mut groups: Vec<Group> = Vec::new();
        let mut slots = Box::new([0; SLOTS]);
        for &(prefix, number) in prefixes {
            match groups.iter_mut().find(|group| group.prefix == prefix) {
                Some(group) => group.numbers.push(number),
                None => groups.push(Group { prefix, numbers: vec![number] }),
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

    /// The numbers of the phrases with this beginning.
    #[inline]
    fn get(&self, prefix: u64) -> &[u16] {
        let mut slot = home(prefix);
        loop {
            let Some(index) = self.slots[slot].checked_sub(1) else { return &[] };
            let group = &self.groups[usize::from(index)];
            if group.prefix == prefix {
                return &group.numbers;
            }
            slot = (slot + 1) % SLOTS;
        }
    }
}

impl Index {
    /// An index of `phrases`, by their position.
    pub(super) fn new(phrases: &[&str]) -> Self {
        let (mut long, mut short) = (Vec::new(), Vec::new());
        for (number, phrase) in (0u16..).zip(phrases) {
            if let Some(prefix) = eight(phrase.as_bytes()) {
                long.push((prefix, number));
            } else if let Some(prefix) = four(phrase.as_bytes()) {
                short.push((prefix, number));
            }
        }
        Self { long: Table::new(&long), short: Table::new(&short) }
    }

    /// Calls `found` with the number of each phrase in `text`, each time it occurs.
    pub(super) fn scan(&self, text: &[u8], phrases: &[&str], mut found: impl FnMut(usize)) {
        let mut inside = false;
        for at in 0..text.len().saturating_sub(PREFIX - 1) {
            let byte = text[at];
            let word = byte.is_ascii_alphanumeric();
            let begins = !(inside && word) && byte != b' ';
            inside = word;
            if !begins {
                continue;
            }
            let rest = &text[at..];
            let long = eight(rest).map_or(&[][..], |prefix| self.long.get(prefix));
            let short = four(rest).map_or(&[][..], |prefix| self.short.get(prefix));
            for number in long.iter().chain(short) {
                let number = usize::from(*number);
                if rest.starts_with(phrases[number].as_bytes()) {
                    found(number);
                }
            }
        }
    }
}

fn eight(text: &[u8]) -> Option<u64> {
    text.first_chunk::<LONG>().map(|bytes| u64::from_le_bytes(*bytes))
}

fn four(text: &[u8]) -> Option<u64> {
    text.first_chunk::<PREFIX>().map(|bytes| u64::from(u32::from_le_bytes(*bytes)))
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
