//! Failed tool calls.

use std::borrow::Cow;

use steadfast_core::STOPPED_TOOL;

use crate::{Part, ToolCall, ToolResult};

/// How a tool failed: a mark on its result for the layers around it. It is never sent to a model, which reads
/// the result's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolFailure {
    /// What kind of failure it was.
    pub kind: ToolFailureKind,
    /// A name for its cause, such as `connection_refused`, where failures of the same cause are certain to
    /// follow whatever the arguments.
    pub tag: Option<Cow<'static, str>>,
}

/// What kind of failure the result of a tool reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ToolFailureKind {
    /// The tool failed, and does not say how.
    #[default]
    Failed,
    /// The model called it with arguments that it can not use: the tool works.
    Arguments,
    /// A command ran, and ended with another status than 0: the tool works.
    Exit,
    /// A command was killed from outside, most likely for its memory.
    Killed,
    /// It was not done in time.
    TimedOut,
    /// The caller aborted it.
    Aborted,
    /// It panicked.
    Panicked,
    /// It was not called: a layer refused the call.
    Refused,
}

impl ToolFailureKind {
    /// The name used in logs and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Arguments => "arguments",
            Self::Exit => "exit",
            Self::Killed => "killed",
            Self::TimedOut => "timed_out",
            Self::Aborted => "aborted",
            Self::Panicked => "panicked",
            Self::Refused => "refused",
        }
    }
}

impl From<ToolFailureKind> for ToolFailure {
    fn from(kind: ToolFailureKind) -> Self {
        Self { kind, tag: None }
    }
}

impl ToolFailure {
    /// With this name of its cause.
    #[must_use]
    pub fn with_tag(mut self, tag: impl Into<Cow<'static, str>>) -> Self {
        self.tag = Some(tag.into());
        self
    }

    /// What the user of an agent is shown of it: a fixed text, for a call that was not done in time. Everything
    /// else is the model's to handle.
    pub const fn user_text(&self) -> Option<&'static str> {
        match self.kind {
            ToolFailureKind::TimedOut => Some(STOPPED_TOOL),
            _ => None,
        }
    }
}

impl ToolResult {
    /// The output of this call.
    pub fn of(call: &ToolCall, text: impl Into<String>) -> Self {
        Self {
            id: call.id.clone(),
            name: Some(call.name.clone()),
            content: vec![Part::text(text)],
            ..Self::default()
        }
    }

    /// The result of this call, which failed: `text` is what the model reads.
    ///
    /// ```
    /// use steadfast_chat::{ToolCall, ToolFailureKind, ToolResult};
    ///
    /// let call = ToolCall { id: "1".into(), name: "read_file".into(), ..ToolCall::default() };
    /// let result = ToolResult::failed(&call, ToolFailureKind::Arguments, "`path` is missing.");
    /// assert!(result.is_error);
    /// ```
    pub fn failed(
        call: &ToolCall,
        failure: impl Into<ToolFailure>,
        text: impl Into<String>,
    ) -> Self {
        let failure = Some(Box::new(failure.into()));
        Self { is_error: true, failure, ..Self::of(call, text) }
    }

    /// How it failed, if it did.
    pub fn failure_kind(&self) -> Option<ToolFailureKind> {
        let marked = self.failure.as_ref().map(|failure| failure.kind);
        self.is_error.then(|| marked.unwrap_or_default())
    }
}
