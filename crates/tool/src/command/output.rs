//! Output of bounded size.

use std::collections::VecDeque;

/// The beginning and the end of an output.
#[derive(Debug)]
pub(super) struct CappedOutput {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    /// The most of each.
    half: usize,
    /// Bytes between them that are not kept.
    omitted: u64,
}

impl CappedOutput {
    /// Of at most `most` bytes, in two halves.
    pub(super) fn new(most: usize) -> Self {
        let half = most.div_ceil(2);
        Self { head: Vec::new(), tail: VecDeque::new(), half, omitted: 0 }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        let free = self.half - self.head.len();
        let (head, rest) = bytes.split_at(free.min(bytes.len()));
        self.head.extend_from_slice(head);
        // Of a piece that is longer than the tail only its end is kept.
        let (skipped, rest) = rest.split_at(rest.len().saturating_sub(self.half));
        let surplus = (self.tail.len() + rest.len()).saturating_sub(self.half);
        self.tail.drain(..surplus);
        self.tail.extend(rest);
        self.omitted += (skipped.len() + surplus) as u64;
    }

    /// The text, with a line about what is left out, and how many bytes that are.
    pub(super) fn into_text(self) -> (String, u64) {
        let (mut head, mut tail) = (self.head, Vec::from(self.tail));
        if self.omitted == 0 {
            head.append(&mut tail);
            return (String::from_utf8_lossy(&head).into_owned(), 0);
        }
        // Both are cut between characters.
        let cut = head.len() - partial_end(&head);
        let begin = tail.iter().take(3).take_while(|byte| is_inner(**byte)).count();
        let omitted = self.omitted + (head.len() - cut + begin) as u64;
        let (head, tail) =
            (String::from_utf8_lossy(&head[..cut]), String::from_utf8_lossy(&tail[begin..]));
        (format!("{head}\n[... {omitted} bytes left out ...]\n{tail}"), omitted)
    }
}

/// A byte of a character that is not its first.
const fn is_inner(byte: u8) -> bool {
    byte & 0b1100_0000 == 0b1000_0000
}

/// How many bytes at the end are a part of a character.
fn partial_end(bytes: &[u8]) -> usize {
    let inner = bytes.iter().rev().take(3).take_while(|byte| is_inner(**byte)).count();
    let Some(first) = bytes.len().checked_sub(inner + 1).map(|at| bytes[at]) else { return 0 };
    let length = match first {
        0b1100_0000..=0b1101_1111 => 2,
        0b1110_0000..=0b1110_1111 => 3,
        0b1111_0000..=0b1111_0111 => 4,
        _ => return 0,
    };
    if inner + 1 < length { inner + 1 } else { 0 }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn short_output_is_whole() {
        let mut output = CappedOutput::new(10);
        output.push(b"01234");
        output.push(b"56789");
        assert_eq!(output.into_text(), ("0123456789".to_owned(), 0));
    }

    #[test]
    fn head_and_tail_are_kept_and_the_rest_is_counted() {
        let mut output = CappedOutput::new(4);
        output.push(b"ab");
        output.push(b"cdefg");
        output.push(b"");
        output.push(b"h");
        let (text, omitted) = output.into_text();
        assert_eq!((text.as_str(), omitted), ("ab\n[... 4 bytes left out ...]\ngh", 4));
    }

    proptest! {
        /// However it comes in pieces: the same text, of the right size, without broken characters.
        #[test]
        fn pieces_do_not_matter(
            text in "[a\u{e4}\u{20ac}\u{1f980}]{0,40}",
            cuts in proptest::collection::vec(0..8_usize, 0..60),
            most in 1..24_usize,
        ) {
            let bytes = text.as_bytes();
            let mut whole = CappedOutput::new(most);
            whole.push(bytes);
            let mut pieces = CappedOutput::new(most);
            let mut left = bytes;
            for cut in cuts {
                let (piece, rest) = left.split_at(cut.min(left.len()));
                pieces.push(piece);
                left = rest;
            }
            pieces.push(left);
            let (whole, omitted) = whole.into_text();
            prop_assert_eq!(&pieces.into_text(), &(whole.clone(), omitted));
            prop_assert!(!whole.contains('\u{fffd}'), "{}", whole);
            if omitted == 0 {
                prop_assert_eq!(whole, text);
            } else {
                let line = format!("\n[... {omitted} bytes left out ...]\n");
                let (head, tail) = whole.split_once(&line).unwrap();
                prop_assert!(text.starts_with(head) && text.ends_with(tail));
                let kept = (head.len() + tail.len()) as u64;
                prop_assert_eq!(kept + omitted, text.len() as u64);
                prop_assert!(kept <= most as u64 + 1);
            }
        }
    }
}
