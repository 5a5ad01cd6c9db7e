//! Marks for the prompt cache.
//!
//! Other dialects cache without being asked to. A request that came in one of them gets the marks that the vendor's
//! own agents set: behind the tools, behind the system prompt, and behind the last message, so that each turn of a
//! conversation reads what the one before has written.

use steadfast_chat::{ChatRequest, Part};

use super::DIALECT;
use crate::json::Object;

const EPHEMERAL: &str = r#"{"type":"ephemeral"}"#;

/// Whether `request` gets marks. One of this dialect has those that its caller has set, and one that a program has
/// made may be the only one of its kind, for which a cache costs more than it saves.
pub(super) fn is_marked(request: &ChatRequest) -> bool {
    request.dialect().is_some_and(|read| read != DIALECT)
}

/// Whether a part can be marked: thinking can not, and of what this dialect alone has nothing is known.
pub(super) fn can_be_marked(part: &Part) -> bool {
    matches!(part, Part::Text(_) | Part::Media(_) | Part::ToolCall(_) | Part::ToolResult(_))
}

/// Marks a block or a tool, if that is to be.
pub(super) fn mark(object: &mut Object<'_>, marked: bool) {
    if marked {
        object.raw("cache_control", EPHEMERAL);
    }
}
