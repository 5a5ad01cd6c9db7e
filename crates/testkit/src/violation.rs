//! What a clause says when it is broken.

use std::{error::Error, fmt};

/// A clause that a layer does not keep, and how that showed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Violation {
    /// The clause, by the name of its function in [`clause`](crate::clause).
    pub clause: &'static str,
    /// What was seen, and what would have been right.
    pub message: String,
}

impl Violation {
    /// A violation of `clause`.
    pub fn new(clause: &'static str, message: impl Into<String>) -> Self {
        Self { clause, message: message.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is broken: {}", self.clause, self.message)
    }
}

impl Error for Violation {}
