//! Parts in a message of the wrong role: calls (S3) and thinking (S11) outside of the model's
//! messages, something other than results in a tool's message (S4), something other than words
//! and media inside a result. Results in the wrong message are paired, or dropped, with the others.

use super::{Rule, Rules, draft::Draft, outcome::Findings, turn::Spot, words};
use crate::{ChatRequest, Part, Role};

pub(super) fn check(request: &ChatRequest, rules: &Rules, found: &mut Findings) {
    for (index, message) in request.messages.iter().enumerate() {
        for (part, value) in message.parts().iter().enumerate() {
            let spot = Spot { message: index, part };
            if let Some(rule) = fault(message.role(), value) {
                found.part(rule, index, part, words::misplaced(rules.dialect, spot, value));
            }
            for (rule, inner) in nested_faults(value) {
                found.part(rule, index, part, words::misplaced(rules.dialect, spot, inner));
            }
        }
    }
}

/// What is wrong with a part in a message of `role`.
fn fault(role: Role, part: &Part) -> Option<Rule> {
    match part {
        Part::ToolCall(_) if role != Role::Assistant => Some(Rule::Answered),
        Part::Thinking(_) | Part::Redacted { .. } if role != Role::Assistant => {
            Some(Rule::Thinking)
        }
        Part::Text(_) | Part::Media(_) | Part::Opaque(_) if role == Role::Tool => {
            Some(Rule::Orphan)
        }
        _ => None,
    }
}

/// What has no place inside a result.
fn nested_fault(part: &Part) -> Option<Rule> {
    match part {
        Part::ToolCall(_) => Some(Rule::Answered),
        Part::ToolResult(_) => Some(Rule::Orphan),
        Part::Thinking(_) | Part::Redacted { .. } => Some(Rule::Thinking),
        _ => None,
    }
}

fn nested_faults(part: &Part) -> impl Iterator<Item = (Rule, &Part)> {
    let content = part.as_tool_result().map_or(&[][..], |result| &result.content);
    content.iter().filter_map(|part| Some((nested_fault(part)?, part)))
}

pub(super) fn mend(draft: &mut Draft<'_>) {
    draft.take_all(|_, role, _, part| match fault(role, part) {
        Some(Rule::Orphan) | None => None,
        Some(rule) => Some((rule, "dropped: only the model's messages may hold it")),
    });
    for index in 0..draft.messages.len() {
        let message = &draft.messages[index].message;
        if message.role() == Role::Tool
            && message.parts().iter().any(|part| part.as_tool_result().is_none())
        {
            draft.messages[index].message.set_role(Role::User);
            let what = "message of a tool with more than results in it made the user's";
            draft.did_to(Rule::Orphan, index, what);
        }
        let parts = draft.messages[index].message.parts();
        let Some((rule, _)) = parts.iter().flat_map(nested_faults).next() else { continue };
        for part in draft.messages[index].message.parts_mut() {
            if let Part::ToolResult(result) = part {
                result.content.retain(|part| nested_fault(part).is_none());
            }
        }
        draft.did_to(rule, index, "dropped from a result, which holds words and media alone");
    }
}
