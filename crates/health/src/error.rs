//! Errors of invalid policies.

use std::time::Duration;

/// Why a [`HealthPolicy`](crate::HealthPolicy) is invalid: the field, and what would be valid.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// A number that must be at least one.
    #[error("`{field}` is zero; set at least 1")]
    Zero {
        /// The field.
        field: &'static str,
    },
    /// More than is counted.
    #[error("`{field}` {value} is more than is counted; set at most {most}")]
    TooMany {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u32,
        /// What it can be.
        most: u32,
    },
    /// A time that is too short for anything to happen in it.
    #[error("`{field}` {time:?} is too short; set at least a millisecond, such as 60 s")]
    NoTime {
        /// The field.
        field: &'static str,
        /// Its value.
        time: Duration,
    },
    /// A share that is none.
    #[error("`{field}` {share} is no share; set a number from 0 to 1")]
    Share {
        /// The field.
        field: &'static str,
        /// Its value.
        share: f64,
    },
    /// A provider could be degraded and recovered by the same calls.
    #[error(
        "`recover_share` {recover_share} is above `min_share` {min_share}, so that a provider could recover and \
         be degraded by the same calls; set at most {min_share}"
    )]
    NoHysteresis {
        /// The share that degrades.
        min_share: f64,
        /// The share up to which it recovers.
        recover_share: f64,
    },
}
