//! Reads structured values from the fuzzer's bytes.

use bytes::Bytes;
use steadfast_core::Dialect;

/// The bytes that are left; reads zeros when there are none.
pub(crate) struct Input<'a>(pub(crate) &'a [u8]);

impl<'a> Input<'a> {
    pub(crate) fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((first, rest)) => {
                self.0 = rest;
                *first
            }
            None => 0,
        }
    }

    /// A number below `end`, which is above 0 and at most 256.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        usize::from(self.byte()) % end
    }

    pub(crate) fn flag(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    /// The digits `0` to `3` in seeds.
    pub(crate) fn dialect(&mut self) -> Dialect {
        Dialect::ALL[self.below(Dialect::ALL.len())]
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next bytes, or as many as there are.
    pub(crate) fn take(&mut self, length: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(length.min(self.0.len()));
        self.0 = rest;
        taken
    }

    pub(crate) fn rest(&self) -> Bytes {
        Bytes::copy_from_slice(self.0)
    }

    /// The text up to the first `mark`; continues after it.
    pub(crate) fn split(&mut self, mark: &[u8]) -> &'a [u8] {
        let at = self.0.windows(mark.len()).position(|window| window == mark);
        let (head, rest) = match at {
            Some(at) => (&self.0[..at], &self.0[at + mark.len()..]),
            None => (self.0, &[][..]),
        };
        self.0 = rest;
        head
    }
}

/// `whole` split into chunks by a plan of one byte: each byte alone, or chunks of random sizes.
pub(crate) fn cut(whole: &Bytes, plan: u8) -> Vec<Bytes> {
    let mut random = fastrand::Rng::with_seed(u64::from(plan));
    let most = if plan == 0 { 1 } else { 1 << (plan % 8) };
    let mut chunks = Vec::new();
    let mut rest = whole.clone();
    while !rest.is_empty() {
        let size = random.usize(1..=most).min(rest.len());
        chunks.push(rest.split_to(size));
    }
    chunks
}
