//! What the result of a call repeats of it.

use steadfast_chat::{Part, ToolCall, ToolFailure, ToolResult};

/// The id and the tool of a call, kept while it is under way.
#[derive(Debug)]
pub(crate) struct Called {
    id: String,
    pub(crate) tool: String,
}

impl Called {
    pub(crate) fn of(call: &ToolCall) -> Self {
        Self { id: call.id.clone(), tool: call.name.clone() }
    }

    /// Its result: it failed.
    pub(crate) fn failed(self, failure: impl Into<ToolFailure>, text: String) -> ToolResult {
        ToolResult {
            id: self.id,
            name: Some(self.tool),
            content: vec![Part::text(text)],
            is_error: true,
            failure: Some(Box::new(failure.into())),
            ..ToolResult::default()
        }
    }
}

/// The beginning of `text`, at most `most` bytes, cut between characters.
pub(crate) fn head(text: &str, most: usize) -> &str {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
