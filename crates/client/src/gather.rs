//! A body, put together.

use bytes::{Bytes, BytesMut};

/// Bytes that come in pieces: of one piece, that piece, without a copy.
#[derive(Debug, Default)]
pub(crate) struct Gather {
    /// All there is, while it is one piece.
    one: Bytes,
    /// All there is, once it was more.
    many: BytesMut,
}

impl Gather {
    /// Adds a piece.
    pub(crate) fn push(&mut self, piece: Bytes) {
        if self.is_empty() {
            self.one = piece;
            return;
        }
        if self.many.is_empty() {
            let one = std::mem::take(&mut self.one);
            self.many.reserve(one.len() + piece.len());
            self.many.extend_from_slice(&one);
        }
        self.many.extend_from_slice(&piece);
    }

    /// Takes what has come so far.
    pub(crate) fn take(&mut self) -> Bytes {
        if self.many.is_empty() {
            std::mem::take(&mut self.one)
        } else {
            std::mem::take(&mut self.many).freeze()
        }
    }
}

impl std::ops::Deref for Gather {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        if self.many.is_empty() { &self.one } else { &self.many }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_all_that_came() {
        for pieces in [&[][..], &["abc"], &["", "abc"], &["a", "", "bc"], &["a", "b", "c", ""]] {
            let mut gather = Gather::default();
            for piece in pieces {
                gather.push(Bytes::from_static(piece.as_bytes()));
            }
            assert_eq!(&*gather, pieces.concat().as_bytes());
            assert_eq!(gather.take(), pieces.concat());
            assert!(gather.is_empty());
        }
    }

    #[test]
    fn one_piece_is_not_copied() {
        let piece = Bytes::from_static(b"abc");
        let mut gather = Gather::default();
        gather.push(Bytes::new());
        gather.push(piece.clone());
        assert_eq!(gather.take().as_ptr(), piece.as_ptr());
    }
}
