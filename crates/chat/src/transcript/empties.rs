//! S9: nothing is empty.

use super::{
    Blank, Position, TranscriptRule, TranscriptRules,
    draft::Draft,
    error_text,
    outcome::Findings,
    turn::{PartIndex, parts},
};
use crate::{ChatRequest, Message, Part, Role, ThinkingConfig, ToolResult};

/// The content of a result of which nothing is left.
const NO_OUTPUT: &str = "(no output)";

pub(super) fn check(request: &ChatRequest, rules: &TranscriptRules, found: &mut Findings) {
    let thinking = request.params.thinking.as_ref();
    for (index, message) in request.messages.iter().enumerate() {
        if message.parts().is_empty() && !may_be_empty(&request.messages, index, rules, thinking) {
            let text = error_text::empty_message(rules.dialect, index);
            found.push(TranscriptRule::Empty, Position::Message(index), text);
        }
        for (part, value) in message.parts().iter().enumerate() {
            let at = PartIndex { message: index, part };
            let result = value.as_tool_result();
            let texts = result
                .map_or(std::slice::from_ref(value), |result| blocks(message, part, result, rules));
            if let Some(blank) = texts.iter().find(|part| is_blank(part, rules)) {
                let is_empty = blank.as_text() == Some("");
                found.push(TranscriptRule::Empty, at, error_text::blank(rules.dialect, is_empty));
            }
            if result.is_some_and(|result| needs_output(result, rules)) {
                found.push(TranscriptRule::Empty, at, error_text::empty_result(rules.dialect, at));
            }
        }
    }
}

/// Whether a part is a text that the provider takes for empty.
fn is_blank(part: &Part, rules: &TranscriptRules) -> bool {
    let Part::Text(text) = part else { return false };
    // Another model's signature is not sent.
    let is_signed =
        !rules.foreign_history && text.signature.as_ref().is_some_and(|sign| !sign.is_empty());
    match rules.blank {
        Blank::Allowed => false,
        Blank::NotEmpty => text.text.is_empty() && !is_signed,
        Blank::NotBlank => text.text.trim().is_empty(),
    }
}

/// The parts of a result that are blocks on the wire. A text alone is sent as a string, and that may be
/// empty where a result may be, unless it was read as a list of one block.
fn blocks<'a>(
    message: &Message,
    part: usize,
    result: &'a ToolResult,
    rules: &TranscriptRules,
) -> &'a [Part] {
    let is_list = || {
        let raw = message.raw(rules.dialect);
        raw.is_some_and(|raw| raw.to_value()["content"][part]["content"].is_array())
    };
    match result.content.as_slice() {
        [Part::Text(text)]
            if rules.empty_results
                && text.text.is_empty()
                && text.extra.is_none()
                && !is_list() =>
        {
            &[]
        }
        content => content,
    }
}

/// Whether a result is empty that may not be.
fn needs_output(result: &ToolResult, rules: &TranscriptRules) -> bool {
    !rules.empty_results
        && result.content.iter().all(|part| part.as_text().is_some_and(str::is_empty))
}

/// Whether a message may be without parts: as a prefill.
fn may_be_empty(
    list: &[Message],
    index: usize,
    rules: &TranscriptRules,
    thinking: Option<&ThinkingConfig>,
) -> bool {
    rules.takes_prefill(thinking)
        && index + 1 == list.len()
        && list[index].role() == Role::Assistant
}

pub(super) fn repair(draft: &mut Draft<'_>) {
    let rules = draft.rules;
    let blank = |part: &Part| is_blank(part, rules).then_some(TranscriptRule::Empty);
    draft.remove_parts(|_, _, part| Some((blank(part)?, "empty text dropped")));
    let has_blank = |(at, _, part): &(PartIndex, Role, &Part)| {
        let message = &draft.messages[at.message].message;
        part.as_tool_result().is_some_and(|result| {
            blocks(message, at.part, result, rules).iter().any(|part| is_blank(part, rules))
        })
    };
    let blank_results: Vec<PartIndex> =
        parts(&draft.messages).filter(has_blank).map(|(at, ..)| at).collect();
    for at in blank_results {
        if let Some(Part::ToolResult(result)) = draft.part_mut(at) {
            result.content.retain(|part| !is_blank(part, rules));
        }
        draft.record(TranscriptRule::Empty, at, "empty text dropped from a result");
    }
    let is_bare = |part: &Part| part.as_tool_result().is_some_and(|it| needs_output(it, rules));
    let bare: Vec<PartIndex> =
        parts(&draft.messages).filter(|(_, _, part)| is_bare(part)).map(|(at, ..)| at).collect();
    for at in bare {
        if let Some(Part::ToolResult(result)) = draft.part_mut(at) {
            result.content = vec![Part::text(NO_OUTPUT)];
        }
        draft.record(TranscriptRule::Empty, at, "empty result given a text");
    }
    // An empty prefill too: a later step may put a message after it, and it has no content.
    for index in 0..draft.messages.len() {
        if draft.messages[index].message.parts().is_empty() {
            draft.record(TranscriptRule::Empty, Position::Message(index), "empty message dropped");
        }
    }
    draft.messages.retain(|slot| !slot.message.parts().is_empty());
}
