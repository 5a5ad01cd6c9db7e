//! S11: thinking is replayed as it came or not at all.
//!
//! A *loop* is what the model does between two words of the user: calls, results, calls. A loop
//! keeps all of its thinking or none, as Anthropic holds it to; thinking of past loops may go, and
//! stays, for the cache's sake.

use std::ops::Range;

use super::{
    Place, Rule, Rules,
    draft::Draft,
    outcome::Findings,
    rules::thinks,
    turn::{Holds, Spot, Turn, turns},
    words,
};
use steadfast_core::Dialect;

use crate::{ChatRequest, Part, Role, ThinkingConfig};

/// Google's own word for a call that another model made: it is not checked.
const SKIP_CHECK: &str = "skip_thought_signature_validator";

pub(super) fn check(request: &ChatRequest, rules: &Rules, found: &mut Findings) {
    let list = &*request.messages;
    let dialect = rules.dialect;
    let mut said = None;
    for turn in turns(list, rules.merges) {
        if let Some(spot) = dangling(list, &turn) {
            let words = words::thinking_last(dialect, spot.message);
            found.part(Rule::Thinking, spot.message, spot.part, words);
        }
        for fault in faults(list, &turn, rules, &mut said) {
            found.part(
                Rule::Thinking,
                fault.0.message,
                fault.0.part,
                fault.1.words(dialect, fault.0),
            );
        }
    }
    if rules.foreign_history && dialect == Dialect::Gemini {
        for (index, message) in list.iter().enumerate() {
            for (part, value) in message.parts().iter().enumerate() {
                if is_foreign_signature(value) {
                    let words = words::foreign_thinking(dialect, Spot { message: index, part });
                    found.part(Rule::Thinking, index, part, words);
                }
            }
        }
    }
    let thinking = request.params.thinking.as_ref();
    if let Some((spot, part)) = headless_loop(list, rules, thinking) {
        let words = words::thinking_missing(spot.message, part);
        found.part(Rule::Thinking, spot.message, spot.part, words);
    }
    if let Some(spot) = last_word(list, rules, thinking).first() {
        found.part(Rule::Thinking, spot.message, spot.part, words::thinking_off(*spot));
    }
    for spot in unsigned_calls(list, rules) {
        let name = spot.call(list).map_or("", |call| &call.name);
        let words = words::unsigned_call(name, spot.message);
        found.part(Rule::Thinking, spot.message, spot.part, words);
    }
}

/// What is wrong with one piece of thinking.
enum Fault<'a> {
    Unsigned,
    Foreign,
    /// It comes after this part, in a turn that does not begin with thinking.
    Late(&'a Part),
}

impl Fault<'_> {
    fn words(&self, dialect: Dialect, spot: Spot) -> String {
        match self {
            Fault::Unsigned => words::unsigned(spot),
            Fault::Foreign => words::foreign_thinking(dialect, spot),
            Fault::Late(found) => words::thinking_late(spot, found),
        }
    }
}

/// What is wrong with the thinking of a turn. `said` is the first part of the model's run so far,
/// for a run that instructions interrupt: an encoder may lift them out.
fn faults<'a, H: Holds>(
    list: &'a [H],
    turn: &Turn,
    rules: &Rules,
    said: &mut Option<&'a Part>,
) -> Vec<(Spot, Fault<'a>)> {
    let mut faults = Vec::new();
    for (spot, part) in turn.model_parts(list) {
        let first = *said.get_or_insert(part);
        if !part.is_thinking() {
            continue;
        }
        let is_signed = match part {
            Part::Thinking(thinking) => thinking.signature.as_ref().is_some_and(|s| !s.is_empty()),
            _ => true,
        };
        if rules.foreign_history {
            faults.push((spot, Fault::Foreign));
        } else if rules.signed_thinking && !is_signed {
            faults.push((spot, Fault::Unsigned));
        } else if rules.signed_thinking && !first.is_thinking() {
            faults.push((spot, Fault::Late(first)));
        }
    }
    if !turn.is_unanswered(list) {
        *said = None;
    }
    faults
}

/// The first of the pieces of thinking that end a turn, with nothing after them.
fn dangling<H: Holds>(list: &[H], turn: &Turn) -> Option<Spot> {
    let mut end = None;
    for (spot, part) in turn.model_parts(list) {
        if part.is_thinking() {
            end = end.or(Some(spot));
        } else {
            end = None;
        }
    }
    end
}

/// Whether the user's words end a loop. Where thinking is signed, words beside results do not: the
/// provider takes what follows the results for the same turn of the model's.
fn ends_loop<H: Holds>(turn: &Turn, list: &[H], rules: &Rules) -> bool {
    turn.has_user(list) && !(rules.signed_thinking && turn.has_results(list))
}

/// The loop that the conversation is in: from the user's last word on.
fn current_loop<H: Holds>(list: &[H], rules: &Rules) -> Vec<Turn> {
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
fn headless_loop<'a, H: Holds>(
    list: &'a [H],
    rules: &Rules,
    thinking: Option<&ThinkingConfig>,
) -> Option<(Spot, &'a Part)> {
    if !rules.signed_thinking || !thinks(thinking) {
        return None;
    }
    let current = current_loop(list, rules);
    if current.last()?.is_unanswered(list) {
        return None;
    }
    current.first()?.model_parts(list).next().filter(|(_, part)| !part.is_thinking())
}

/// The thinking in the model's last word, when the model is to continue it without thinking.
fn last_word<H: Holds>(list: &[H], rules: &Rules, thinking: Option<&ThinkingConfig>) -> Vec<Spot> {
    if !rules.signed_thinking || thinks(thinking) {
        return Vec::new();
    }
    let Some(turn) = turns(list, rules.merges).last() else { return Vec::new() };
    if !turn.is_unanswered(list) || turn.model_parts(list).any(|(_, part)| is_call(part)) {
        return Vec::new();
    }
    turn.model_parts(list).filter(|(_, part)| part.is_thinking()).map(|(spot, _)| spot).collect()
}

fn is_call(part: &Part) -> bool {
    part.as_tool_call().is_some()
}

/// The first call of each step of the current turn, where it lacks its signature.
fn unsigned_calls<H: Holds>(list: &[H], rules: &Rules) -> Vec<Spot> {
    if !rules.signed_calls {
        return Vec::new();
    }
    let first_call = |turn: &Turn| {
        let (spot, part) = turn.model_parts(list).find(|(_, part)| is_call(part))?;
        let call = part.as_tool_call()?;
        call.signature.as_ref().is_none_or(String::is_empty).then_some(spot)
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

pub(super) fn mend(draft: &mut Draft<'_>) {
    drop_dangling(draft);
    drop_faulty(draft);
    let rules = draft.rules;
    if rules.foreign_history && rules.dialect == Dialect::Gemini {
        drop_signatures(draft);
    }
    if headless_loop(&draft.messages, rules, draft.params.thinking.as_ref()).is_some() {
        draft.params.thinking = None;
        draft.did(Rule::Thinking, Place::Request, "thinking turned off for this open tool loop");
    }
    let spots = last_word(&draft.messages, rules, draft.params.thinking.as_ref());
    take(draft, &spots, "thinking dropped: the model does not think now");
    for spot in unsigned_calls(&draft.messages, rules) {
        let slot = &mut draft.messages[spot.message];
        let at = Place::Part { message: slot.from, part: spot.part };
        if let Some(Part::ToolCall(call)) = slot.message.parts_mut().get_mut(spot.part) {
            call.signature = Some(SKIP_CHECK.to_owned());
        }
        draft.did(Rule::Thinking, at, "marked as another model's call");
    }
}

/// Drops thinking that led to nothing. The rest of its loop is not touched: nothing that the model
/// said after thinking loses its thoughts.
fn drop_dangling(draft: &mut Draft<'_>) {
    let mut doomed = Vec::new();
    for turn in turns(&draft.messages, draft.rules.merges) {
        if let Some(start) = dangling(&draft.messages, &turn) {
            let spots = turn.model_parts(&draft.messages).map(|(spot, _)| spot);
            doomed.extend(spots.filter(|spot| *spot >= start));
        }
    }
    take(draft, &doomed, "thinking dropped that nothing follows");
}

/// Drops all thinking of loops in which some can not be sent.
fn drop_faulty(draft: &mut Draft<'_>) {
    let rules = draft.rules;
    let list = &draft.messages;
    let mut doomed = Vec::new();
    let mut said = None;
    let mut start = 0;
    let mut is_faulty = false;
    let mut end_loop = |range: Range<usize>, is_faulty: bool| {
        for message in range.filter(|_| is_faulty) {
            if list[message].message.role() == Role::Assistant {
                let parts = list[message].message.parts().iter().enumerate();
                let thinking = parts.filter(|(_, part)| part.is_thinking());
                doomed.extend(thinking.map(|(part, _)| Spot { message, part }));
            }
        }
    };
    for turn in turns(list, rules.merges) {
        is_faulty |= !faults(list, &turn, rules, &mut said).is_empty();
        if ends_loop(&turn, list, rules) {
            end_loop(start..turn.reply.end, is_faulty);
            start = turn.reply.end;
            is_faulty = false;
        }
    }
    end_loop(start..list.len(), is_faulty);
    take(draft, &doomed, "thinking dropped, with all of its loop");
}

fn drop_signatures(draft: &mut Draft<'_>) {
    for index in 0..draft.messages.len() {
        let slot = &mut draft.messages[index];
        if !slot.message.parts().iter().any(is_foreign_signature) {
            continue;
        }
        for part in slot.message.parts_mut().iter_mut().filter(|part| is_foreign_signature(part)) {
            match part {
                Part::Text(text) => text.signature = None,
                Part::ToolCall(call) => call.signature = None,
                _ => {}
            }
        }
        draft.did_to(Rule::Thinking, index, "signatures of another model dropped");
    }
}

/// Takes away the parts at `spots`, which are in order.
fn take(draft: &mut Draft<'_>, spots: &[Spot], what: &'static str) {
    if spots.is_empty() {
        return;
    }
    let mut spots = spots.iter().peekable();
    draft.take_all(|message, _, part, _| {
        spots.next_if_eq(&&Spot { message, part }).map(|_| (Rule::Thinking, what))
    });
}
