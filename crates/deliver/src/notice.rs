//! What people read when a task has failed.

use std::fmt;

/// That a task ended without a result. The texts are fixed: no model writes them, which could fail as the task did, and
/// nothing of an error is in them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailureNotice {
    /// It took too long: a watchdog or a sweep has ended it.
    NotInTime,
    /// It failed.
    NotSuccessful,
}

impl FailureNotice {
    /// What people read.
    pub const fn text(self) -> &'static str {
        match self {
            Self::NotInTime => {
                "A task that was running for you did not finish in time and was stopped. Ask again if you still need it."
            }
            Self::NotSuccessful => {
                "A task that was running for you could not be completed. Ask again if you still need it."
            }
        }
    }
}

impl fmt::Display for FailureNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}
