//! Errors of invalid policies.

use std::time::Duration;

use steadfast_core::BackoffError;

/// A [`RetryPolicy`](crate::RetryPolicy) that is invalid, and what would be valid.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// The backoff starts at zero: retries would follow each other without a pause.
    #[error(
        "backoff base is zero; set at least a few milliseconds; for no retry at all, set retries to 0"
    )]
    ZeroBase,
    /// No hint of a provider would be waited for.
    #[error("max_wait is zero; set how long a provider's hint may be, such as 60 s")]
    ZeroMaxWait,
    /// Hints would exceed the limit of this layer before they are long enough to fail over.
    #[error(
        "failover_wait {failover_wait:?} is above max_wait {max_wait:?}; lower it to at most that"
    )]
    FailoverWaitAboveMaxWait {
        /// The hint above which a call fails over.
        failover_wait: Duration,
        /// The longest hint that is waited for.
        max_wait: Duration,
    },
    /// A stream would be returned before anything of it has come.
    #[error(
        "buffer.bytes and buffer.time must be above zero; the default is 64 KiB and 10 minutes"
    )]
    ZeroBufferLimits,
    /// The backoff itself is invalid.
    #[error(transparent)]
    Backoff(#[from] BackoffError),
}
