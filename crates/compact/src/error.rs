//! Errors: a conversation that can not be made to fit, a policy that contradicts itself.

use steadfast_core::{Failure, Reason, Scope, Window};

/// A policy that contradicts itself.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// A share is out of its bounds.
    #[error("`{name}` is {value}: it must be above 0 and {bound}, which is {limit}")]
    Share {
        /// The field.
        name: &'static str,
        /// Its value.
        value: f64,
        /// What it must be in relation to.
        bound: &'static str,
        /// The value of that.
        limit: f64,
    },
    /// A number is too small.
    #[error("`{name}` is {value}: it must be at least {least}")]
    TooSmall {
        /// The field.
        name: &'static str,
        /// Its value.
        value: usize,
        /// The least it may be.
        least: usize,
    },
}

impl PolicyError {
    /// Checks numbers, each with its field and the least it may be.
    pub(crate) fn check_least(numbers: &[(&'static str, usize, usize)]) -> Result<(), Self> {
        let wrong = numbers.iter().find(|(_, value, least)| value < least);
        wrong.map_or(Ok(()), |&(name, value, least)| Err(Self::TooSmall { name, value, least }))
    }

    /// The field that is wrong.
    pub const fn field(&self) -> &'static str {
        match self {
            PolicyError::Share { name, .. } | PolicyError::TooSmall { name, .. } => name,
        }
    }
}

/// What can not be removed is larger than the window. Known before any call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the conversation can not be made to fit: of {before} input tokens, {floor} can not be removed \
     ({required} of them tools, instructions, pinned messages and the current request; the rest are \
     the most recent messages, and all in a conversation of few), and a window of {window} with {reserve} kept for the answer takes \
     {limit}. Shorten those, ask for a shorter answer, or use a model with a larger window"
)]
#[non_exhaustive]
pub struct TooLarge {
    /// Tokens of the request.
    pub before: u64,
    /// Tokens of all that is never changed.
    pub floor: u64,
    /// Tokens of tools, instructions, pins and the current request.
    pub required: u64,
    /// The window.
    pub window: u64,
    /// Tokens of it that are kept for the answer.
    pub reserve: u64,
    /// Input tokens there is room for.
    pub limit: u64,
}

impl TooLarge {
    /// The failure to answer with: the caller's, of this request alone; not sent to any provider.
    pub fn into_failure(self) -> Failure {
        let window = Window { limit: Some(self.window), requested: Some(self.floor) };
        Failure::refused(Reason::ContextOverflow, self.to_string())
            .with_scope(Scope::Request)
            .with_window(window)
            .with_evidence("compaction:floor")
            .with_source(self)
    }
}
