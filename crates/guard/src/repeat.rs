//! Repeated text in an answer, found while it streams.

/// Sentences that are remembered.
pub(crate) const RING: u32 = 64;

/// Shorter pieces are taken together with the next: `Yes.` again and again says little.
const SHORTEST: u32 = 16;

/// A piece without any punctuation ends here, at the next white space.
const LONGEST: u32 = 160;

/// What kind of line is being read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Line {
    /// Nothing but white space and so many marks of a fence yet.
    Begins(u8),
    #[default]
    Text,
    /// A row of a table, or the line of a fence.
    Skipped,
}

/// Finds the same sentence-sized piece of text again and again, outside code fences and tables.
/// Of a fixed size: an answer costs no memory for it.
#[derive(Clone, Debug)]
pub(crate) struct Repeats {
    /// Hashes of the last pieces; 0 for none.
    ring: [u32; RING as usize],
    at: usize,
    block: u32,
    hash: u32,
    length: u32,
    line: Line,
    fenced: bool,
    /// The last two bytes.
    last: [u8; 2],
}

impl Default for Repeats {
    fn default() -> Self {
        Self {
            ring: [0; RING as usize],
            at: 0,
            block: 0,
            hash: SEED,
            length: 0,
            line: Line::Begins(0),
            fenced: false,
            last: [b'\n'; 2],
        }
    }
}

/// Of FNV-1a.
const SEED: u32 = 0x811c_9dc5;
const PRIME: u32 = 0x0100_0193;

impl Repeats {
    /// Reads on. The count of the piece that came most often just now, when it is at least `most`.
    pub(crate) fn push(&mut self, block: u32, text: &str, most: u32) -> Option<u32> {
        if block != self.block {
            *self = Self { ring: self.ring, at: self.at, block, ..Self::default() };
        }
        let text = text.as_bytes();
        let (mut most_often, mut from) = (0, 0);
        while let Some(&first) = text.get(from) {
            from = match self.line {
                Line::Begins(marks) => from + self.begin(marks, first),
                Line::Text if !self.fenced => {
                    let (end, count) = self.piece(text, from);
                    most_often = most_often.max(count);
                    end
                }
                _ => {
                    let end = text[from..].iter().position(|byte| *byte == b'\n');
                    if end.is_some() {
                        self.line = Line::Begins(0);
                    }
                    end.map_or(text.len(), |end| from + end + 1)
                }
            };
        }
        self.last =
            [before(text, self.last, text.len(), 2), before(text, self.last, text.len(), 1)];
        (most_often >= most).then_some(most_often)
    }

    /// Reads a byte at the beginning of a line, until it is known what line it is: 0 when the byte is
    /// still to be read, as text.
    fn begin(&mut self, marks: u8, byte: u8) -> usize {
        self.line = match byte {
            b'\n' => Line::Begins(0),
            b' ' | b'\t' | b'\r' if marks == 0 => self.line,
            b'|' if marks == 0 => Line::Skipped,
            b'`' | b'~' if marks == 2 => {
                self.fenced = !self.fenced;
                Line::Skipped
            }
            b'`' | b'~' => Line::Begins(marks + 1),
            _ => Line::Text,
        };
        if self.line == Line::Skipped {
            // What stood before is no part of what comes after a table or a fence.
            (self.hash, self.length) = (SEED, 0);
        }
        usize::from(self.line != Line::Text)
    }

    /// Reads to the end of a piece, if it is in `text`: where it ends, and how often the piece has come.
    fn piece(&mut self, text: &[u8], from: usize) -> (usize, u32) {
        let (mut hash, mut length) = (self.hash, self.length);
        let mut at = from;
        let ended = loop {
            let Some(&byte) = text.get(at) else { break false };
            at += 1;
            if byte.is_ascii_graphic() {
                (hash, length) = (mix(hash, byte), length.wrapping_add(1));
                continue;
            }
            let back = |by| before(text, self.last, at - 1, by);
            let ends = match byte {
                b'\n' => {
                    self.line = Line::Begins(0);
                    true
                }
                b' ' | b'\t' | b'\r' | b'\x0c' => {
                    matches!(back(1), b'.' | b'!' | b'?' | b':' | b';') || length >= LONGEST
                }
                _ => {
                    (hash, length) = (mix(hash, byte), length.wrapping_add(1));
                    // The full stops, and marks like them, of Chinese and Japanese.
                    matches!(
                        (back(2), back(1), byte),
                        (0xE3, 0x80, 0x82) | (0xEF, 0xBC, 0x81 | 0x9F)
                    )
                }
            };
            if ends {
                break true;
            }
        };
        (self.hash, self.length) = (hash, length);
        (at, if ended { self.cut() } else { 0 })
    }

    /// A piece ends here: how often it has come.
    fn cut(&mut self) -> u32 {
        if self.length < SHORTEST {
            return 0;
        }
        // Never 0.
        let hash = self.hash | 1;
        (self.hash, self.length) = (SEED, 0);
        self.ring[self.at] = hash;
        self.at = (self.at + 1) % self.ring.len();
        self.ring.iter().fold(0, |count, other| count + u32::from(*other == hash))
    }
}

/// Pieces that differ only in the case of ASCII letters are equal.
fn mix(hash: u32, byte: u8) -> u32 {
    (hash ^ u32::from(byte.to_ascii_lowercase())).wrapping_mul(PRIME)
}

/// The byte `by` before `at`, of `last` where it is before the text.
fn before(text: &[u8], last: [u8; 2], at: usize, by: usize) -> u8 {
    at.checked_sub(by).map_or_else(|| last[2 + at - by], |at| text[at])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where the tenth of a piece ends, in pieces of text as `cut` makes them.
    fn first(text: &str, cut: usize) -> Option<u32> {
        let mut repeats = Repeats::default();
        let mut rest = text;
        while !rest.is_empty() {
            let mut at = cut.min(rest.len());
            while !rest.is_char_boundary(at) {
                at += 1;
            }
            let (now, after) = rest.split_at(at);
            if let Some(count) = repeats.push(0, now, 10) {
                return Some(count);
            }
            rest = after;
        }
        None
    }

    #[test]
    fn the_tenth_is_found_however_the_text_is_cut() {
        let sentence = "I will now look at the file again. ";
        for cut in [1, 2, 7, 1_000] {
            assert_eq!(first(&sentence.repeat(9), cut), None);
            assert_eq!(first(&sentence.repeat(10), cut), Some(10));
        }
        let line = "- look at the file again\n";
        assert_eq!((first(&line.repeat(9), 3), first(&line.repeat(10), 3)), (None, Some(10)));
        let two = "Let me check the tests first. Then I shall look at the code. ";
        assert!(first(&two.repeat(9), 5).is_none() && first(&two.repeat(10), 5).is_some());
        let chinese = "我现在再看一下这个文件的内容。";
        assert!(first(&chinese.repeat(9), 5).is_none() && first(&chinese.repeat(10), 5).is_some());
        assert!(first(&"no ".repeat(2_000), 5).is_some(), "without an end");
        assert!(first(&"Yes. ".repeat(200), 5).is_some());
    }

    #[test]
    fn code_tables_and_prose_are_no_loops() {
        let code =
            format!("So:\n```rust\n{}```\n", "    let value = compute(1, 2, 3);\n".repeat(40));
        let tilde = format!("~~~\n{}~~~\n", "    let value = compute(1, 2, 3);\n".repeat(40));
        let table = "| a long enough cell | another one |\n".repeat(40);
        let numbered: String =
            (0..200).map(|n| format!("Step {n} of the plan is done. ")).collect();
        let far: String = (0..30)
            .map(|n| {
                let between: String =
                    (0..8).map(|m| format!("A different sentence {n} and {m}. ")).collect();
                format!("This one comes back at times. {between}")
            })
            .collect();
        let alike = "The list [a] is checked. The list {a} is checked. ".repeat(5);
        for text in [&code, &tilde, &table, &numbered, &far, &alike] {
            assert_eq!(first(text, 7), None, "{}", &text[..40]);
        }
        let after = format!("{code}{}", "And now the same thing again. ".repeat(10));
        assert!(first(&after, 7).is_some(), "the fence is closed");
    }

    proptest::proptest! {
        /// However an answer comes in pieces, it is the same answer.
        #[test]
        fn pieces_are_read_as_the_whole(
            parts in proptest::collection::vec(
                proptest::sample::select(vec![
                    "Let me look at it. ", "And again; ", "\n", "```\n", "~~~", " | a | b |\n", "x", "\u{3002}",
                    "\u{6211}\u{73b0}\u{5728}\u{518d}\u{770b}\u{4e00}\u{4e0b}", "\r\n", "``", "- one more item of it\n",
                ]),
                0..120,
            ),
            cuts in proptest::collection::vec(1_usize..9, 1..20),
        ) {
            let text = parts.concat();
            let mut once = Repeats::default();
            let whole = once.push(0, &text, 3);
            let (mut pieces, mut found, mut rest) = (Repeats::default(), None, text.as_str());
            for cut in cuts.iter().cycle() {
                let Some((at, _)) = rest.char_indices().nth(*cut) else { break };
                found = found.max(pieces.push(0, &rest[..at], 3));
                rest = &rest[at..];
            }
            found = found.max(pieces.push(0, rest, 3));
            proptest::prop_assert_eq!(found, whole);
            proptest::prop_assert_eq!((pieces.ring, pieces.hash, pieces.length), (once.ring, once.hash, once.length));
        }
    }
}
