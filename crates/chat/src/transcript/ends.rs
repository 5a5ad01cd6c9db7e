//! S1 and S10: who speaks first and last.

use super::{
    Place, Rule, Rules,
    draft::{Draft, Slot},
    outcome::Findings,
    turn::{Holds, turns},
    words,
};
use crate::{ChatRequest, Message, Part, Role, Text, ThinkingConfig};

/// Opens a conversation that the model opens: its beginning was cut off.
const EARLIER: &str = "[The beginning of this conversation is not included.]";

/// Opens a conversation that has instructions and nothing else.
const BEGIN: &str = "Begin.";

/// Hands the word back to the model.
const CONTINUE: &str = "Continue.";

pub(super) fn check(request: &ChatRequest, rules: &Rules, found: &mut Findings) {
    let list = &*request.messages;
    match opening(list, rules) {
        Opening::Fine => {}
        Opening::Nothing | Opening::NoTurn => {
            found.push(Rule::FirstMessage, Place::Request, words::no_messages(rules.dialect));
        }
        Opening::Model(at) => found.message(Rule::FirstMessage, at, words::first(rules.dialect)),
    }
    match closing(list, rules, request.params.thinking.as_ref()) {
        Closing::Fine => {}
        Closing::Model(at) => {
            found.message(Rule::Tail, at, words::tail(rules.dialect, rules.prefill));
        }
        Closing::Space(at) => found.message(Rule::Tail, at, words::trailing_space()),
    }
}

enum Opening {
    Fine,
    /// There is no message.
    Nothing,
    /// There are only instructions.
    NoTurn,
    /// The model opens, with this message.
    Model(usize),
}

fn opening<H: Holds>(list: &[H], rules: &Rules) -> Opening {
    if list.is_empty() {
        return Opening::Nothing;
    }
    if !rules.user_first {
        return Opening::Fine;
    }
    match list.iter().position(|held| held.message().role() != Role::System) {
        None => Opening::NoTurn,
        Some(at) if list[at].message().role() == Role::Assistant => Opening::Model(at),
        Some(_) => Opening::Fine,
    }
}

enum Closing {
    Fine,
    /// The model has the last word, with this message.
    Model(usize),
    /// The model's last word, which it is to continue, ends in white space.
    Space(usize),
}

fn closing<H: Holds>(list: &[H], rules: &Rules, thinking: Option<&ThinkingConfig>) -> Closing {
    if !rules.user_last {
        return Closing::Fine;
    }
    let last = list.iter().rposition(|held| held.message().role() != Role::System);
    let Some(last) = last.filter(|last| list[*last].message().role() == Role::Assistant) else {
        return Closing::Fine;
    };
    let tail = turns(list, rules.merges).last();
    let mut parts = tail.iter().flat_map(|turn| turn.model_parts(list)).map(|(_, part)| part);
    let is_open = parts.any(|part| match part {
        // Not the end: its result is missing, which is told elsewhere.
        Part::ToolCall(_) => true,
        // Server tools: sent back to be continued after a pause.
        Part::Opaque(opaque) => rules.server_tools && opaque.dialect == rules.dialect,
        _ => false,
    });
    if is_open {
        Closing::Fine
    } else if !rules.takes_prefill(thinking) {
        Closing::Model(last)
    } else {
        match list[last].message().parts().last() {
            Some(Part::Text(Text { text, .. })) => {
                let words = text.trim_end();
                // A text that is nothing but white space is a matter of empty texts.
                let ends_badly = !words.is_empty() && words.len() < text.len();
                if ends_badly { Closing::Space(last) } else { Closing::Fine }
            }
            _ => Closing::Fine,
        }
    }
}

pub(super) fn mend(draft: &mut Draft<'_>) {
    let rules = draft.rules;
    let opening = match opening(&draft.messages, rules) {
        // Nothing was asked: there is nothing to be sent.
        Opening::Fine | Opening::Nothing => None,
        Opening::NoTurn => Some((draft.messages.len(), BEGIN)),
        Opening::Model(at) => Some((at, EARLIER)),
    };
    if let Some((at, words)) = opening {
        let from = draft.messages.get(at).map_or(0, |slot| slot.from);
        draft.messages.insert(at, Slot { message: Message::user(words), from });
        draft.did_to(Rule::FirstMessage, at, "opened in the user's name");
    }
    match closing(&draft.messages, rules, draft.params.thinking.as_ref()) {
        Closing::Fine => {}
        Closing::Model(at) => {
            let from = draft.messages[at].from;
            draft.messages.push(Slot { message: Message::user(CONTINUE), from });
            draft.did(Rule::Tail, Place::Message(from), "the user's word put after the model's");
        }
        Closing::Space(at) => {
            if let Some(Part::Text(text)) = draft.messages[at].message.parts_mut().last_mut() {
                text.text.truncate(text.text.trim_end().len());
            }
            draft.did_to(Rule::Tail, at, "white space taken off the end");
        }
    }
}
