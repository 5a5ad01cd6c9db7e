//! Repeated text in an answer, found while it streams.

/// Sentences looked back on.
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

/// ASCII that ends nothing, in lower case; 0 for what has to be looked at.
const PLAIN: [u8; 256] = {
    let mut plain = [0; 256];
    let mut byte = 0x21_u8;
    while byte < 0x7f {
        plain[byte as usize] = byte.to_ascii_lowercase();
        byte += 1;
    }
    plain
};

/// Whether there may be `most` equal pieces in `text`: equal ones are equally long. A look at their
/// lengths costs a small part of reading them.
pub(crate) fn may_repeat(text: &str, most: u32) -> bool {
    let bytes = text.as_bytes();
    // Lines, and marks of other scripts, are for the reader.
    let fenced = text.trim_start().starts_with(['`', '~']);
    let odd = memchr::memchr3(b'\n', 0xE3, 0xEF, bytes).is_some()
        || memchr::memchr3(b'\t', b'\r', b'\x0c', bytes).is_some();
    if fenced || odd {
        return true;
    }
    let mut of_length = [0_u8; LONGEST as usize];
    let (mut from, mut most_often) = (0, 0);
    // Pieces of which nothing is known: those between colons and semicolons, and long ones, which end
    // anywhere.
    let mut unknown = 2 * memchr::memchr2_iter(b':', b';', bytes).count();
    for at in memchr::memchr3_iter(b'.', b'!', b'?', bytes) {
        if bytes.get(at + 1) != Some(&b' ') {
            continue;
        }
        let piece = &bytes[from..=at];
        let spaces = piece.iter().filter(|byte| **byte == b' ').count();
        let length = piece.len() - spaces;
        if length < SHORTEST as usize {
            continue;
        }
        match of_length.get_mut(length) {
            Some(count) => {
                *count = count.saturating_add(1);
                most_often = most_often.max(usize::from(*count));
            }
            None => unknown += 1 + length / LONGEST as usize,
        }
        from = at + 1;
    }
    unknown += (bytes.len() - from) / LONGEST as usize;
    most_often + unknown >= most as usize
}

/// Of FNV-1a.
const SEED: u32 = 0x811c_9dc5;

impl Repeats {
    /// Reads on. The count of the piece that came most often just now, when it is at least `most`.
    #[inline]
    pub(crate) fn push(&mut self, block: u32, text: &str, most: u32) -> Option<u32> {
        if block != self.block {
            *self = Self { ring: self.ring, at: self.at, block, ..Self::default() };
        }
        let (mut most_often, mut rest) = (0, text.as_bytes());
        while let Some(&first) = rest.first() {
            let (count, read) = match self.line {
                Line::Begins(marks) => (self.begin(marks, first), 1),
                Line::Text if !self.fenced => self.words(rest),
                _ => (0, self.skip(rest)),
            };
            most_often = most_often.max(count);
            rest = &rest[read..];
        }
        (most_often >= most).then_some(most_often)
    }

    /// Reads the first bytes of a line, one at a time, until it is known what line it is.
    fn begin(&mut self, marks: u8, byte: u8) -> u32 {
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
        match self.line {
            Line::Text if !self.fenced => self.words(&[byte]).0,
            // What stood before is no part of what comes after a table or a fence.
            Line::Skipped => {
                (self.hash, self.length) = (SEED, 0);
                0
            }
            _ => 0,
        }
    }

    /// Reads over code, or the rest of a line that is no text; says how much of it.
    fn skip(&mut self, rest: &[u8]) -> usize {
        memchr::memchr(b'\n', rest).map_or(rest.len(), |at| {
            self.line = Line::Begins(0);
            at + 1
        })
    }

    /// Reads text to the end of its line or of what there is; says how often the piece that came
    /// most often has come, and how much was read.
    #[inline]
    fn words(&mut self, rest: &[u8]) -> (u32, usize) {
        let (mut most_often, mut at) = (0, 0);
        loop {
            let from = at;
            while let Some(byte) = rest.get(at).map(|byte| PLAIN[usize::from(*byte)])
                && byte != 0
            {
                self.mix(byte);
                at += 1;
            }
            self.length = self.length.saturating_add(u32::try_from(at - from).unwrap_or(u32::MAX));
            let Some(&byte) = rest.get(at) else { break };
            let ends = match byte {
                b'\n' => true,
                b' ' | b'\t' | b'\r' | b'\x0c' => {
                    let last = self.before(rest, at, 1);
                    matches!(last, b'.' | b'!' | b'?' | b':' | b';') || self.length >= LONGEST
                }
                _ => {
                    self.mix(byte);
                    self.length = self.length.saturating_add(1);
                    let before = (self.before(rest, at, 2), self.before(rest, at, 1), byte);
                    // The full stops, and marks like them, of Chinese and Japanese.
                    matches!(before, (0xE3, 0x80, 0x82) | (0xEF, 0xBC, 0x81 | 0x9F))
                }
            };
            if ends {
                most_often = most_often.max(self.cut());
            }
            at += 1;
            if byte == b'\n' {
                self.line = Line::Begins(0);
                break;
            }
        }
        self.last = [self.before(rest, at, 2), self.before(rest, at, 1)];
        (most_often, at)
    }

    #[inline]
    fn mix(&mut self, byte: u8) {
        self.hash = (self.hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    }

    /// The byte so far before `at`.
    #[inline]
    fn before(&self, rest: &[u8], at: usize, back: usize) -> u8 {
        match at.checked_sub(back) {
            Some(at) => rest[at],
            None => self.last[self.last.len() + at - back],
        }
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

#[cfg(test)]
mod tests {
    #[test]
    fn what_may_not_repeat_does_not() {
        for (text, times) in [
            ("The same old words. ", 9),
            ("The same old words. ", 10),
            ("no punctuation at all in this text of many words ", 32),
            ("\u{3053}\u{308c}\u{306f}\u{540c}\u{3058}\u{6587}\u{3067}\u{3059}\u{3002}", 10),
            ("A line without an end, but long enough\n", 10),
            ("why? because! so: it; is ", 40),
        ] {
            let text = text.repeat(times);
            for most in [2, 5, 10, 30, 64] {
                let found = Repeats::default().push(0, &text, most).is_some();
                assert!(!found || may_repeat(&text, most), "{most}: {text:?}");
            }
        }
        assert!(!may_repeat(&"A usual answer has few sentences. ".repeat(9), 10));
        let number = |n: usize| format!("Sentence {n} is as long as {} others. ", "x".repeat(n));
        let different: String = (1..=100).map(number).collect();
        assert!(!may_repeat(&different, 10), "many, but none as long as another");
    }

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
            let (now, later) = rest.split_at(at);
            if let Some(count) = repeats.push(0, now, 10) {
                return Some(count);
            }
            rest = later;
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
        for text in [&code, &tilde, &table, &numbered, &far] {
            assert_eq!(first(text, 7), None, "{}", &text[..40]);
        }
        let after = format!("{code}{}", "And now the same thing again. ".repeat(10));
        assert!(first(&after, 7).is_some(), "the fence is closed");
    }

    proptest::proptest! {
        /// What is told by the lengths of pieces alone is never that nothing repeats when something does.
        #[test]
        fn what_repeats_may(
            parts in proptest::collection::vec(
                proptest::sample::select(vec![
                    "Let me look at it. ", "Now I look at that! ", "ab? ", "And so: ", "on; ", "`a` ", "~", "|",
                    "a.b ", "e.g. this one\t", "word ", "wordswordswordswordswordswords ", ".", "  ",
                ]),
                0..80,
            ),
            most in 2_u32..12,
        ) {
            let text = parts.concat();
            let found = Repeats::default().push(0, &text, most).is_some();
            proptest::prop_assert!(!found || may_repeat(&text, most), "{text:?}");
        }

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
            proptest::prop_assert!(whole.is_none() || may_repeat(&text, 3));
            proptest::prop_assert_eq!((pieces.ring, pieces.hash, pieces.length), (once.ring, once.hash, once.length));
        }
    }
}
