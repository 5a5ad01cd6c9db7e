//! What is wrong with a policy.

/// Why a [`RatePolicy`](crate::RatePolicy) or a [`SpendLimitPolicy`](crate::SpendLimitPolicy) is invalid: the
/// field, and what would be valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// A number that must be at least one.
    #[error("limit policy: `{field}` is zero; write at least 1, or leave it out")]
    Zero {
        /// The field.
        field: &'static str,
    },
    /// A longer wait with another target than without.
    #[error(
        "limit policy: `max_wait_with_spare_ms` ({spare_ms}) is above `max_wait_ms` ({alone_ms}); nobody \
         should wait longer because another target can answer"
    )]
    Waits {
        /// The one with another target, in milliseconds.
        spare_ms: u64,
        /// The one without.
        alone_ms: u64,
    },
    /// A cap of a longer window below that of a shorter one.
    #[error(
        "spend policy: `{long}` ({long_value}) is below `{short}` ({short_value}), which would never be \
         reached; raise `{long}`, or write 0 for one of them"
    )]
    Inverted {
        /// The cap of the longer window.
        long: &'static str,
        /// Its value.
        long_value: u64,
        /// The cap of the shorter window.
        short: &'static str,
        /// Its value.
        short_value: u64,
    },
}
