//! What a check found and what a repair did.

use std::{borrow::Cow, error::Error, fmt, ops::Deref};

use super::{TranscriptRule, turn::PartIndex};
use steadfast_core::{Failure, Reason, Scope};

/// Where in a request. Indices count from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Position {
    /// The request as a whole.
    Request,
    /// One of its tools.
    Tool(usize),
    /// A message.
    Message(usize),
    /// A part of a message.
    Part {
        /// The message.
        message: usize,
        /// The part of it.
        part: usize,
    },
}

impl From<PartIndex> for Position {
    fn from(at: PartIndex) -> Self {
        Position::Part { message: at.message, part: at.part }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Position::Request => f.write_str("request"),
            Position::Tool(tool) => write!(f, "tools[{tool}]"),
            Position::Message(message) => write!(f, "messages[{message}]"),
            Position::Part { message, part } => write!(f, "messages[{message}].parts[{part}]"),
        }
    }
}

/// Something the provider would refuse.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TranscriptViolation {
    /// The rule it breaks.
    pub rule: TranscriptRule,
    /// Where.
    pub at: Position,
    /// The provider's error message. Indices in it are those of the request's own messages, before
    /// an encoder splits and joins them.
    pub message: String,
}

impl fmt::Display for TranscriptViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}: {}", self.rule, self.at, self.message)
    }
}

/// All that the provider would refuse; at least one thing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violations(pub(super) Vec<TranscriptViolation>);

impl Violations {
    /// The failure to answer with instead of sending the request: the caller's fault, so that it
    /// trips no breaker and no other target is tried; [`Reason::ContextOverflow`] when the size
    /// alone is wrong, else [`Reason::Format`].
    pub fn into_failure(self) -> Failure {
        let overflow = self.iter().all(|violation| violation.rule == TranscriptRule::Size);
        let reason = if overflow { Reason::ContextOverflow } else { Reason::Format };
        Failure::refused(reason, self.to_string())
            .with_scope(Scope::Request)
            .with_evidence("transcript")
            .with_source(self)
    }
}

impl Deref for Violations {
    type Target = [TranscriptViolation];

    fn deref(&self) -> &[TranscriptViolation] {
        &self.0
    }
}

impl IntoIterator for Violations {
    type Item = TranscriptViolation;
    type IntoIter = std::vec::IntoIter<TranscriptViolation>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl fmt::Display for Violations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(first) = self.0.first() else { return Ok(()) };
        write!(f, "{first}")?;
        match self.0.len() - 1 {
            0 => Ok(()),
            more => write!(f, " (and {more} more)"),
        }
    }
}

impl Error for Violations {}

/// One thing that was done to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Repair {
    /// The rule it serves.
    pub rule: TranscriptRule,
    /// Where: messages are counted as they were before any repair. For something inserted, the
    /// message it belongs to. Parts are counted as they were before this step.
    pub at: Position,
    /// What was done.
    pub what: Cow<'static, str>,
}

impl fmt::Display for Repair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}: {}", self.rule, self.at, self.what)
    }
}

/// What a repair did, and what it could not do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[must_use = "what could not be repaired is still refused by the provider"]
pub struct Repairs {
    /// What was done, in order.
    pub done: Vec<Repair>,
    /// What the provider still refuses.
    pub unrepaired: Vec<TranscriptViolation>,
}

impl Repairs {
    /// Whether the request was valid: nothing was done and nothing is wrong.
    pub fn is_empty(&self) -> bool {
        self.done.is_empty() && self.unrepaired.is_empty()
    }

    /// Whether something was done for `rule`.
    pub fn touched(&self, rule: TranscriptRule) -> bool {
        self.done.iter().any(|repair| repair.rule == rule)
    }
}

/// Collects violations; allocates nothing until there is one.
#[derive(Debug, Default)]
pub(super) struct Findings(pub(super) Vec<TranscriptViolation>);

impl Findings {
    pub(super) fn push(
        &mut self,
        rule: TranscriptRule,
        at: impl Into<Position>,
        message: impl Into<String>,
    ) {
        self.0.push(TranscriptViolation { rule, at: at.into(), message: message.into() });
    }
}
