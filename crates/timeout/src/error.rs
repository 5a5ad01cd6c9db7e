//! Errors of invalid policies.

use std::time::Duration;

/// Why a policy is invalid, and what would be valid.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// A limit of zero would end every call at once.
    #[error("`{0}` is zero and would end every call at once; set how long it may take{1}")]
    Zero(
        /// The field.
        &'static str,
        /// How to switch it off, where that is possible.
        &'static str,
    ),
    /// The first content may take longer than anything may take without content.
    #[error(
        "`first_content` {first_content:?} is above `stall` {stall:?} and could never fire; lower \
         it or raise `stall`"
    )]
    FirstContentAboveStall {
        /// The limit until the first content.
        first_content: Duration,
        /// The limit without content.
        stall: Duration,
    },
    /// The floor's rate is zero, negative or not a number.
    #[error(
        "`floor.min_chars_per_s` {0} is no rate; set a number above 0, such as 5, or leave the \
         floor out"
    )]
    Rate(f64),
}

pub(crate) fn positive(
    field: &'static str,
    limit: Option<Duration>,
    off: &'static str,
) -> Result<(), PolicyError> {
    match limit {
        Some(Duration::ZERO) => Err(PolicyError::Zero(field, off)),
        _ => Ok(()),
    }
}
