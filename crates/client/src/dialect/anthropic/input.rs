//! The input of a call that another dialect's model wrote, written as it comes.

use std::borrow::Cow;

use crate::{
    dialect::calls::arguments,
    json::{JsonPieces, ObjectScan},
};

/// What has come of a call's input. The dialect has objects alone: whatever else the model wrote is
/// gathered, and put into one.
#[derive(Debug, Default)]
pub(super) enum Input {
    /// White space at most.
    #[default]
    Blank,
    /// An object, which is written as it comes.
    Object(ObjectScan, JsonPieces),
    /// What is no object.
    Text(String),
}

impl Input {
    /// Takes the next piece of what the model wrote, and gives what is to be written now.
    pub(super) fn take<'a>(&mut self, piece: &'a str) -> Option<Cow<'a, str>> {
        if matches!(self, Input::Blank) {
            match piece.trim_start().chars().next() {
                None => return Some(Cow::Borrowed(piece)),
                Some('{') => *self = Self::object(),
                Some(_) => *self = Input::Text(String::new()),
            }
        }
        self.pass(piece);
        match self {
            Input::Object(_, pieces) => Some(pieces.push(piece)),
            _ => None,
        }
    }

    /// Follows a piece that is written as it is.
    pub(super) fn pass(&mut self, piece: &str) {
        match self {
            Input::Blank => {
                *self = Self::object();
                self.pass(piece);
            }
            Input::Object(scan, _) => scan.feed(piece),
            Input::Text(text) => text.push_str(piece),
        }
    }

    /// What is to be written when nothing more comes.
    pub(super) fn rest(&self) -> Option<Cow<'_, str>> {
        match self {
            Input::Blank => None,
            Input::Object(_, pieces) => pieces.rest(),
            Input::Text(text) => Some(arguments(text)),
        }
    }

    /// Whether the object has come to its end.
    pub(super) fn is_complete(&self) -> bool {
        matches!(self, Input::Object(scan, _) if scan.is_complete())
    }

    fn object() -> Self {
        Input::Object(ObjectScan::default(), JsonPieces::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_written_as_it_comes_and_anything_else_becomes_one() {
        for (pieces, written, complete) in [
            (&[" ", "\n"][..], " \n", false),
            (&[], "", false),
            (&[" ", "{\"a\"", ":1}"], " {\"a\":1}", true),
            (&["{\"a\""], "{\"a\"", false),
            (&[r#"{"a":"\ud8"#, r#"3d"}"#], r#"{"a":"\ufffd"}"#, true),
            (&[r#"{"a":"\ud83d"#], r#"{"a":"\ufffd"#, false),
            (&["[1,", "2]"], r#"{"_raw":"[1,2]"}"#, false),
            (&[" ", "ls ", "{}"], r#" {"_raw":"ls {}"}"#, false),
        ] {
            let mut input = Input::default();
            let mut out: String = pieces.iter().filter_map(|piece| input.take(piece)).collect();
            out.extend(input.rest());
            assert_eq!((out.as_str(), input.is_complete()), (written, complete), "{pieces:?}");
        }
    }
}
