//! What can go wrong.

use std::{io, path::PathBuf, sync::Arc};

use steadfast_core::{Failover, Failure, FaultSide, Reason, Retry, Scope};
use steadfast_store::StoreError;
use thiserror::Error;

use crate::ScopeError;

/// A thread that can not be used. Nothing of it was changed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SessionError {
    /// Its files can not be read. This is never taken for an empty history.
    #[error("the history of thread `{thread}` can not be read")]
    Unreadable {
        /// The thread.
        thread: Arc<str>,
        /// The operating system's error.
        source: StoreError,
    },
    /// Another process writes to it.
    #[error("another process has thread `{thread}` open; stop it, or send it the prompt")]
    Locked {
        /// The thread.
        thread: Arc<str>,
        /// The operating system's error.
        source: StoreError,
    },
    /// The folder of the thread has another thread in it.
    #[error("the folder `{}` is that of another thread", folder.display())]
    Foreign {
        /// The folder.
        folder: PathBuf,
    },
    /// The folder of all threads, or a file of the system prompt, can not be read.
    #[error("could not read `{}`", folder.display())]
    Folder {
        /// The folder or file.
        folder: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// Too many callers wait for their turn in it.
    #[error(
        "{waiting} callers wait for thread `{thread}` already; `session.max_waiting` is the limit"
    )]
    Busy {
        /// The thread.
        thread: Arc<str>,
        /// How many wait.
        waiting: usize,
    },
    /// Every thread that is open is in use, or has turns that could not be saved.
    #[error(
        "{open} threads are open, and all of them are in use or could not be saved; `session.max_open` is the limit"
    )]
    TooManyOpen {
        /// How many are open.
        open: usize,
    },
    /// What was named is not exactly one live session.
    #[error(transparent)]
    Scope(#[from] ScopeError),
    /// A retry of a prompt whose run was interrupted, after other prompts have run.
    #[error(
        "the run of prompt `{key}` was interrupted, and other prompts have run in thread `{thread}` since; send it under a new key"
    )]
    Superseded {
        /// The thread.
        thread: Arc<str>,
        /// The prompt's idempotency key.
        key: Arc<str>,
    },
    /// A retry of a prompt that was answered, of whose answer the log misses a turn: it was damaged, or could not be written to for
    /// very long.
    #[error(
        "the answer in turn {turn} of thread `{thread}` can not be read any more; send the prompt under a new key"
    )]
    AnswerGone {
        /// The thread.
        thread: Arc<str>,
        /// The last turn of the answer.
        turn: u64,
    },
    /// A turn was reported after its run had ended.
    #[error(
        "the run in thread `{thread}` is over; a turn that ends now is not added to its history"
    )]
    RunOver {
        /// The thread.
        thread: Arc<str>,
    },
    /// A turn that is no part of a history.
    #[error("a turn of thread `{thread}` {what}, so it is not added to its history")]
    BadTurn {
        /// The thread.
        thread: Arc<str>,
        /// What is wrong with it.
        what: &'static str,
    },
    /// A file or folder other than those of a thread.
    #[error(transparent)]
    File(#[from] StoreError),
    /// The runtime is shutting down, or there is a bug in this crate.
    #[error("the work on the files of a thread was interrupted")]
    Interrupted,
}

impl From<SessionError> for Failure {
    fn from(error: SessionError) -> Self {
        let (reason, fault) = match &error {
            SessionError::Busy { .. } | SessionError::TooManyOpen { .. } => {
                (Reason::Budget, FaultSide::Local)
            }
            SessionError::Scope(_) | SessionError::Superseded { .. } => {
                (Reason::Format, FaultSide::Caller)
            }
            _ => (Reason::Unknown, FaultSide::Local),
        };
        Failure::refused(reason, error.to_string())
            .with_retry(Retry::No)
            .with_failover(Failover::Never)
            .with_scope(Scope::Local)
            .with_fault(fault)
            .with_evidence("session")
            .with_source(error)
    }
}

/// Turns that could not be saved. They are kept in memory, and saved with the next turn or by
/// [`SessionStore::flush`](crate::SessionStore::flush).
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SaveError {
    /// The operating system's error, such as a full disk.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The thread could not be locked when it was opened, and was changed by somebody else since. Both histories are whole; the one in
    /// memory is lost with the process.
    #[error("`{}` was changed by another process while it could not be locked", folder.display())]
    Changed {
        /// The folder.
        folder: PathBuf,
    },
    /// The runtime is shutting down, or there is a bug in this crate.
    #[error("the work on the files of a thread was interrupted")]
    Interrupted,
}

/// Why a policy is invalid, and what would be valid.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// Nothing could be done with a limit of zero.
    #[error("`{0}` is zero; set it to at least 1")]
    Zero(
        /// The field.
        &'static str,
    ),
}
