//! Reads a task's calls and results from its conversation.

use steadfast_chat::{ChatRequest, Message, Part, Role, ToolCall, ToolResult};
use tokio::time::Instant;

use crate::{
    GuardVerdict, MARK,
    signature::{CallFacts, Compiled},
    state::{TaskEvent, TaskState},
};

/// Calls of one answer that are matched with their results. Those of a longer batch are counted only:
/// reading stays linear, whatever a caller sends.
const MAX_OPEN: usize = 128;

/// Whether it is from the user: neither a tool's result nor advice of the guard.
pub(crate) fn is_user_turn(message: &Message) -> bool {
    let is_users = |part: &Part| match part {
        Part::Text(text) => !text.text.trim().is_empty() && !text.text.starts_with(MARK),
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

/// The number of the model's answers, and of those before the user's last turn.
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

/// The messages since the user's last turn.
pub(crate) fn last_turn(messages: &[Message]) -> &[Message] {
    let start = messages.iter().rposition(is_user_turn).map_or(0, |at| at + 1);
    &messages[start..]
}

/// Consecutive messages of the model are one answer.
fn begins_answer(message: &Message, before: Role) -> bool {
    message.role() == Role::Assistant && before != Role::Assistant
}

/// Applies a history, without its first `skip` answers, to the `state` of its task. `on_verdict` gets
/// the number of each call, counted from 0, the call, whether the verdict is on its result, and the
/// verdict.
pub(crate) fn feed<'a>(
    c: &Compiled,
    messages: &'a [Message],
    mut skip: usize,
    state: &mut TaskState,
    now: Instant,
    mut on_verdict: impl FnMut(usize, &'a ToolCall, bool, GuardVerdict),
) {
    // Calls that have no result yet.
    let mut open: Vec<(usize, &ToolCall, CallFacts<'_>)> = Vec::new();
    let (mut last, mut counts, mut calls) = (Role::System, skip == 0, 0);
    for message in messages {
        if begins_answer(message, last) {
            counts = skip == 0;
            skip = skip.saturating_sub(1);
            open.clear();
            if counts {
                state.on(c, TaskEvent::Answer, now);
            }
        }
        last = message.role();
        if !counts {
            continue;
        }
        if is_user_turn(message) {
            state.on(c, TaskEvent::UserTurn, now);
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
