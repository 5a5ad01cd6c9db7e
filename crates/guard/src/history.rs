//! Reads a task's calls and results from its conversation.

use std::hash::{BuildHasher, Hash, Hasher};

use steadfast_chat::{ChatRequest, Message, Part, Role, ToolCall, ToolResult};
use tokio::time::Instant;

use crate::{
    GuardVerdict, MARK,
    automatic::is_automatic,
    known::Counting,
    signature::{CallFacts, Compiled},
    state::{TaskEvent, TaskState},
};

/// Calls of one answer that are matched with their results. Those of a longer batch are counted only:
/// reading stays linear, whatever a caller sends.
const MAX_OPEN: usize = 128;

/// Whether it is from the user: neither a tool's result nor advice of the guard, nor what an agent writes by itself.
pub(crate) fn is_user_turn(message: &Message) -> bool {
    let is_users = |part: &Part| match part {
        Part::Text(text) => {
            !text.text.trim().is_empty()
                && !text.text.starts_with(MARK)
                && !is_automatic(&text.text)
        }
        Part::Media(_) => true,
        _ => false,
    };
    message.role() == Role::User
        && message.tool_results().next().is_none()
        && message.parts().iter().any(is_users)
}

/// Whether the last message is from the user.
pub(crate) fn ends_with_user(request: &ChatRequest) -> bool {
    request.messages.iter().rev().find(|m| m.role() != Role::System).is_some_and(is_user_turn)
}

/// The messages since the user's last turn.
pub(crate) fn last_turn(messages: &[Message]) -> &[Message] {
    let start = messages.iter().rposition(is_user_turn).map_or(0, |at| at + 1);
    &messages[start..]
}

/// Reads a request of a task: what is new in its history is counted, and loops are detected in all of it.
/// A history that is sent again changes nothing.
pub(crate) fn read(c: &Compiled, request: &ChatRequest, state: &mut TaskState, now: Instant) {
    state.on(c, TaskEvent::UserTurn, now);
    let mut known = std::mem::take(&mut state.known);
    known.begin();
    // Of a session, a task is what happens since the user's last turn.
    let (mut messages, mut conversation, mut earlier) = (last_turn(&request.messages), 0, 0);
    if state.named {
        (messages, conversation) = (&request.messages, conversation_of(c, request));
        if known.read(conversation) == Counting::New {
            // A task begins with its first request: what was before that does not belong to it.
            earlier = answers_before_last_turn(messages);
        }
    }
    let counting = |rest: &[Message]| {
        let counting = known.read(answer(c, conversation, rest));
        let is_earlier = earlier > 0;
        earlier = earlier.saturating_sub(1);
        if is_earlier && counting == Counting::New { Counting::Again } else { counting }
    };
    feed(c, messages, counting, state, now, |_, _, _, _| {});
    state.known = known;
    state.end_of_history();
}

/// The conversation of a request of a named task, which may have several: by its session, else by what
/// the user wrote first.
fn conversation_of(c: &Compiled, request: &ChatRequest) -> u64 {
    if let Some(session) = request.context.session() {
        return c.hash(("session", session));
    }
    let first = request.messages.iter().find(|message| is_user_turn(message));
    let mut hash = c.hasher.build_hasher();
    for text in first.into_iter().flat_map(Message::parts).filter_map(Part::as_text) {
        text.hash(&mut hash);
    }
    hash.finish()
}

/// The answer that begins with the first of `messages`: by its calls, else by its text. Not by its
/// position, since clients remove older messages.
fn answer(c: &Compiled, conversation: u64, messages: &[Message]) -> u64 {
    let parts = || {
        let all = messages.iter().take_while(|message| message.role() == Role::Assistant);
        all.flat_map(Message::parts)
    };
    let mut hash = c.hasher.build_hasher();
    conversation.hash(&mut hash);
    let mut has_calls = false;
    for call in parts().filter_map(Part::as_tool_call) {
        (&call.id, &call.name, &call.arguments).hash(&mut hash);
        has_calls = true;
    }
    if !has_calls {
        for text in parts().filter_map(Part::as_text) {
            text.hash(&mut hash);
        }
    }
    hash.finish()
}

/// The number of the model's answers before the user's last turn.
fn answers_before_last_turn(messages: &[Message]) -> usize {
    let (mut all, mut before, mut last) = (0, 0, Role::System);
    for message in messages {
        if is_user_turn(message) {
            before = all;
        }
        all += usize::from(begins_answer(message, last));
        last = message.role();
    }
    before
}

/// Consecutive messages of the model are one answer.
fn begins_answer(message: &Message, before: Role) -> bool {
    message.role() == Role::Assistant && before != Role::Assistant
}

/// Applies a history to the `state` of its task. `counting` gets the messages from the beginning of each
/// answer on. `on_verdict` gets the number of each call, counted from 0, the call, whether the verdict is
/// on its result, and the verdict.
pub(crate) fn feed<'a>(
    c: &Compiled,
    messages: &'a [Message],
    mut counting: impl FnMut(&'a [Message]) -> Counting,
    state: &mut TaskState,
    now: Instant,
    mut on_verdict: impl FnMut(usize, &'a ToolCall, bool, GuardVerdict),
) {
    // Calls that have no result yet.
    let mut open: Vec<(usize, &ToolCall, CallFacts<'_>)> = Vec::new();
    let (mut last, mut answer, mut calls) = (Role::System, Counting::New, 0);
    for (at, message) in messages.iter().enumerate() {
        if begins_answer(message, last) {
            answer = counting(&messages[at..]);
            open.clear();
            state.is_known = answer == Counting::Again;
            if answer != Counting::Past {
                state.on(c, TaskEvent::Answer, now);
            }
        }
        last = message.role();
        if is_user_turn(message) {
            state.on(c, TaskEvent::UserTurn, now);
            continue;
        }
        if answer == Counting::Past {
            continue;
        }
        for part in message.parts() {
            match part {
                Part::ToolCall(call) => {
                    let (number, facts) = (calls, c.call(call));
                    calls += 1;
                    let verdict = state.on(c, TaskEvent::Call(&facts), now);
                    on_verdict(number, call, false, verdict);
                    if open.len() < MAX_OPEN {
                        open.push((number, call, facts));
                    }
                }
                Part::ToolResult(result) => {
                    let Some((number, call, facts)) = answered(&mut open, result) else { continue };
                    if !is_ours(result) {
                        let event = TaskEvent::Result(&facts, c.result(result));
                        let verdict = state.on(c, event, now);
                        on_verdict(number, call, true, verdict);
                    }
                }
                _ => {}
            }
        }
    }
    state.is_known = false;
}

/// The call that `result` answers: by its id, else by the tool's name, else the oldest.
fn answered<'a, T>(
    open: &mut Vec<(usize, &'a ToolCall, T)>,
    result: &ToolResult,
) -> Option<(usize, &'a ToolCall, T)> {
    let at = open.iter().position(|(_, call, _)| match result.id.is_empty() {
        true => result.name.as_ref().is_none_or(|name| *name == call.name),
        false => call.id == result.id,
    })?;
    Some(open.remove(at))
}

/// Whether the guard made the result.
pub(crate) fn is_ours(result: &ToolResult) -> bool {
    matches!(&result.content[..], [Part::Text(text)] if text.text.starts_with(MARK))
}
