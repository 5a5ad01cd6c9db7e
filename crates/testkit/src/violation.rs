//! The error of a clause.

use std::{error::Error, fmt};

/// A clause that a layer violates, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ContractViolation {
    /// The clause, by the name of its function in [`clause`](crate::clause).
    pub clause: &'static str,
    /// What was observed, and what would have been right.
    pub message: String,
}

impl ContractViolation {
    /// A violation of `clause`.
    pub fn new(clause: &'static str, message: impl Into<String>) -> Self {
        Self { clause, message: message.into() }
    }
}

impl fmt::Display for ContractViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is violated: {}", self.clause, self.message)
    }
}

impl Error for ContractViolation {}
