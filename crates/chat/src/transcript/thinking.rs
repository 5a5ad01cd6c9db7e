//! S11: thinking is sent back unchanged or not at all.
//!
//! A *loop* is what the model does between two messages of the user: calls, results, calls. A loop
//! keeps all of its thinking or none, as Anthropic requires; valid thinking of past loops stays,
//! because dropping it would lose the prompt cache.

use super::{
    Position, TranscriptRule, TranscriptRules,
    draft::Draft,
    error_text,
    outcome::Findings,
    rules::thinks,
    turn::{HasMessage, PartIndex, Turn, parts, turns},
};
use steadfast_core::Dialect;

use crate::{ChatRequest, Part, Role, SharedParams, ThinkingConfig};

/// Google's own value for a call that another model made: it is not checked.
const SKIP_CHECK: &str = "skip_thought_signature_validator";

pub(super) fn check(request: &ChatRequest, rules: &TranscriptRules, found: &mut Findings) {
    let rule = TranscriptRule::Thinking;
    let list = &*request.messages;
    let dialect = rules.dialect;
    let mut first_part = None;
    for turn in turns(list, rules.merges) {
        if let Some(at) = trailing(list, &turn) {
            found.push(rule, at, error_text::thinking_last(dialect, at.message));
        }
        for (at, fault) in faults(list, &turn, rules, &mut first_part) {
            let text = match fault {
                Fault::Unsigned => error_text::unsigned(at),
                Fault::Foreign => error_text::foreign_thinking(dialect, at),
                Fault::Late(after) => error_text::thinking_late(at, after),
            };
            found.push(rule, at, text);
        }
    }
    if rules.foreign_history && dialect == Dialect::Gemini {
        for (at, ..) in parts(list).filter(|(_, _, part)| is_foreign_signature(part)) {
            found.push(rule, at, error_text::foreign_thinking(dialect, at));
        }
    }
    let thinking = request.params.thinking.as_ref();
    if let Some((at, part)) = loop_without_thinking(list, rules, thinking) {
        found.push(rule, at, error_text::thinking_missing(at.message, part));
    }
    if let Some(at) = prefill_thinking(list, rules, thinking).first() {
        found.push(rule, *at, error_text::thinking_off(*at));
    }
    for at in unsigned_calls(list, rules) {
        let name = at.call(list).map_or("", |call| &call.name);
        found.push(rule, at, error_text::unsigned_call(name, at.message));
    }
}

/// What is wrong with a thinking part.
enum Fault<'a> {
    Unsigned,
    Foreign,
    /// The turn begins with this part, which is no thinking.
    Late(&'a Part),
}

/// What is wrong with the thinking of a turn. `first_part` is the first part since the last reply:
/// instructions between messages of the model are no reply, as an encoder may move them out.
fn faults<'a, H: HasMessage>(
    list: &'a [H],
    turn: &Turn,
    rules: &TranscriptRules,
    first_part: &mut Option<&'a Part>,
) -> Vec<(PartIndex, Fault<'a>)> {
    let mut faults = Vec::new();
    for (at, part) in turn.model_parts(list) {
        let first = *first_part.get_or_insert(part);
        if !part.is_thinking() {
            continue;
        }
        let is_signed = match part {
            Part::Thinking(thinking) => thinking.signature.as_ref().is_some_and(|s| !s.is_empty()),
            _ => true,
        };
        if rules.foreign_history {
            faults.push((at, Fault::Foreign));
        } else if rules.signed_thinking && !is_signed {
            faults.push((at, Fault::Unsigned));
        } else if rules.signed_thinking && !first.is_thinking() {
            faults.push((at, Fault::Late(first)));
        }
    }
    if !turn.is_unanswered(list) {
        *first_part = None;
    }
    faults
}

/// The first of the thinking parts that end a turn, with nothing after them.
fn trailing<H: HasMessage>(list: &[H], turn: &Turn) -> Option<PartIndex> {
    let mut end = None;
    for (at, part) in turn.model_parts(list) {
        if part.is_thinking() {
            end = end.or(Some(at));
        } else {
            end = None;
        }
    }
    end
}

/// Whether the user's message ends a loop. Where thinking is signed, text beside results does not:
/// the provider takes what follows the results for the same turn of the model.
fn ends_loop<H: HasMessage>(turn: &Turn, list: &[H], rules: &TranscriptRules) -> bool {
    turn.has_user(list) && !(rules.signed_thinking && turn.has_results(list))
}

/// The loop that the conversation is in: everything after the user's last message.
pub(super) fn current_loop<H: HasMessage>(list: &[H], rules: &TranscriptRules) -> Vec<Turn> {
    let mut current = Vec::new();
    for turn in turns(list, rules.merges) {
        let is_over = ends_loop(&turn, list, rules);
        current.push(turn);
        if is_over {
            current.clear();
        }
    }
    current.retain(|turn| !turn.model.is_empty());
    current
}

/// The first part of an open tool loop that should be thinking and is not.
fn loop_without_thinking<'a, H: HasMessage>(
    list: &'a [H],
    rules: &TranscriptRules,
    thinking: Option<&ThinkingConfig>,
) -> Option<(PartIndex, &'a Part)> {
    if !rules.signed_thinking || !thinks(thinking) {
        return None;
    }
    let current = current_loop(list, rules);
    if current.last()?.is_unanswered(list) {
        return None;
    }
    current.first()?.model_parts(list).next().filter(|(_, part)| !part.is_thinking())
}

/// Turns thinking off where the open tool loop should begin with some and does not; on again, as it was,
/// where a repair has turned it off and it may be on. Whether it was turned off.
pub(super) fn withhold_or_return<H: HasMessage>(
    list: &[H],
    rules: &TranscriptRules,
    params: &mut SharedParams,
) -> bool {
    if loop_without_thinking(list, rules, params.thinking.as_ref()).is_some() {
        let thinking = params.thinking.take();
        params.withheld_thinking = thinking;
        return true;
    }
    let withheld = params.withheld_thinking.as_ref();
    if withheld.is_some() && loop_without_thinking(list, rules, withheld).is_none() {
        let withheld = params.withheld_thinking.take();
        params.thinking = withheld;
    }
    false
}

/// The thinking in a prefill, when the model is to continue it without thinking.
fn prefill_thinking<H: HasMessage>(
    list: &[H],
    rules: &TranscriptRules,
    thinking: Option<&ThinkingConfig>,
) -> Vec<PartIndex> {
    if !rules.signed_thinking || thinks(thinking) {
        return Vec::new();
    }
    let Some(turn) = turns(list, rules.merges).last() else { return Vec::new() };
    if !turn.is_unanswered(list) || turn.model_parts(list).any(|(_, part)| is_call(part)) {
        return Vec::new();
    }
    turn.model_parts(list).filter(|(_, part)| part.is_thinking()).map(|(at, _)| at).collect()
}

fn is_call(part: &Part) -> bool {
    part.as_tool_call().is_some()
}

/// The first call of each step of the current turn, where it lacks its signature.
fn unsigned_calls<H: HasMessage>(list: &[H], rules: &TranscriptRules) -> Vec<PartIndex> {
    if !rules.signed_calls {
        return Vec::new();
    }
    let first_call = |turn: &Turn| {
        let (at, part) = turn.model_parts(list).find(|(_, part)| is_call(part))?;
        let call = part.as_tool_call()?;
        call.signature.as_ref().is_none_or(String::is_empty).then_some(at)
    };
    current_loop(list, rules).iter().filter_map(first_call).collect()
}

/// A signature that only the model that wrote it can check.
fn is_foreign_signature(part: &Part) -> bool {
    let signature = match part {
        Part::Text(text) => &text.signature,
        Part::ToolCall(call) => &call.signature,
        _ => return false,
    };
    signature.as_ref().is_some_and(|signature| signature != SKIP_CHECK)
}

pub(super) fn repair(draft: &mut Draft<'_>) {
    let rules = draft.rules;
    let trailing = all_trailing(draft);
    remove(draft, &trailing, "thinking dropped that nothing follows");
    let faulty = faulty_loops(draft);
    remove(draft, &faulty, "thinking dropped, with all of its loop");
    if rules.foreign_history && rules.dialect == Dialect::Gemini {
        drop_signatures(draft);
    }
    if withhold_or_return(&draft.messages, rules, draft.params) {
        let what = "thinking turned off for this open tool loop";
        draft.record(TranscriptRule::Thinking, Position::Request, what);
    }
    let prefill = prefill_thinking(&draft.messages, rules, draft.params.thinking.as_ref());
    remove(draft, &prefill, "thinking dropped: the model does not think now");
    for at in unsigned_calls(&draft.messages, rules) {
        if let Some(Part::ToolCall(call)) = draft.part_mut(at) {
            call.signature = Some(SKIP_CHECK.to_owned());
        }
        draft.record(TranscriptRule::Thinking, at, "marked as another model's call");
    }
}

/// Thinking that nothing follows in its turn. The rest of its loop stays: no other part of the model
/// loses the thinking that led to it.
fn all_trailing(draft: &Draft<'_>) -> Vec<PartIndex> {
    let list = &draft.messages;
    let mut all = Vec::new();
    for turn in turns(list, draft.rules.merges) {
        if let Some(first) = trailing(list, &turn) {
            all.extend(turn.model_parts(list).map(|(at, _)| at).filter(|at| *at >= first));
        }
    }
    all
}

/// All thinking of loops in which some can not be sent.
fn faulty_loops(draft: &Draft<'_>) -> Vec<PartIndex> {
    let rules = draft.rules;
    let list = &draft.messages;
    let mut is_in_faulty_loop = vec![false; list.len()];
    let mut first_part = None;
    let mut start = 0;
    let mut is_faulty = false;
    for turn in turns(list, rules.merges) {
        is_faulty |= !faults(list, &turn, rules, &mut first_part).is_empty();
        if ends_loop(&turn, list, rules) || turn.reply.end == list.len() {
            is_in_faulty_loop[start..turn.reply.end].fill(is_faulty);
            start = turn.reply.end;
            is_faulty = false;
        }
    }
    parts(list)
        .filter(|(at, role, part)| {
            *role == Role::Assistant && part.is_thinking() && is_in_faulty_loop[at.message]
        })
        .map(|(at, ..)| at)
        .collect()
}

fn drop_signatures(draft: &mut Draft<'_>) {
    for index in 0..draft.messages.len() {
        let message = &mut draft.messages[index].message;
        if !message.parts().iter().any(is_foreign_signature) {
            continue;
        }
        for part in message.parts_mut().iter_mut().filter(|part| is_foreign_signature(part)) {
            match part {
                Part::Text(text) => text.signature = None,
                Part::ToolCall(call) => call.signature = None,
                _ => {}
            }
        }
        let what = "signatures of another model dropped";
        draft.record(TranscriptRule::Thinking, Position::Message(index), what);
    }
}

/// Removes parts, which are in order.
fn remove(draft: &mut Draft<'_>, removed: &[PartIndex], what: &'static str) {
    let mut removed = removed.iter().peekable();
    draft.remove_parts(|at, _, _| {
        removed.next_if_eq(&&at).map(|_| (TranscriptRule::Thinking, what))
    });
}
