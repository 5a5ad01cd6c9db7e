//! A text of an error, and what was found in it.

use std::cell::OnceCell;

use super::{
    facts::{Rank, Text},
    phrases::{self, Found, Number},
};

/// A text in its normal form, searched once, if a decision needs it.
#[derive(Debug)]
pub(crate) struct Message<'a> {
    text: Text<'a>,
    searched: OnceCell<(String, Found)>,
}

impl<'a> Message<'a> {
    pub(crate) fn new(text: Text<'a>) -> Self {
        Self { text, searched: OnceCell::new() }
    }

    #[cfg(test)]
    pub(crate) fn of(text: &'a str) -> Self {
        Self::new(Text { rank: Rank::default(), text: text.into() })
    }

    /// As it came.
    pub(crate) fn text(&self) -> &str {
        &self.text.text
    }

    pub(crate) fn rank(&self) -> Rank {
        self.text.rank
    }

    fn searched(&self) -> &(String, Found) {
        self.searched.get_or_init(|| {
            let normalized = phrases::normalized(&self.text.text);
            let found = phrases::find(&normalized);
            (normalized, found)
        })
    }

    pub(crate) fn found(&self) -> &Found {
        &self.searched().1
    }

    /// The text from the number of that meaning on.
    pub(crate) fn number(&self, number: Number) -> Option<&str> {
        let (text, found) = self.searched();
        text.get(found.number(number)?..)
    }
}
