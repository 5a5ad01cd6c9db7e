//! What a provider accepts as a conversation, and how to repair one that it would refuse.
//!
//! Every layer that edits a history (compaction, guard, resume, failover) calls this module last.
//! [`validate`] reports what a provider would refuse, with the provider's own error messages;
//! [`repair`] makes the request one that it accepts. Both follow [`TranscriptRules`]: plain data,
//! one set a dialect, to be adjusted for a model.
//!
//! ```
//! use steadfast_chat::{
//!     ChatRequest, Message, Part, Role,
//!     transcript::{TranscriptRule, TranscriptRules, repair, validate},
//! };
//! use steadfast_core::Dialect;
//!
//! // The user interrupted the model: its call was never answered.
//! let mut request = ChatRequest::new(vec![
//!     Message::user("list the files"),
//!     Message::new(Role::Assistant, vec![Part::tool_call("call_1", "ls", "{}")]),
//!     Message::user("stop, do something else"),
//! ]);
//! let rules = TranscriptRules::for_dialect(Dialect::OpenAi);
//! let refused = validate(&request, &rules).unwrap_err();
//! assert_eq!(refused[0].rule, TranscriptRule::Answered);
//! assert!(refused[0].message.contains("must be followed by tool messages"));
//!
//! let repairs = repair(&mut request, &rules);
//! assert!(repairs.unrepaired.is_empty());
//! assert_eq!(request.messages.len(), 4, "a failed result is inserted after the call");
//! assert!(validate(&request, &rules).is_ok());
//! ```
//!
//! # What a repair promises
//!
//! * It is **total**: it never panics, however damaged the request.
//! * It is **idempotent**, and leaves what is valid **unchanged**: a valid request keeps its list of
//!   messages, and in a damaged one each message without a fault stays the same
//!   [`Message`](crate::Message), with its wire text. So prompt caches survive. Inserted content is
//!   made from the conversation, never from a clock or a random number: the same damage gets the
//!   same repair in the next turn.
//! * What a person wrote is **never lost**: of the user's turns only blank text and what a provider
//!   can not read (an image) is removed, and an image is replaced by a line of text.
//! * What can not be repaired is in [`Repairs::unrepaired`]: a request too large for its window
//!   ([`TranscriptRule::Size`]), one without any message ([`TranscriptRule::FirstMessage`]), and too
//!   many cache marks in blocks of the dialect's own, which are never edited
//!   ([`TranscriptRule::CacheMarks`]).
//!
//! # Thinking is bound to what came before it
//!
//! The newest accounts of Anthropic refuse thinking behind anything but the exact system prompt, tools and
//! messages that it was made with. No rule here sees that: a transcript is a list, and says nothing of the
//! list that a signature was made over. Who edits a history therefore calls [`unbind`] in the same step, which
//! drops the thinking that the edit has unbound: what is behind the edit and was written before it. A repair
//! does the same for its own edits.
//! Thinking may go from the beginning of a conversation, from its end, or as a whole; each block names the
//! one before it, so that a gap unbinds all that follows. A tool loop that is open keeps all of it or none.
//!
//! # From messages to turns
//!
//! A request's messages are in no dialect. Instructions are messages of
//! [`Role::System`](crate::Role::System) anywhere in the list; a tool's result is a part of a
//! message of role `Tool` or `User`. Encoders split and join: for Anthropic and Gemini neighbours
//! of one role become one turn ([`TranscriptRules::merges`]), for OpenAI each result becomes a
//! message. The rules are therefore about **turns**: the model's messages, then the *reply*, which
//! is everything up to the model's next message. Calls are answered in the reply of their own turn
//! and nowhere else. A `System` message ends a run of the model's messages, and may not come between
//! a call and its results: so a request is valid whether an encoder moves instructions out of the
//! list or not.
//!
//! Left to encoders: the JSON of a call's arguments, which may be cut off; a result's name, where
//! the dialect wants one and the result has none; media inside a tool's result, where the dialect
//! has no room for them; thinking of another dialect; blocks and tools that only another dialect has, which they
//! say in other words or refuse.
//!
//! # The order of repairs
//!
//! 1. server tools' calls and results without the other are removed (S16);
//! 2. parts in a message of the wrong role are removed (S3, S4, S11);
//! 3. images that would be refused are replaced by a line of text (S13);
//! 4. empty text and empty messages are removed (S9);
//! 5. calls and results are paired, turn by turn (S3 to S7);
//! 6. ids and names (S8);
//! 7. thinking (S11);
//! 8. the first and the last message (S1, S10);
//! 9. declarations of tools (S15, S8);
//! 10. cache marks (S12);
//! 11. thinking that comes after what was changed so far, which unbinds it (S11).
//!
//! Each step leaves valid what the steps before it made valid. Each is linear in the length of the
//! history, and a history that is already valid is only read.

mod draft;
mod empties;
mod ends;
mod error_text;
mod ids;
mod images;
mod marks;
mod opaque;
mod outcome;
mod pairs;
mod pixels;
mod positions;
mod rule;
mod rules;
mod size;
mod thinking;
mod tools;
mod turn;
mod unbind;

pub use self::{
    outcome::{Position, Repair, Repairs, TranscriptViolation, Violations},
    rule::TranscriptRule,
    rules::{Blank, Charset, IdRules, ImageRules, TokenCount, TranscriptRules},
    unbind::{is_thinking_refused, keep_thinking, open_loop, unbind, unbind_edited},
};

use self::{draft::Draft, outcome::Findings};
use crate::ChatRequest;

/// Checks what the provider would refuse.
///
/// # Errors
///
/// All that it would refuse, in the order of the rules' families and then of the conversation.
pub fn validate(request: &ChatRequest, rules: &TranscriptRules) -> Result<(), Violations> {
    let found = check(request, rules);
    if found.is_empty() { Ok(()) } else { Err(Violations(found)) }
}

/// Makes the request one that the provider accepts, and reports what was done.
pub fn repair(request: &mut ChatRequest, rules: &TranscriptRules) -> Repairs {
    if check(request, rules).is_empty() {
        return Repairs::default();
    }
    let mut draft = Draft::new(request, rules);
    opaque::repair(&mut draft);
    positions::repair(&mut draft);
    images::repair(&mut draft);
    empties::repair(&mut draft);
    pairs::repair(&mut draft);
    ids::repair(&mut draft);
    thinking::repair(&mut draft);
    ends::repair(&mut draft);
    tools::repair(&mut draft);
    marks::repair(&mut draft);
    unbind::repair(&mut draft);
    let done = draft.finish();
    Repairs { done, unrepaired: check(request, rules) }
}

fn check(request: &ChatRequest, rules: &TranscriptRules) -> Vec<TranscriptViolation> {
    let mut found = Findings::default();
    opaque::check(request, rules, &mut found);
    positions::check(request, rules, &mut found);
    images::check(request, rules, &mut found);
    empties::check(request, rules, &mut found);
    pairs::check(request, rules, &mut found);
    ids::check(request, rules, &mut found);
    thinking::check(request, rules, &mut found);
    ends::check(request, rules, &mut found);
    tools::check(request, rules, &mut found);
    marks::check(request, rules, &mut found);
    size::check(request, rules, &mut found);
    found.0
}
