//! Errors: of invalid policies, and of mailboxes that take no more.

use std::time::Duration;

use steadfast_core::{Failover, Failure, Reason, Retry};

/// Why a policy is invalid, and what would be valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// A time of zero.
    #[error("`{0}` is zero, so that nothing would have any time; set how long it may take")]
    Zero(
        /// The field.
        &'static str,
    ),
    /// A number of nothing.
    #[error("`{0}` is 0, so that no prompt would ever be taken; set at least 1")]
    NoRoom(
        /// The field.
        &'static str,
    ),
}

pub(crate) const fn positive(field: &'static str, time: Duration) -> Result<(), PolicyError> {
    match time {
        Duration::ZERO => Err(PolicyError::Zero(field)),
        _ => Ok(()),
    }
}

/// Why a prompt or a steering message was not taken. It has not been looked at; nothing of it will run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MailboxError {
    /// The thread's mailbox is full.
    #[error(
        "{waiting} messages of this thread wait already; wait for an answer, or abort what runs, then send it again"
    )]
    Full {
        /// How many wait.
        waiting: usize,
    },
    /// There is no room for another thread, and none is idle.
    #[error("{threads} threads are at work already; send it again in a moment")]
    TooManyThreads {
        /// How many there are.
        threads: usize,
    },
    /// The process is about to end.
    #[error("the service is being restarted; send it again in a moment")]
    Stopping,
}

impl MailboxError {
    /// The name in logs and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Full { .. } => "full",
            Self::TooManyThreads { .. } => "too_many_threads",
            Self::Stopping => "stopping",
        }
    }
}

impl From<MailboxError> for Failure {
    fn from(error: MailboxError) -> Self {
        Failure::refused(Reason::Budget, error.to_string())
            .with_retry(Retry::No)
            .with_failover(Failover::Never)
            .with_evidence(error.as_str())
    }
}
