//! A task as its own conversation tells it.

use steadfast_chat::{ChatRequest, Message, Part, Role, ToolCall, ToolResult};
use tokio::time::Instant;

use crate::{
    MARK,
    ledger::Ledger,
    signature::{Compiled, Facts},
};

/// Calls of one answer whose results are waited for. Those of a longer batch are counted, and say nothing
/// of progress: reading stays linear, whatever a caller sends.
pub(crate) const MOST_OPEN: usize = 128;

/// From where on a history is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum From {
    /// What happened since the user last spoke.
    LastTurn,
    /// What happened since so many answers; the user's turns in between stay part of the task.
    Answer(usize),
}

/// Whether a person speaks in it: neither a tool's result nor a note of ours.
pub(crate) fn is_user_turn(message: &Message) -> bool {
    let says = |part: &Part| match part {
        Part::Text(text) => !text.text.trim().is_empty() && !text.text.starts_with(MARK),
        Part::Media(_) => true,
        _ => false,
    };
    message.role() == Role::User
        && message.tool_results().next().is_none()
        && message.parts().iter().any(says)
}

/// Whether the user speaks last in it.
pub(crate) fn ends_with_user(request: &ChatRequest) -> bool {
    request.messages.iter().rev().find(|m| m.role() != Role::System).is_some_and(is_user_turn)
}

/// The model's answers in it, and how many of them stand before the user's last turn.
pub(crate) fn answers(request: &ChatRequest) -> (usize, usize) {
    let (mut all, mut before, mut last) = (0, 0, Role::System);
    for message in &request.messages {
        if is_user_turn(message) {
            before = all;
        }
        all += usize::from(begins_answer(message, last));
        last = message.role();
    }
    (all, before)
}

/// Neighbours of the model's are one answer.
pub(crate) fn begins_answer(message: &Message, before: Role) -> bool {
    message.role() == Role::Assistant && before != Role::Assistant
}

/// Reads the book of a task out of its history; `None` when there is nothing in it.
pub(crate) fn read(
    c: &Compiled,
    request: &ChatRequest,
    from: From,
    began: Option<Instant>,
    now: Instant,
) -> Option<Ledger> {
    let messages = &request.messages[..];
    let (start, mut skip) = match from {
        From::LastTurn => (messages.iter().rposition(is_user_turn).map_or(0, |at| at + 1), 0),
        From::Answer(skip) => (0, skip),
    };
    let messages = &messages[start..];
    // Most requests end here.
    if messages.iter().all(|message| message.role() != Role::Assistant) {
        return None;
    }
    let mut ledger = Ledger::new(began);
    // Calls that have no result yet.
    let mut open: Vec<(&ToolCall, Facts<'_>)> = Vec::new();
    let mut last = Role::System;
    let mut counts = skip == 0;
    for message in messages {
        if begins_answer(message, last) {
            counts = skip == 0;
            skip = skip.saturating_sub(1);
            open.clear();
            if counts {
                ledger.answered();
            }
        }
        last = message.role();
        if !counts {
            continue;
        }
        if is_user_turn(message) {
            ledger.user_turn(false, None);
            continue;
        }
        for part in message.parts() {
            match part {
                Part::ToolCall(call) => {
                    // Once stopped it stays so, and says it when the next answer is asked for.
                    let facts = c.facts(call);
                    let _ = ledger.admit(c, &facts, now);
                    if open.len() < MOST_OPEN {
                        open.push((call, facts));
                    }
                }
                Part::ToolResult(result) => {
                    if let Some(facts) = answered(&mut open, result)
                        && !is_ours(result)
                    {
                        ledger.observe(c, &facts, c.outcome(result));
                    }
                }
                _ => {}
            }
        }
    }
    (ledger.used() != (0, 0)).then_some(ledger)
}

/// The call that `result` answers: by its id, else by the tool's name, else the oldest.
pub(crate) fn answered<T>(open: &mut Vec<(&ToolCall, T)>, result: &ToolResult) -> Option<T> {
    let at = open.iter().position(|(call, _)| match result.id.is_empty() {
        true => result.name.as_ref().is_none_or(|name| *name == call.name),
        false => call.id == result.id,
    })?;
    Some(open.remove(at).1)
}

/// Whether the guard itself answered the call.
pub(crate) fn is_ours(result: &ToolResult) -> bool {
    matches!(&result.content[..], [Part::Text(text)] if text.text.starts_with(MARK))
}
