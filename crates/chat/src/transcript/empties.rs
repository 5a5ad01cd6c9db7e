//! S9: nothing is empty.

use super::{Blank, Place, Rule, Rules, draft::Draft, outcome::Findings, turn::Spot, words};
use crate::{ChatRequest, Message, Part, Role, Text, ThinkingConfig, ToolResult};

/// What stands for the output of a tool that printed nothing.
const NO_OUTPUT: &str = "(no output)";

pub(super) fn check(request: &ChatRequest, rules: &Rules, found: &mut Findings) {
    let thinking = request.params.thinking.as_ref();
    for (index, message) in request.messages.iter().enumerate() {
        if message.parts().is_empty() && !may_be_empty(&request.messages, index, rules, thinking) {
            let words = words::empty_message(rules.dialect, index);
            found.message(Rule::Empty, index, words);
        }
        for (part, value) in message.parts().iter().enumerate() {
            match value {
                Part::Text(text) if is_blank(text, rules) => {
                    let words = words::blank(rules.dialect, text.text.is_empty());
                    found.part(Rule::Empty, index, part, words);
                }
                Part::ToolResult(result) => {
                    if let Some(text) = blank_in(result, rules).next() {
                        let words = words::blank(rules.dialect, text.text.is_empty());
                        found.part(Rule::Empty, index, part, words);
                    }
                    if !rules.empty_results && says_nothing(result) {
                        let words =
                            words::empty_result(rules.dialect, Spot { message: index, part });
                        found.part(Rule::Empty, index, part, words);
                    }
                }
                _ => {}
            }
        }
    }
}

fn is_blank(text: &Text, rules: &Rules) -> bool {
    match rules.blank {
        Blank::Allowed => false,
        Blank::NotEmpty => text.text.is_empty() && !is_signed(text, rules),
        Blank::NotBlank => text.text.trim().is_empty(),
    }
}

/// Whether it carries a signature that is sent: another model's goes.
fn is_signed(text: &Text, rules: &Rules) -> bool {
    !rules.foreign_history && text.signature.as_ref().is_some_and(|signature| !signature.is_empty())
}

/// The texts without words in a result.
fn blank_in<'a>(result: &'a ToolResult, rules: &'a Rules) -> impl Iterator<Item = &'a Text> {
    result.content.iter().filter_map(move |part| match part {
        Part::Text(text) if is_blank(text, rules) => Some(text),
        _ => None,
    })
}

fn says_nothing(result: &ToolResult) -> bool {
    result.content.iter().all(|part| part.as_text().is_some_and(str::is_empty))
}

/// Whether a message may be without parts: as an empty beginning of the answer.
fn may_be_empty(
    list: &[Message],
    index: usize,
    rules: &Rules,
    thinking: Option<&ThinkingConfig>,
) -> bool {
    rules.takes_prefill(thinking)
        && index + 1 == list.len()
        && list[index].role() == Role::Assistant
}

pub(super) fn mend(draft: &mut Draft<'_>) {
    let rules = draft.rules;
    draft.take_all(|_, _, _, part| match part {
        Part::Text(text) if is_blank(text, rules) => Some((Rule::Empty, "empty text dropped")),
        _ => None,
    });
    for index in 0..draft.messages.len() {
        for part in 0..draft.messages[index].message.parts().len() {
            mend_result(draft, index, part);
        }
    }
    // Also an empty beginning of the answer, which says nothing and may not stay the last message.
    let is_empty = |index: &usize| draft.messages[*index].message.parts().is_empty();
    let empty: Vec<usize> = (0..draft.messages.len()).filter(is_empty).collect();
    for index in &empty {
        draft.did_to(Rule::Empty, *index, "empty message dropped");
    }
    draft.sweep(&empty);
}

fn mend_result(draft: &mut Draft<'_>, index: usize, part: usize) {
    let rules = draft.rules;
    let slot = &mut draft.messages[index];
    let at = Place::Part { message: slot.from, part };
    let Part::ToolResult(result) = &slot.message.parts()[part] else { return };
    let has_blank = blank_in(result, rules).next().is_some();
    let is_empty = !rules.empty_results && says_nothing(result);
    if !(has_blank || is_empty) {
        return;
    }
    let Part::ToolResult(result) = &mut slot.message.parts_mut()[part] else { return };
    if is_empty {
        result.content = vec![Part::text(NO_OUTPUT)];
    } else {
        result.content.retain(|part| match part {
            Part::Text(text) => !is_blank(text, rules),
            _ => true,
        });
    }
    let what =
        if is_empty { "empty result given words" } else { "empty text dropped from a result" };
    draft.did(Rule::Empty, at, what);
}
