//! Thinking whose prefix an edit has changed.
//!
//! Anthropic binds thinking to all that came before it, and refuses it behind anything else. So whoever
//! edits a history takes the thinking that the edit unbinds out of it, in the same step.

use std::ops::Range;

use steadfast_core::Failure;

use super::{
    Position, TranscriptRule, TranscriptRules,
    draft::Draft,
    thinking::{current_loop, withhold_or_return},
    turn::{HasMessage, PartIndex, parts},
};
use crate::{ChatRequest, Message, Part, Role};

/// Drops the thinking that an edit has unbound: that of the messages `stale`, which come after what was
/// edited and were written before it. Messages that are appended unbind nothing, and what the model
/// writes after an edit is bound to what it was given.
///
/// In the tool loop that the conversation is in, thinking is kept or dropped as a whole; where the model
/// would have to begin the loop with thinking, [`thinking`](crate::Params::thinking) is turned off for
/// this request. A message that had nothing else is removed. Returns how many parts were dropped: none
/// where the rules know no signed thinking, and none the second time.
///
/// ```
/// use steadfast_chat::{ChatRequest, Message, Part, Role, Thinking};
/// use steadfast_chat::transcript::{TranscriptRules, unbind};
/// use steadfast_core::Dialect;
///
/// let thought = Thinking { text: "hm".into(), signature: Some("s".into()), extra: None };
/// let answer = vec![Part::Thinking(thought), Part::text("four")];
/// let mut request = ChatRequest::new(vec![
///     Message::user("a summary instead of what was here"),
///     Message::new(Role::Assistant, answer),
///     Message::user("and now?"),
/// ]);
/// let rules = TranscriptRules::for_dialect(Dialect::Anthropic);
/// assert_eq!(unbind(&mut request, &rules, 1..3), 1);
/// assert_eq!(request.messages[1].parts(), [Part::text("four")]);
/// assert_eq!(unbind(&mut request, &rules, 1..3), 0);
/// ```
pub fn unbind(request: &mut ChatRequest, rules: &TranscriptRules, stale: Range<usize>) -> usize {
    keep_thinking(request, rules, |message, _| !stale.contains(&message))
}

/// The same for a list that was edited: `before` is the list as it was. Stale is what comes after the first
/// message of which something else is sent now: thinking that is gone, cache marks and blank text make no
/// difference. Appended messages are no edit.
pub fn unbind_edited(
    request: &mut ChatRequest,
    rules: &TranscriptRules,
    before: &[Message],
) -> usize {
    match first_edited(before, &request.messages) {
        Some(first) => {
            let stale = first..request.messages.len();
            unbind(request, rules, stale)
        }
        None => 0,
    }
}

/// The step of a repair: what the steps before it have edited.
pub(super) fn repair(draft: &mut Draft<'_>) {
    if !draft.rules.signed_thinking {
        return;
    }
    let first =
        if draft.has_new_tools() { Some(0) } else { first_edited(draft.before(), &draft.messages) };
    if let Some(first) = first {
        drop_where(draft, |message, _| message >= first);
    }
}

/// The index in `now` of the first message that is not sent as it was; that of its end when only the end of
/// `before` is gone.
fn first_edited<H: HasMessage>(before: &[Message], now: &[H]) -> Option<usize> {
    let is_sent = |message: &&Message| message.parts().iter().any(is_sent);
    let mut before = before.iter().filter(is_sent);
    let now = now.iter().map(HasMessage::message).enumerate();
    for (index, message) in now.filter(|(_, message)| is_sent(message)) {
        match before.next() {
            Some(one) if one.same(message) || same_content(one, message) => {}
            // What is appended comes after all that was there.
            None => return None,
            Some(_) => return Some(index),
        }
    }
    // The end of the list is gone, and there is nothing behind it.
    None
}

/// Whether a part is more than thinking, which is no part of a prefix, and more than blank.
fn is_sent(part: &Part) -> bool {
    !part.is_thinking() && part.as_text().is_none_or(|text| !text.trim().is_empty())
}

fn same_content(one: &Message, other: &Message) -> bool {
    let sent = |message| Message::parts(message).iter().filter(|part| is_sent(part));
    (one.role() == Role::Assistant) == (other.role() == Role::Assistant)
        && (one.role() == Role::System) == (other.role() == Role::System)
        && sent(one).count() == sent(other).count()
        && sent(one).zip(sent(other)).all(|(one, other)| same_part(one, other))
}

/// The same, whatever other fields it has, such as a cache mark.
fn same_part(one: &Part, other: &Part) -> bool {
    match (one, other) {
        (Part::Text(one), Part::Text(other)) => one.text == other.text,
        (Part::ToolCall(one), Part::ToolCall(other)) => {
            (&one.id, &one.name, &one.arguments) == (&other.id, &other.name, &other.arguments)
        }
        (Part::ToolResult(one), Part::ToolResult(other)) => {
            (&one.id, one.is_error) == (&other.id, other.is_error)
                && one.content.len() == other.content.len()
                && one.content.iter().zip(&other.content).all(|(one, other)| same_part(one, other))
        }
        (Part::Media(one), Part::Media(other)) => one.source == other.source,
        _ => one == other,
    }
}

/// The tool loop that the conversation is in: everything behind the user's last message, if the model is to go
/// on from a tool's results. Empty otherwise.
pub fn open_loop(request: &ChatRequest, rules: &TranscriptRules) -> Range<usize> {
    let open = current_loop(&request.messages, rules);
    match (open.first(), open.last()) {
        (Some(first), Some(last)) if !last.is_unanswered(&request.messages) => {
            first.model.start..last.reply.end
        }
        _ => 0..0,
    }
}

/// Whether a provider refuses the thinking in a history: another conversation's, one with a signature that it
/// does not know, or less of a tool loop than it wrote. Without any the same request may pass.
pub fn is_thinking_refused(failure: &Failure) -> bool {
    /// What a classifier's evidence has then.
    const WORDS: [&str; 4] = [
        "bound to a different conversation",
        "invalid `signature`",
        "invalid signature in",
        "`thinking` or `redacted_thinking`",
    ];
    WORDS.iter().any(|words| failure.evidence().contains(words))
}

/// Keeps the thinking for which `keep` is true, given the index of its message; of a tool loop that is
/// open, all or none. As [`unbind`] otherwise.
pub fn keep_thinking(
    request: &mut ChatRequest,
    rules: &TranscriptRules,
    mut keep: impl FnMut(usize, &Part) -> bool,
) -> usize {
    if !rules.signed_thinking {
        return 0;
    }
    let mut draft = Draft::new(request, rules);
    let dropped = drop_where(&mut draft, |message, part| !keep(message, part));
    draft.finish();
    dropped
}

/// Drops the thinking for which `drops` is true, and in an open loop all if any is; how many parts.
fn drop_where(draft: &mut Draft<'_>, mut drops: impl FnMut(usize, &Part) -> bool) -> usize {
    let rules = draft.rules;
    let list = &draft.messages;
    let is_thought = |role: Role, part: &Part| role == Role::Assistant && part.is_thinking();
    let thoughts: Vec<(PartIndex, bool)> = parts(list)
        .filter(|(_, role, part)| is_thought(*role, part))
        .map(|(at, _, part)| (at, drops(at.message, part)))
        .collect();
    let open = current_loop(list, rules);
    let in_loop = |at: PartIndex| open.iter().any(|turn| turn.model.contains(&at.message));
    let drops_open = thoughts.iter().any(|(at, drops)| *drops && in_loop(*at));
    let removed: Vec<PartIndex> = thoughts
        .into_iter()
        .filter(|(at, drops)| *drops || (drops_open && in_loop(*at)))
        .map(|(at, _)| at)
        .collect();
    let mut next = removed.iter().peekable();
    draft.remove_parts(|at, _, _| {
        next.next_if_eq(&&at)
            .map(|_| (TranscriptRule::Thinking, "thinking dropped that is unbound"))
    });
    if withhold_or_return(&draft.messages, rules, draft.params) {
        let what = "thinking turned off for this open tool loop";
        draft.record(TranscriptRule::Thinking, Position::Request, what);
    }
    removed.len()
}
