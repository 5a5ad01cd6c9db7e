//! The time limits of a call.

use std::fmt;

/// Which time limit ended a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum TimeLimit {
    /// Too long without content.
    Stall,
    /// Too long before the first content.
    FirstContent,
    /// One attempt took too long as a whole.
    Attempt,
    /// The answer took too long as a whole, though it kept coming.
    Makespan,
    /// The call with all its retries and fallbacks took too long.
    Pipeline,
    /// Content came, but too slowly to be useful.
    Throughput,
    /// An answer that comes whole, and is silent until then, took too long.
    Whole,
}

impl TimeLimit {
    /// The name used in logs and messages.
    pub const fn as_str(self) -> &'static str {
        match self {
            TimeLimit::Stall => "stall",
            TimeLimit::FirstContent => "first_content",
            TimeLimit::Attempt => "attempt",
            TimeLimit::Makespan => "makespan",
            TimeLimit::Pipeline => "pipeline",
            TimeLimit::Throughput => "throughput",
            TimeLimit::Whole => "whole",
        }
    }

    /// Whether exceeding it counts against the provider. A long answer and a caller's own limit do
    /// not.
    pub const fn blames_provider(self) -> bool {
        !matches!(self, TimeLimit::Makespan | TimeLimit::Pipeline)
    }
}

impl fmt::Display for TimeLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
