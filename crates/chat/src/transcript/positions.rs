//! Parts in a message of the wrong role: calls (S3) and thinking (S11) outside of the model's
//! messages, anything but results in a tool's message (S4), anything but text and media inside a
//! result. Results in the wrong message are paired or dropped with the others (`pairs`).

use super::{
    Position, TranscriptRule, TranscriptRules, draft::Draft, error_text, outcome::Findings,
    turn::nested_parts,
};
use crate::{ChatRequest, Part, Role};

pub(super) fn check(request: &ChatRequest, rules: &TranscriptRules, found: &mut Findings) {
    for (path, role, part) in nested_parts(&request.messages) {
        let rule = if path.nested.is_some() { nested_fault(part) } else { fault(role, part) };
        if let Some(rule) = rule {
            found.push(rule, path.at, error_text::misplaced(rules.dialect, path.at, part));
        }
    }
}

/// The rule that a part breaks in a message of `role`.
fn fault(role: Role, part: &Part) -> Option<TranscriptRule> {
    match part {
        Part::ToolCall(_) if role != Role::Assistant => Some(TranscriptRule::Answered),
        Part::Thinking(_) | Part::Redacted { .. } if role != Role::Assistant => {
            Some(TranscriptRule::Thinking)
        }
        Part::Text(_) | Part::Media(_) | Part::Opaque(_) if role == Role::Tool => {
            Some(TranscriptRule::Orphan)
        }
        _ => None,
    }
}

/// The rule that a part breaks inside a result.
fn nested_fault(part: &Part) -> Option<TranscriptRule> {
    match part {
        Part::ToolCall(_) => Some(TranscriptRule::Answered),
        Part::ToolResult(_) => Some(TranscriptRule::Orphan),
        Part::Thinking(_) | Part::Redacted { .. } => Some(TranscriptRule::Thinking),
        _ => None,
    }
}

pub(super) fn repair(draft: &mut Draft<'_>) {
    draft.remove_parts(|_, role, part| match fault(role, part) {
        Some(TranscriptRule::Orphan) | None => None,
        Some(rule) => Some((rule, "dropped: only the model's messages may hold it")),
    });
    for index in 0..draft.messages.len() {
        let message = &mut draft.messages[index].message;
        let role = message.role();
        if message.parts().iter().any(|part| fault(role, part) == Some(TranscriptRule::Orphan)) {
            message.set_role(Role::User);
            let what = "message of a tool with more than results in it made the user's";
            draft.record(TranscriptRule::Orphan, Position::Message(index), what);
        }
    }
    draft.remove_from_results(
        nested_fault,
        "dropped from a result, which holds only text and media",
    );
}
