//! Errors of invalid policies.

use std::time::Duration;

use steadfast_core::{Backoff, BackoffError, Jitter};

/// A policy that is invalid, and what would be valid.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// A number that may not be zero.
    #[error("`{0}` is zero; {1}")]
    Zero(
        /// The field.
        &'static str,
        /// What would be valid.
        &'static str,
    ),
    /// The first retry of a dead letter would come after it has expired.
    #[error(
        "the first retry of a letter, after {first:?}, comes after its end, after {max_age:?}; lower `base` \
         or raise `max_age`"
    )]
    RetryAfterExpiry {
        /// The first wait.
        first: Duration,
        /// How old a letter may be.
        max_age: Duration,
    },
    /// The backoff itself is invalid.
    #[error(transparent)]
    Backoff(#[from] BackoffError),
}

/// The waits of a policy.
pub(crate) fn backoff(
    base: Duration,
    cap: Duration,
    jitter: Jitter,
) -> Result<Backoff, BackoffError> {
    Backoff::new(base, cap)?.with_jitter(jitter)
}

/// For durations and counts that may not be zero.
pub(crate) fn positive<T: PartialEq + Default>(
    field: &'static str,
    value: &T,
    valid: &'static str,
) -> Result<(), PolicyError> {
    if *value == T::default() { Err(PolicyError::Zero(field, valid)) } else { Ok(()) }
}
