//! What is wrong with a policy.

use std::time::Duration;

use steadfast_core::circuit::MAX_ROW;

/// A [`BreakerPolicy`](crate::BreakerPolicy) that makes no sense, with the field and what would be
/// right.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// A number that must be at least one, or a duration that must be longer than nothing.
    #[error("breaker policy: `{field}` is zero; {instead}")]
    Zero {
        /// The field.
        field: &'static str,
        /// What to write instead.
        instead: &'static str,
    },
    /// A share that is no number, or not within its bounds.
    #[error(
        "breaker policy: `{field}` is {value}; it must be {bounds}, such as {example} for {percent}"
    )]
    Share {
        /// The field.
        field: &'static str,
        /// What was given.
        value: f64,
        /// The bounds in words.
        bounds: &'static str,
        /// A share that makes sense.
        example: f64,
        /// The same in per cent.
        percent: &'static str,
    },
    /// A cap below what it caps.
    #[error(
        "breaker policy: `{low}` ({low_value:?}) is above `{high}` ({high_value:?}); raise `{high}` or lower `{low}`"
    )]
    Inverted {
        /// The field that should be lower.
        low: &'static str,
        /// Its value.
        low_value: Duration,
        /// The field that should be higher.
        high: &'static str,
        /// Its value.
        high_value: Duration,
    },
    /// A window too short to be cut in ten, or longer than a day.
    #[error("breaker policy: `window` is {0:?}; it must be between 10 ms and a day")]
    Window(Duration),
    /// A longer row than is remembered.
    #[error("breaker policy: `consecutive` is {0}; it must be at most {MAX_ROW}, such as 5")]
    Consecutive(u32),
}
