//! Random damage to a conversation.

use proptest::prelude::*;
use serde_json::json;
use steadfast_chat::{
    ChatRequest, Message, Part, Role, Text, Thinking, ThinkingConfig, ToolCall, ToolResult,
};
use steadfast_core::Dialect;

use crate::support::{mark, opaque};

#[derive(Clone, Debug)]
pub(super) enum Damage {
    Drop(usize),
    Repeat(usize),
    Swap(usize, usize),
    Truncate(usize),
    DropFront(usize),
    Split(usize, usize),
    Join(usize),
    Clear(usize),
    DropPart(usize, usize),
    RepeatPart(usize, usize),
    MovePart(usize, usize, usize),
    Blank(usize, usize),
    Id(usize, usize, u8),
    Name(usize, usize, u8),
    Role(usize, u8),
    Foreign(usize, usize),
    Insert(usize, usize, u8),
    Unsign(usize, usize),
    Mark(usize, usize, bool),
    NoTools,
    Thinking(bool),
}

/// Damage to the order and number of messages and parts alone.
pub(super) fn shuffling() -> impl Strategy<Value = Damage> {
    let at = 0..40_usize;
    prop_oneof![
        at.clone().prop_map(Damage::Drop),
        at.clone().prop_map(Damage::Repeat),
        (at.clone(), at.clone()).prop_map(|(a, b)| Damage::Swap(a, b)),
        at.clone().prop_map(Damage::Truncate),
        at.clone().prop_map(Damage::DropFront),
        (at.clone(), 0..4_usize).prop_map(|(a, b)| Damage::Split(a, b)),
        at.clone().prop_map(Damage::Join),
        (at.clone(), 0..5_usize).prop_map(|(a, b)| Damage::DropPart(a, b)),
        (at, 0..5_usize).prop_map(|(a, b)| Damage::RepeatPart(a, b)),
    ]
}

pub(super) fn damage() -> impl Strategy<Value = Damage> {
    let at = 0..40_usize;
    let part = 0..5_usize;
    let index = (at.clone(), part.clone());
    prop_oneof![
        9 => shuffling(),
        1 => at.clone().prop_map(Damage::Clear),
        1 => (at.clone(), part, at.clone()).prop_map(|(a, b, c)| Damage::MovePart(a, b, c)),
        1 => index.clone().prop_map(|(a, b)| Damage::Blank(a, b)),
        2 => (index.clone(), 0..6_u8).prop_map(|((a, b), c)| Damage::Id(a, b, c)),
        1 => (index.clone(), 0..4_u8).prop_map(|((a, b), c)| Damage::Name(a, b, c)),
        1 => (at, 0..4_u8).prop_map(|(a, b)| Damage::Role(a, b)),
        1 => index.clone().prop_map(|(a, b)| Damage::Foreign(a, b)),
        2 => (index.clone(), 0..7_u8).prop_map(|((a, b), c)| Damage::Insert(a, b, c)),
        1 => index.clone().prop_map(|(a, b)| Damage::Unsign(a, b)),
        1 => (index, any::<bool>()).prop_map(|((a, b), c)| Damage::Mark(a, b, c)),
        1 => Just(Damage::NoTools),
        1 => any::<bool>().prop_map(Damage::Thinking),
    ]
}

/// A block of another dialect.
fn unknown(dialect: Dialect) -> Part {
    let other = if dialect == Dialect::Gemini { Dialect::OpenAi } else { Dialect::Gemini };
    opaque(other, "strange", &json!({}))
}

/// A part that may be invalid where it is inserted.
fn inserted(dialect: Dialect, kind: u8) -> Part {
    match kind {
        0 => Part::tool_call("stray", "read", "{}"),
        1 => Part::tool_result("stray", "x"),
        2 => {
            Part::Thinking(Thinking { text: "hm".into(), signature: Some("s".into()), extra: None })
        }
        3 => Part::image("image/bmp", "AAAA"),
        4 => opaque(dialect, "server_tool_use", &json!({"id": "srv"})),
        5 => opaque(dialect, "web_search_tool_result", &json!({"tool_use_id": "srv"})),
        _ => Part::ToolResult(ToolResult {
            id: "call_1".into(),
            content: vec![Part::text(""), unknown(dialect), Part::tool_call("in", "side", "")],
            ..ToolResult::default()
        }),
    }
}

pub(super) fn apply(request: &mut ChatRequest, dialect: Dialect, damage: &Damage) {
    let list = request.messages.make_mut();
    let len = list.len();
    if len == 0 {
        return;
    }
    match *damage {
        Damage::Drop(at) => drop(list.remove(at % len)),
        Damage::Repeat(at) => list.insert(at % len, list[at % len].clone()),
        Damage::Swap(a, b) => list.swap(a % len, b % len),
        Damage::Truncate(at) => list.truncate(at % len),
        Damage::DropFront(at) => drop(list.drain(..at % len)),
        Damage::Split(at, part) => {
            let mut rest = list[at % len].clone();
            let parts = list[at % len].parts().len();
            *rest.parts_mut() = list[at % len].parts_mut().split_off(part.min(parts));
            list.insert(at % len + 1, rest);
        }
        Damage::Join(at) => {
            if at % len + 1 < len {
                let next = list.remove(at % len + 1);
                list[at % len].parts_mut().extend_from_slice(next.parts());
            }
        }
        Damage::Clear(at) => list[at % len].parts_mut().clear(),
        Damage::Role(at, role) => {
            let roles = [Role::System, Role::User, Role::Assistant, Role::Tool];
            list[at % len].set_role(roles[usize::from(role)]);
        }
        Damage::MovePart(at, part, to) => {
            let parts = list[at % len].parts_mut();
            if !parts.is_empty() {
                let part = parts.remove(part % parts.len());
                list[to % len].parts_mut().push(part);
            }
        }
        Damage::Foreign(at, part) => insert(&mut list[at % len], part, unknown(dialect)),
        Damage::Insert(at, part, kind) => {
            insert(&mut list[at % len], part, inserted(dialect, kind));
        }
        Damage::NoTools => request.tools = Vec::new().into(),
        Damage::Thinking(on) => {
            request.params.thinking = on.then_some(ThinkingConfig::Budget(1_024));
        }
        Damage::DropPart(at, _)
        | Damage::RepeatPart(at, _)
        | Damage::Blank(at, _)
        | Damage::Id(at, ..)
        | Damage::Name(at, ..)
        | Damage::Unsign(at, _)
        | Damage::Mark(at, ..) => apply_to_part(&mut list[at % len], damage),
    }
}

fn insert(message: &mut Message, at: usize, part: Part) {
    let parts = message.parts_mut();
    parts.insert(at % (parts.len() + 1), part);
}

fn apply_to_part(message: &mut Message, damage: &Damage) {
    let parts = message.parts_mut();
    let len = parts.len();
    if len == 0 {
        return;
    }
    match *damage {
        Damage::DropPart(_, part) => drop(parts.remove(part % len)),
        Damage::RepeatPart(_, part) => parts.insert(part % len, parts[part % len].clone()),
        Damage::Blank(_, part) => {
            let blank = Part::text(if part % 2 == 0 { "" } else { " \n" });
            match &mut parts[part % len] {
                Part::ToolResult(result) => result.content = vec![blank],
                text @ Part::Text(_) => *text = blank,
                _ => {}
            }
        }
        Damage::Id(_, part, kind) => {
            let long = "x".repeat(70);
            let id = ["", "call_1", "call_2", "a.b", "stray", &long][usize::from(kind)];
            match &mut parts[part % len] {
                Part::ToolCall(call) => id.clone_into(&mut call.id),
                Part::ToolResult(result) => id.clone_into(&mut result.id),
                _ => {}
            }
        }
        Damage::Name(_, part, kind) => {
            let name = ["", "no such tool", "read", "functions.read"][usize::from(kind)];
            match &mut parts[part % len] {
                Part::ToolCall(call) => name.clone_into(&mut call.name),
                Part::ToolResult(result) => result.name = Some(name.to_owned()),
                _ => {}
            }
        }
        Damage::Unsign(_, part) => match &mut parts[part % len] {
            Part::Thinking(thinking) => thinking.signature = None,
            Part::ToolCall(call) => call.signature = None,
            _ => {}
        },
        Damage::Mark(_, part, is_long) => match &mut parts[part % len] {
            Part::Text(Text { extra, .. })
            | Part::Thinking(Thinking { extra, .. })
            | Part::ToolCall(ToolCall { extra, .. })
            | Part::ToolResult(ToolResult { extra, .. }) => {
                *extra = mark(Some(if is_long { "1h" } else { "5m" }));
            }
            _ => {}
        },
        _ => unreachable!("damage to a whole message"),
    }
}
