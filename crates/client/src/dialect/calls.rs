//! Which result answers which call.
//!
//! Providers identify calls and results by different means: by id (OpenAI, Anthropic), by name
//! and order (Gemini). A conversation that moves from one to the other needs ids that every
//! vendor takes, the same on the call and on its result, and the same each time it is sent, or a
//! prompt cache is lost.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet, VecDeque},
    fmt::Write,
};

use serde_json::value::RawValue;
use steadfast_chat::{Message, Part, surrogates::repaired};
use steadfast_core::Dialect;

use crate::json::Object;

/// The longest id that every vendor takes, in bytes: 40, where OpenAI's older chat models stop. The
/// others take 64.
const MAX_ID: usize = 40;

/// The calls and results of one conversation.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    known: HashMap<(usize, usize), Known>,
}

/// One call or result.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    /// The id to send.
    pub(crate) id: String,
    /// The tool.
    pub(crate) name: String,
    /// The number of the call in the conversation.
    pub(crate) order: usize,
}

/// The calls that wait for their results, found by id, by name, or by age, each in the same time
/// however many there are: a conversation may come from anybody.
#[derive(Default)]
struct Open<'a> {
    /// In the order of the calls; `None` once answered.
    calls: Vec<Option<Known>>,
    by_id: HashMap<&'a str, VecDeque<usize>>,
    by_name: HashMap<&'a str, VecDeque<usize>>,
    /// All before this one are answered.
    oldest: usize,
}

impl<'a> Open<'a> {
    fn push(&mut self, id: &'a str, name: &'a str, known: Known) {
        let at = self.calls.len();
        self.calls.push(Some(known));
        self.by_id.entry(id).or_default().push_back(at);
        self.by_name.entry(name).or_default().push_back(at);
    }

    /// The first call with this id.
    fn take_id(&mut self, id: &str) -> Option<Known> {
        first(self.by_id.get_mut(id)?, &mut self.calls)
    }

    /// The first call of this tool, else the first of all.
    fn take_name(&mut self, name: Option<&str>) -> Option<Known> {
        let named = name.and_then(|name| self.by_name.get_mut(name));
        if let Some(known) = named.and_then(|calls| first(calls, &mut self.calls)) {
            return Some(known);
        }
        while let Some(call) = self.calls.get_mut(self.oldest) {
            self.oldest += 1;
            if let Some(known) = call.take() {
                return Some(known);
            }
        }
        None
    }
}

/// Takes the first of `queue` that is not answered.
fn first(queue: &mut VecDeque<usize>, calls: &mut [Option<Known>]) -> Option<Known> {
    while let Some(at) = queue.pop_front() {
        if let Some(known) = calls.get_mut(at).and_then(Option::take) {
            return Some(known);
        }
    }
    None
}

impl Calls {
    /// Follows the conversation. Ids in messages that were read in `dialect`, whose calls are to be
    /// sent, are kept: its provider made them, and those messages may be sent as they were read.
    pub(crate) fn of(messages: &[Message], dialect: Dialect) -> Self {
        let mut calls = Self::default();
        let mut used = Used::default();
        let mut open = Open::default();
        let mut names: HashMap<&str, &str> = HashMap::new();
        let mut order = 0;
        for (m, message) in messages.iter().enumerate() {
            for (p, part) in message.parts().iter().enumerate() {
                let known = match part {
                    Part::ToolCall(call) => {
                        let own = message.dialect() == Some(dialect);
                        let id = if own && !call.id.is_empty() {
                            call.id.clone()
                        } else {
                            used.unused(&call.id, order)
                        };
                        used.ids.insert(id.clone());
                        names.insert(&call.id, &call.name);
                        let known = Known { id, name: call.name.clone(), order };
                        order += 1;
                        open.push(&call.id, &call.name, known.clone());
                        known
                    }
                    Part::ToolResult(result) => {
                        let found = if result.id.is_empty() {
                            open.take_name(result.name.as_deref())
                        } else {
                            open.take_id(&result.id)
                        };
                        match found {
                            Some(known) => known,
                            // An orphan, or a second answer: left for the provider to refuse.
                            None => Known {
                                id: sanitised(&result.id)
                                    .unwrap_or_else(|| format!("call_{order}")),
                                name: result
                                    .name
                                    .clone()
                                    .or_else(|| Some((*names.get(&*result.id)?).to_owned()))
                                    .unwrap_or_else(|| "unknown".to_owned()),
                                order,
                            },
                        }
                    }
                    _ => continue,
                };
                calls.known.insert((m, p), known);
            }
        }
        calls
    }

    /// The call or result that is part `part` of message `message`.
    pub(crate) fn get(&self, message: usize, part: usize) -> Option<&Known> {
        self.known.get(&(message, part))
    }
}

/// The ids that calls have.
#[derive(Default)]
struct Used {
    ids: HashSet<String>,
    /// The last number that was added to an id to make it another.
    again: HashMap<String, usize>,
}

impl Used {
    /// An id for the call number `order` that every vendor takes and no other call has.
    fn unused(&mut self, asked: &str, order: usize) -> String {
        let base = sanitised(asked).unwrap_or_else(|| format!("call_{order}"));
        if !self.ids.contains(&base) {
            return base;
        }
        let again = self.again.entry(base.clone()).or_insert(1);
        loop {
            *again += 1;
            let suffix = format!("_{again}");
            let id = format!("{}{suffix}", &base[..base.len().min(MAX_ID - suffix.len())]);
            if !self.ids.contains(&id) {
                return id;
            }
        }
    }
}

/// `id` in the characters and the length that every vendor takes; `None` when it is empty. An id
/// that had to be changed ends in a digest of what it was, so that two do not become one.
fn sanitised(id: &str) -> Option<String> {
    if id.is_empty() {
        return None;
    }
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    if id.len() <= MAX_ID && id.chars().all(fits) {
        return Some(id.to_owned());
    }
    let mut out: String =
        id.chars().map(|c| if fits(c) { c } else { '_' }).take(MAX_ID - 17).collect();
    let _ = write!(out, "_{:016x}", digest(id));
    Some(out)
}

/// The field that has the arguments that are no object, as text.
const RAW: &str = "_raw";

/// The arguments as the object that every dialect but OpenAI's needs, in their own text. What a model
/// wrote that is none is the text in one: neither the caller nor a later request is to fail for it.
pub(crate) fn arguments(text: &str) -> Cow<'_, str> {
    if text.trim().is_empty() {
        return Cow::Borrowed("{}");
    }
    let wrapped = || {
        Object::text(|object| {
            object.put(RAW, &*repaired(text));
        })
    };
    object(text).unwrap_or_else(|| Cow::Owned(wrapped()))
}

/// `text` when it is one JSON object, without halves of surrogate pairs.
pub(crate) fn object(text: &str) -> Option<Cow<'_, str>> {
    let raw: &RawValue = serde_json::from_str(text).ok()?;
    raw.get().starts_with('{').then(|| repaired(raw.get()))
}

/// Ids for the calls of one answer whose provider gives them none. No other answer has them: agents take a
/// call whose id they have seen for the one before, and ask again and again.
#[derive(Debug, Default)]
pub(crate) struct CallIds(u64);

impl CallIds {
    /// For the calls of the answer that its provider calls `id`; without one too no two are alike.
    pub(crate) fn of(id: Option<&str>) -> Self {
        let known = id.filter(|id| !id.is_empty()).map(digest);
        Self(known.unwrap_or_else(|| fastrand::u64(..)))
    }

    /// The id of call number `order`.
    pub(crate) fn make(&self, order: usize) -> String {
        format!("call_{:016x}", self.0.wrapping_add(order as u64))
    }
}

/// FNV-1a: the same on every machine and in every version, as ids have to be.
fn digest(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use steadfast_chat::{Role, ToolResult};

    use super::*;

    fn gemini_result(name: &str) -> Part {
        Part::ToolResult(ToolResult { name: Some(name.into()), ..ToolResult::default() })
    }

    #[test]
    fn arguments_are_an_object_whatever_the_model_wrote() {
        for (text, wanted) in [
            ("", "{}"),
            (" \n", "{}"),
            (" {\"a\": 1.50} ", "{\"a\": 1.50}"),
            (r#"{"a":"\ud83d"}"#, r#"{"a":"\ufffd"}"#),
            ("{\"x\":", r#"{"_raw":"{\"x\":"}"#),
            ("[1]", r#"{"_raw":"[1]"}"#),
            ("null", r#"{"_raw":"null"}"#),
            ("{}{}", r#"{"_raw":"{}{}"}"#),
            ("ls -l", r#"{"_raw":"ls -l"}"#),
        ] {
            assert_eq!(arguments(text), wanted, "{text}");
        }
    }

    #[test]
    fn no_two_answers_have_the_same_ids() {
        let ids = [None, None, Some(""), Some("a"), Some("b")].map(CallIds::of);
        let ids: HashSet<_> = ids.iter().flat_map(|ids| (0..3).map(|n| ids.make(n))).collect();
        assert_eq!(ids.len(), 15);
        assert_eq!(CallIds::of(Some("a")).make(1), CallIds::of(Some("a")).make(1), "read again");
    }

    #[test]
    fn calls_without_ids_get_the_same_ones_each_time() {
        let messages = [
            Message::new(
                Role::Assistant,
                vec![Part::tool_call("", "a", "{}"), Part::tool_call("", "b", "{}")],
            ),
            Message::new(Role::User, vec![gemini_result("b"), gemini_result("a")]),
            Message::new(Role::Assistant, vec![Part::tool_call("", "a", "{}")]),
            Message::new(Role::User, vec![gemini_result("a")]),
        ];
        let calls = Calls::of(&messages, Dialect::OpenAi);
        let id = |m, p| calls.get(m, p).unwrap().id.as_str();
        assert_eq!([id(0, 0), id(0, 1), id(2, 0)], ["call_0", "call_1", "call_2"]);
        assert_eq!([id(1, 0), id(1, 1), id(3, 0)], ["call_1", "call_0", "call_2"]);
        assert_eq!(calls.get(1, 0).unwrap().order, 1);
    }

    #[test]
    fn ids_are_repaired_alike_on_both_sides_and_remain_distinct() {
        let long = "x".repeat(100);
        // Found by fuzzing: what is added to it makes it too long for OpenAI.
        let odd = format!("toolu{}_1", "]".repeat(26));
        let messages = [
            Message::new(
                Role::Assistant,
                vec![
                    Part::tool_call(odd.clone(), "f", "{}"),
                    Part::tool_call("a:b", "f", "{}"),
                    Part::tool_call("a.b", "g", "{}"),
                    Part::tool_call(long.clone(), "h", "{}"),
                    Part::tool_call("ok-1_2", "i", "{}"),
                ],
            ),
            Message::tool("a.b", "1"),
            Message::tool("a:b", "2"),
            Message::tool(long, "3"),
            Message::tool("ok-1_2", "4"),
            Message::tool(odd, "5"),
        ];
        let calls = Calls::of(&messages, Dialect::OpenAi);
        let id = |m, p| calls.get(m, p).unwrap().id.clone();
        assert_eq!(id(0, 0), id(5, 0));
        assert_eq!(id(0, 1), id(2, 0));
        assert_eq!(id(0, 2), id(1, 0));
        assert_eq!(id(0, 3), id(3, 0));
        assert_eq!((id(0, 4).as_str(), id(4, 0).as_str()), ("ok-1_2", "ok-1_2"));
        assert_ne!(id(0, 1), id(0, 2));
        for p in 0..5 {
            let id = id(0, p);
            assert!(
                id.len() <= 40
                    && id.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b)),
                "{id}"
            );
        }
        assert_eq!(calls.get(1, 0).unwrap().name, "g", "the name comes from the call");
    }

    #[test]
    fn as_many_calls_as_fit_into_a_request_are_distinguished_at_once() {
        // One by one each of these would be compared with each: tens of minutes.
        const MANY: usize = 50_000;
        for same in [false, true] {
            let id = |n: usize| if same { "c".to_owned() } else { format!("c{n}") };
            let messages = [
                Message::new(
                    Role::Assistant,
                    (0..MANY).map(|n| Part::tool_call(id(n), "f", "{}")).collect(),
                ),
                Message::new(
                    Role::User,
                    (0..MANY)
                        .rev()
                        .map(|n| {
                            Part::ToolResult(ToolResult { id: id(n), ..ToolResult::default() })
                        })
                        .collect(),
                ),
            ];
            let calls = Calls::of(&messages, Dialect::OpenAi);
            let ids: HashSet<_> = (0..MANY).map(|p| &calls.get(0, p).unwrap().id).collect();
            assert_eq!(ids.len(), MANY);
            let answered = calls.get(1, 0).unwrap();
            assert_eq!(answered.order, if same { 0 } else { MANY - 1 });
        }
    }

    #[test]
    fn the_same_id_twice_becomes_two() {
        let turn = |text: &str| {
            [
                Message::new(Role::Assistant, vec![Part::tool_call("c", "f", "{}")]),
                Message::tool("c", text),
            ]
        };
        let messages = [turn("1"), turn("2")].concat();
        let calls = Calls::of(&messages, Dialect::OpenAi);
        let ids: Vec<_> = (0..4).map(|m| calls.get(m, 0).unwrap().id.as_str()).collect();
        assert_eq!(ids, ["c", "c", "c_2", "c_2"]);
    }
}
