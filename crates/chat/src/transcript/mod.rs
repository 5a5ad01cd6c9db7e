//! What a provider accepts as a conversation, and how to mend one that it would refuse.
//!
//! Every layer that edits a history (compaction, guard, resume, failover) ends by asking this
//! module. [`validate`] says what a provider would refuse, in the provider's own words; [`repair`]
//! makes the request one that it accepts. Both follow [`Rules`]: plain data, one set a dialect, to
//! be adjusted for a model.
//!
//! ```
//! use steadfast_chat::{ChatRequest, Message, Part, Role, transcript::{Rule, Rules, repair, validate}};
//! use steadfast_core::Dialect;
//!
//! // The user interrupted the model: its call was never answered.
//! let mut request = ChatRequest::new(vec![
//!     Message::user("list the files"),
//!     Message::new(Role::Assistant, vec![Part::tool_call("call_1", "ls", "{}")]),
//!     Message::user("stop, do something else"),
//! ]);
//! let rules = Rules::for_dialect(Dialect::OpenAi);
//! let refused = validate(&request, &rules).unwrap_err();
//! assert_eq!(refused[0].rule, Rule::Answered);
//! assert!(refused[0].message.contains("must be followed by tool messages"));
//!
//! let repairs = repair(&mut request, &rules);
//! assert!(repairs.unrepaired.is_empty());
//! assert_eq!(request.messages.len(), 4, "a failed result stands between call and user");
//! assert!(validate(&request, &rules).is_ok());
//! ```
//!
//! # What a repair promises
//!
//! * It is **total**: any request, however damaged, comes out; nothing panics.
//! * It is **idempotent**, and leaves what is valid **untouched**: a valid request keeps its very
//!   list of messages, and in a damaged one each message that is not at fault stays the same
//!   [`Message`](crate::Message), with its wire text. So prompt caches survive. What is put in is
//!   made from what is there, never from a clock or a random number: the same damage is mended
//!   the same way in the next turn.
//! * What a person wrote is **never lost**: of the user's turns only blank text and what a provider
//!   can not read (an image, a foreign block) goes, and something stands in an image's place.
//! * What editing can not mend comes back in [`Repairs::unrepaired`]: a request too large for its
//!   window ([`Rule::Size`]), and one without any message ([`Rule::FirstMessage`]).
//!
//! # From messages to turns
//!
//! A request's messages are in no dialect. Instructions are messages of
//! [`Role::System`](crate::Role::System) anywhere in the list; a tool's result is a part of a
//! message of role `Tool` or `User`. Encoders split and join: for Anthropic and Gemini neighbours
//! of one role become one turn ([`Rules::merges`]), for OpenAI each result becomes a message of its
//! own. The rules therefore speak of **turns**: the model's messages, then the *reply*, which is
//! everything up to the model's next message. Calls are answered in the reply of their own turn and
//! nowhere else. A `System` message ends a run of the model's messages, and may not stand between a
//! call and its results: so a request holds whether an encoder lifts instructions out of the list
//! or leaves them where they are.
//!
//! Left to encoders: the JSON of a call's arguments, which may be cut off; a result's name, where
//! the dialect wants one and the result has none; media inside a tool's result, where the dialect
//! has no room for them; thinking of another dialect.
//!
//! # The order of repairs
//!
//! 1. foreign blocks and tools, and halves of a server tool's pair, go (S16);
//! 2. parts in a message of the wrong role go (S3, S4, S11);
//! 3. images that would be refused become a line of text (S13);
//! 4. empty text and empty messages go (S9);
//! 5. calls and results are paired, turn by turn (S3 to S7);
//! 6. ids and names (S8);
//! 7. thinking (S11);
//! 8. the first and the last message (S1, S10);
//! 9. declarations of tools (S15, S8);
//! 10. cache marks (S12).
//!
//! Each step leaves valid what the steps before it made valid. One pass over the messages each: the
//! work grows with the length of the history, and a history that is already valid is only read.

mod draft;
mod empties;
mod ends;
mod ids;
mod images;
mod marks;
mod opaque;
mod outcome;
mod pairs;
mod pixels;
mod places;
mod rule;
mod rules;
mod size;
mod thinking;
mod tools;
mod turn;
mod words;

pub use self::{
    outcome::{Place, Repair, Repairs, Violation, Violations},
    rule::Rule,
    rules::{Blank, Charset, IdRules, ImageRules, Rules, TokenCount},
};

use self::{draft::Draft, outcome::Findings};
use crate::ChatRequest;

/// Says what the provider would refuse.
///
/// # Errors
///
/// All that it would refuse, in the order of the rules' families and then of the conversation.
pub fn validate(request: &ChatRequest, rules: &Rules) -> Result<(), Violations> {
    let found = check(request, rules);
    if found.is_empty() { Ok(()) } else { Err(Violations(found)) }
}

/// Makes the request one that the provider accepts, and says what was done.
pub fn repair(request: &mut ChatRequest, rules: &Rules) -> Repairs {
    if check(request, rules).is_empty() {
        return Repairs::default();
    }
    let mut draft = Draft::new(request, rules);
    opaque::mend(&mut draft);
    places::mend(&mut draft);
    images::mend(&mut draft);
    empties::mend(&mut draft);
    pairs::mend(&mut draft);
    ids::mend(&mut draft);
    thinking::mend(&mut draft);
    ends::mend(&mut draft);
    tools::mend(&mut draft);
    marks::mend(&mut draft);
    let done = draft.finish();
    Repairs { done, unrepaired: check(request, rules) }
}

fn check(request: &ChatRequest, rules: &Rules) -> Vec<Violation> {
    let mut found = Findings::default();
    opaque::check(request, rules, &mut found);
    places::check(request, rules, &mut found);
    images::check(request, rules, &mut found);
    empties::check(request, rules, &mut found);
    pairs::check(request, rules, &mut found);
    ids::check(request, rules, &mut found);
    thinking::check(request, rules, &mut found);
    ends::check(request, rules, &mut found);
    tools::check(request, rules, &mut found);
    marks::check(request, rules, &mut found);
    size::check(request, rules, &mut found);
    found.into_vec()
}
