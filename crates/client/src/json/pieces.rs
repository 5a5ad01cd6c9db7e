//! Text that comes in pieces, which may end in the middle of a character.
//!
//! A provider may end a piece with half of a surrogate pair and begin the next one with the other
//! half. The pieces are passed on as they came; what is read of them has the whole character, in the
//! piece that completes it.

use std::{borrow::Cow, mem};

use steadfast_chat::surrogates::{complete, read, repaired};

use super::Raw;

/// A text that comes in pieces, each a JSON string of its own.
#[derive(Debug, Default)]
pub(crate) struct TextPieces(Tail);

/// JSON that comes in pieces of its text, and is to have no half of a pair that stands alone.
#[derive(Debug, Default)]
pub(crate) struct JsonPieces(Tail);

/// The end of a piece that the next one completes.
#[derive(Debug, Default)]
struct Tail(String);

impl TextPieces {
    /// The text that is whole with this piece.
    ///
    /// # Errors
    ///
    /// When the piece is no string.
    pub(crate) fn push<'a>(&mut self, piece: Raw<'a>) -> Result<Cow<'a, str>, serde_json::Error> {
        let Some(inside) = piece.inside() else { return piece.text() };
        match self.0.push(inside) {
            // Nothing waited, and nothing waits.
            Cow::Borrowed(_) => piece.text(),
            Cow::Owned(inside) => read(&format!("\"{inside}\"")).map(Cow::Owned),
        }
    }

    /// Whether half of a character waits for the other half.
    pub(crate) fn waits(&self) -> bool {
        !self.0.0.is_empty()
    }

    /// Nothing more comes: what stands for a half that has waited in vain.
    pub(crate) fn end(&mut self) -> Option<String> {
        (!mem::take(&mut self.0.0).is_empty()).then(|| "\u{fffd}".to_owned())
    }
}

impl JsonPieces {
    /// The JSON that is whole with this piece.
    pub(crate) fn push<'a>(&mut self, piece: &'a str) -> Cow<'a, str> {
        match self.0.push(piece) {
            Cow::Borrowed(piece) => repaired(piece),
            Cow::Owned(piece) => Cow::Owned(repaired(&piece).into_owned()),
        }
    }

    /// What waits for another piece.
    pub(crate) fn rest(&self) -> Option<Cow<'_, str>> {
        let rest = &self.0.0;
        (!rest.is_empty()).then(|| repaired(rest))
    }
}

impl Tail {
    /// What is complete of the tail and `piece`; borrowed, when that is all of the piece.
    fn push<'a>(&mut self, piece: &'a str) -> Cow<'a, str> {
        if self.0.is_empty() && complete(piece) == piece.len() {
            return Cow::Borrowed(piece);
        }
        let mut text = mem::take(&mut self.0);
        text.push_str(piece);
        self.0 = text.split_off(complete(&text));
        Cow::Owned(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(pieces: &[&str]) -> (Vec<String>, Option<String>) {
        let mut joined = TextPieces::default();
        let mut texts = Vec::new();
        for piece in pieces {
            let raw: Raw<'_> = serde_json::from_str(piece).unwrap();
            texts.push(joined.push(raw).unwrap().into_owned());
        }
        (texts, joined.end())
    }

    #[test]
    fn halves_are_joined_and_what_is_alone_is_replaced() {
        for (pieces, wanted, rest) in [
            (&[r#""a""#, r#""\u00e9\n""#][..], &["a", "é\n"][..], false),
            (&[r#""a\ud83d""#, r#""\ude00b""#], &["a", "😀b"], false),
            (&[r#""\ud83d""#, r#""""#, r#""\ude00""#], &["", "", "😀"], false),
            (&[r#""\ud83d""#, r#""x""#], &["", "\u{fffd}x"], false),
            (&[r#""\ud83d""#, r#""\ud83d""#, r#""\ude00""#], &["", "\u{fffd}", "😀"], false),
            (&[r#""\ude00""#, r#""\\ud83d""#], &["\u{fffd}", r"\ud83d"], false),
            (&[r#""\"\ud83d\"""#], &["\"\u{fffd}\""], false),
            (&[r#""a\ud83d""#], &["a"], true),
        ] {
            let (read, end) = text(pieces);
            assert_eq!(read, wanted, "{pieces:?}");
            assert_eq!(end, rest.then(|| "\u{fffd}".to_owned()), "{pieces:?}");
        }
        let number: Raw<'_> = serde_json::from_str("7").unwrap();
        assert!(TextPieces::default().push(number).is_err());
    }

    #[test]
    fn escapes_of_json_are_joined_too() {
        for (pieces, wanted) in [
            (&[r#"{"a":"\ud8"#, r#"3d\ude00"}"#][..], r#"{"a":"\ud83d\ude00"}"#),
            (&[r#"{"a":"\ud83d"#, r#""}"#], r#"{"a":"\ufffd"}"#),
            (&[r#"{"a":"\"#, r#"\ud83d"}"#], r#"{"a":"\\ud83d"}"#),
            (&[r#"{"a":"😀"}"#], r#"{"a":"😀"}"#),
            (&[r"C:\u", "sers"], r"C:\users"),
            (&[r"cut \ud83d\u"], r"cut \ufffd\u"),
        ] {
            let mut joined = JsonPieces::default();
            let mut read: String = pieces.iter().map(|piece| joined.push(piece)).collect();
            read.extend(joined.rest());
            assert_eq!(read, wanted, "{pieces:?}");
        }
    }
}
