//! Eight bytes looked at together: each byte's highest bit says what it is.

/// Bytes in a block.
pub(crate) const BLOCK: usize = size_of::<u64>();

const ONES: u64 = u64::MAX / 0xFF;
const HIGH: u64 = ONES * 0x80;

/// What the bytes of a block are: a set highest bit says yes, and all other bits are clear.
pub(crate) struct Kinds {
    /// ASCII letters and digits.
    pub(crate) word: u64,
    pub(crate) digit: u64,
    pub(crate) space: u64,
}

impl Kinds {
    pub(crate) fn of(block: [u8; BLOCK]) -> Self {
        let block = u64::from_le_bytes(block);
        let ascii = !block & HIGH;
        let letter = between(block | (ONES * 0x20), b'a', b'z') & ascii;
        let digit = between(block, b'0', b'9') & ascii;
        let space = between(block, b' ', b' ') & ascii;
        Self { word: letter | digit, digit, space }
    }

    /// The bytes behind one of a word, the last one of the block before being told by `before`;
    /// which is what it is for the next block then.
    pub(crate) fn behind_word(&self, before: &mut u64) -> u64 {
        let behind = (self.word << 8) | *before;
        *before = self.word >> 56;
        behind
    }

    /// Those bytes that are not in `others`.
    pub(crate) fn except(others: u64) -> u64 {
        !others & HIGH
    }
}

/// Sets the highest bit of the bytes of which the other bits are at least `low` and at most
/// `high`; what the remaining bits become says nothing.
fn between(block: u64, low: u8, high: u8) -> u64 {
    let bytes = block & !HIGH;
    (bytes + ONES * u64::from(0x80 - low)) & !(bytes + ONES * u64::from(0x7F - high))
}

/// The blocks of `text`, each with where it begins; the last one is filled up with spaces.
pub(crate) fn blocks(text: &[u8]) -> impl Iterator<Item = (usize, [u8; BLOCK])> {
    let (whole, rest) = text.as_chunks::<BLOCK>();
    let mut last = [b' '; BLOCK];
    last[..rest.len()].copy_from_slice(rest);
    whole.iter().copied().chain([last]).enumerate().map(|(number, block)| (number * BLOCK, block))
}

/// Where in its block each set bit stands.
pub(crate) fn each(mut bits: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let at = (bits != 0).then(|| bits.trailing_zeros() as usize / 8);
        bits &= bits.wrapping_sub(1);
        at
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_what_it_is_next_to_any_other() {
        for byte in 0..=u8::MAX {
            for other in [0, b' ', b'0', b'a', b'Z', 0x7F, 0x80, 0xFF] {
                let block = [other, byte, other, byte, byte, other, byte, other];
                let kinds = Kinds::of(block);
                let is = |bits: u64, at: usize| bits.to_le_bytes()[at] == 0x80;
                for (at, byte) in block.iter().enumerate() {
                    assert_eq!(is(kinds.word, at), byte.is_ascii_alphanumeric(), "{byte:#x}");
                    assert_eq!(is(kinds.digit, at), byte.is_ascii_digit(), "{byte:#x}");
                    assert_eq!(is(kinds.space, at), *byte == b' ', "{byte:#x}");
                }
                assert_eq!((kinds.word | kinds.digit | kinds.space) & !HIGH, 0);
            }
        }
    }
}
