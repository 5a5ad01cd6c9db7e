//! Which result answers which call.
//!
//! Providers tell calls and results apart by different means: by id (OpenAI, Anthropic), by name
//! and order (Gemini). A conversation that moves from one to the other needs ids that every
//! vendor takes, the same on the call and on its result, and the same each time it is sent, or a
//! prompt cache is lost.

use std::{
    collections::{HashMap, HashSet},
    fmt::Write,
};

use serde_json::value::RawValue;
use steadfast_core::{Dialect, Message, Part};

/// The longest id that every vendor takes.
const MAX_ID: usize = 64;

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

struct Open {
    asked: String,
    known: Known,
}

impl Calls {
    /// Follows the conversation. Ids in messages that were read in `dialect`, whose calls are to be
    /// sent, are kept: its provider made them, and those messages may be sent as they were read.
    pub(crate) fn of(messages: &[Message], dialect: Dialect) -> Self {
        let mut calls = Self::default();
        let mut used = HashSet::new();
        let mut open: Vec<Open> = Vec::new();
        let mut names: HashMap<String, String> = HashMap::new();
        let mut order = 0;
        for (m, message) in messages.iter().enumerate() {
            for (p, part) in message.parts().iter().enumerate() {
                let known = match part {
                    Part::ToolCall(call) => {
                        let own = message.dialect() == Some(dialect);
                        let id = if own && !call.id.is_empty() {
                            call.id.clone()
                        } else {
                            unused(&call.id, order, &used)
                        };
                        used.insert(id.clone());
                        names.insert(call.id.clone(), call.name.clone());
                        let known = Known { id, name: call.name.clone(), order };
                        order += 1;
                        open.push(Open { asked: call.id.clone(), known: known.clone() });
                        known
                    }
                    Part::ToolResult(result) => {
                        let by_id = |open: &Open| open.asked == result.id;
                        let by_name = |open: &Open| {
                            result.name.as_ref().is_some_and(|name| *name == open.known.name)
                        };
                        let found = if result.id.is_empty() {
                            open.iter().position(by_name).or(if open.is_empty() {
                                None
                            } else {
                                Some(0)
                            })
                        } else {
                            open.iter().position(by_id)
                        };
                        match found {
                            Some(at) => open.remove(at).known,
                            // An orphan, or a second answer: left for the provider to refuse.
                            None => Known {
                                id: sanitised(&result.id)
                                    .unwrap_or_else(|| format!("call_{order}")),
                                name: result
                                    .name
                                    .clone()
                                    .or_else(|| names.get(&result.id).cloned())
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

/// An id for the call number `order` that every vendor takes and no other call has.
fn unused(asked: &str, order: usize, used: &HashSet<String>) -> String {
    let mut id = sanitised(asked).unwrap_or_else(|| format!("call_{order}"));
    let mut again = 2;
    while used.contains(&id) {
        let suffix = format!("_{again}");
        let base = sanitised(asked).unwrap_or_else(|| format!("call_{order}"));
        id = format!("{}{suffix}", &base[..base.len().min(MAX_ID - suffix.len())]);
        again += 1;
    }
    id
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
    let _ = write!(out, "_{:016x}", digest([id]));
    Some(out)
}

/// The arguments as an object, in their own text: `None` when they are none.
pub(crate) fn arguments(text: &str) -> Option<&str> {
    let text = text.trim();
    if text.is_empty() {
        return Some("{}");
    }
    let raw: &RawValue = serde_json::from_str(text).ok()?;
    raw.get().starts_with('{').then_some(raw.get())
}

/// An id for call number `order` of an answer whose provider gave it none.
pub(crate) fn made_up(answer: &str, name: &str, order: usize) -> String {
    format!("call_{:016x}", digest([answer, name, &order.to_string()]))
}

/// FNV-1a over `pieces`: the same on every machine and in every version, as ids have to be.
fn digest<'a>(pieces: impl IntoIterator<Item = &'a str>) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for piece in pieces {
        for byte in piece.bytes().chain([0xff]) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    hash
}

#[cfg(test)]
mod tests {
    use steadfast_core::{Role, ToolResult};

    use super::*;

    fn gemini_result(name: &str) -> Part {
        Part::ToolResult(ToolResult { name: Some(name.into()), ..ToolResult::default() })
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
    fn ids_are_made_fit_on_both_sides_alike_and_stay_apart() {
        let long = "x".repeat(100);
        let messages = [
            Message::new(
                Role::Assistant,
                vec![
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
        ];
        let calls = Calls::of(&messages, Dialect::OpenAi);
        let id = |m, p| calls.get(m, p).unwrap().id.clone();
        assert_eq!(id(0, 0), id(2, 0));
        assert_eq!(id(0, 1), id(1, 0));
        assert_eq!(id(0, 2), id(3, 0));
        assert_eq!((id(0, 3).as_str(), id(4, 0).as_str()), ("ok-1_2", "ok-1_2"));
        assert_ne!(id(0, 0), id(0, 1));
        for p in 0..4 {
            let id = id(0, p);
            assert!(
                id.len() <= 64
                    && id.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b)),
                "{id}"
            );
        }
        assert_eq!(calls.get(1, 0).unwrap().name, "g", "the name comes from the call");
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
