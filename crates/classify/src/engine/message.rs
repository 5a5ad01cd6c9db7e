//! A text of an error, and what was found in it.

use super::{
    facts::{Rank, Text},
    phrases::{self, Found, Number},
};

/// A text in its normal form, searched once.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) rank: Rank,
    /// In lower case, with straight quotes and single spaces.
    text: String,
    pub(crate) found: Found,
}

impl Message {
    #[cfg(test)]
    pub(crate) fn new(text: &str) -> Self {
        Self::of(&Text { rank: Rank::default(), text: text.into() })
    }

    pub(crate) fn of(text: &Text<'_>) -> Self {
        let normalized = phrases::normalized(&text.text);
        Self { rank: text.rank, found: phrases::find(&normalized), text: normalized }
    }

    /// The text from the number of that meaning on.
    pub(crate) fn number(&self, number: Number) -> Option<&str> {
        self.text.get(self.found.number(number)?..)
    }
}
