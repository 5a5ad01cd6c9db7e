//! S1 and S10: the roles of the first and the last message.

use super::{
    Position, TranscriptRule, TranscriptRules,
    draft::{Draft, Slot},
    error_text,
    outcome::Findings,
    turn::{HasMessage, turns},
};
use crate::{ChatRequest, Message, Part, Role, Text, ThinkingConfig};

/// Opens a conversation that the model opens: its beginning was cut off.
const EARLIER: &str = "[The beginning of this conversation is not included.]";

/// Opens a conversation that has instructions and nothing else.
const BEGIN: &str = "Begin.";

/// Asks the model to go on.
const CONTINUE: &str = "Continue.";

pub(super) fn check(request: &ChatRequest, rules: &TranscriptRules, found: &mut Findings) {
    let list = &*request.messages;
    let first = match opening(list, rules) {
        Opening::Valid => None,
        Opening::NoMessage | Opening::NoTurn => {
            Some((Position::Request, error_text::no_messages(rules.dialect)))
        }
        Opening::Model(at) => Some((Position::Message(at), error_text::first(rules.dialect))),
    };
    if let Some((at, text)) = first {
        found.push(TranscriptRule::FirstMessage, at, text);
    }
    let last = match closing(list, rules, request.params.thinking.as_ref()) {
        Closing::Valid => None,
        Closing::Model(at) => Some((at, error_text::tail(rules.dialect, rules.prefill))),
        Closing::Space(at) => Some((at, error_text::TRAILING_SPACE)),
    };
    if let Some((at, text)) = last {
        found.push(TranscriptRule::Tail, Position::Message(at), text);
    }
}

enum Opening {
    Valid,
    /// There is no message.
    NoMessage,
    /// There are only instructions.
    NoTurn,
    /// The first message, this one, is the model's.
    Model(usize),
}

fn opening<H: HasMessage>(list: &[H], rules: &TranscriptRules) -> Opening {
    if list.is_empty() {
        return Opening::NoMessage;
    }
    if !rules.user_first {
        return Opening::Valid;
    }
    match list.iter().position(|held| held.message().role() != Role::System) {
        None => Opening::NoTurn,
        Some(at) if list[at].message().role() == Role::Assistant => Opening::Model(at),
        Some(_) => Opening::Valid,
    }
}

enum Closing {
    Valid,
    /// The last message, this one, is the model's.
    Model(usize),
    /// The prefill, this message, ends in white space.
    Space(usize),
}

fn closing<H: HasMessage>(
    list: &[H],
    rules: &TranscriptRules,
    thinking: Option<&ThinkingConfig>,
) -> Closing {
    if !rules.user_last {
        return Closing::Valid;
    }
    let last = list.iter().rposition(|held| held.message().role() != Role::System);
    let Some(last) = last.filter(|last| list[*last].message().role() == Role::Assistant) else {
        return Closing::Valid;
    };
    let tail = turns(list, rules.merges).last();
    let mut parts = tail.iter().flat_map(|turn| turn.model_parts(list)).map(|(_, part)| part);
    let is_open = parts.any(|part| match part {
        // Not the end: its result is missing, which S3 reports.
        Part::ToolCall(_) => true,
        // Server tools: sent back after a pause, for the model to go on.
        Part::Opaque(opaque) => rules.server_tools && opaque.dialect == rules.dialect,
        _ => false,
    });
    if is_open {
        Closing::Valid
    } else if !rules.takes_prefill(thinking) {
        Closing::Model(last)
    } else {
        let Some(Part::Text(Text { text, .. })) = list[last].message().parts().last() else {
            return Closing::Valid;
        };
        let trimmed = text.trim_end();
        // A text of nothing but white space is a matter of S9.
        let ends_in_space = !trimmed.is_empty() && trimmed.len() < text.len();
        if ends_in_space { Closing::Space(last) } else { Closing::Valid }
    }
}

pub(super) fn repair(draft: &mut Draft<'_>) {
    let rules = draft.rules;
    let opening = match opening(&draft.messages, rules) {
        // Without any message there is nothing to send.
        Opening::Valid | Opening::NoMessage => None,
        Opening::NoTurn => Some((draft.messages.len(), BEGIN)),
        Opening::Model(at) => Some((at, EARLIER)),
    };
    if let Some((at, text)) = opening {
        let original = draft.messages.get(at).map_or(0, |slot| slot.original);
        draft.messages.insert(at, Slot { message: Message::user(text), original });
        let what = "a user message added at the beginning";
        draft.record(TranscriptRule::FirstMessage, Position::Message(at), what);
    }
    match closing(&draft.messages, rules, draft.params.thinking.as_ref()) {
        Closing::Valid => {}
        Closing::Model(at) => {
            let original = draft.messages[at].original;
            draft.messages.push(Slot { message: Message::user(CONTINUE), original });
            let what = "a user message added at the end";
            draft.record(TranscriptRule::Tail, Position::Message(at), what);
        }
        Closing::Space(at) => {
            if let Some(Part::Text(text)) = draft.messages[at].message.parts_mut().last_mut() {
                text.text.truncate(text.text.trim_end().len());
            }
            let what = "white space removed at the end";
            draft.record(TranscriptRule::Tail, Position::Message(at), what);
        }
    }
}
