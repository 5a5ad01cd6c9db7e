//! S12: cache marks.

use serde::{Deserialize, de::IgnoredAny};
use serde_json::Value;

use super::{
    Position, TranscriptRule, TranscriptRules,
    draft::Draft,
    error_text,
    outcome::Findings,
    turn::{HasMessage, PartPath, nested_parts},
};
use crate::{ChatRequest, Extra, Part, Role, Tool};

/// The field that marks a part.
const MARK: &str = "cache_control";

/// A cache mark, and where it is.
#[derive(Clone, Copy)]
struct Mark {
    at: MarkedAt,
    on: MarkedKind,
    /// Lives an hour instead of five minutes.
    is_long: bool,
}

#[derive(Clone, Copy)]
enum MarkedAt {
    Tool(usize),
    Part(PartPath),
}

/// What a mark is on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MarkedKind {
    Block,
    Thinking,
    EmptyText,
    /// A block that is not edited.
    Opaque,
}

impl From<MarkedAt> for Position {
    fn from(at: MarkedAt) -> Self {
        match at {
            MarkedAt::Tool(tool) => Position::Tool(tool),
            MarkedAt::Part(path) => path.at.into(),
        }
    }
}

/// All marks, in the order in which the provider reads them: tools, instructions, conversation.
fn marks<H: HasMessage>(tools: &[Tool], list: &[H]) -> Vec<Mark> {
    let on_tool = |(index, tool): (usize, &Tool)| match tool {
        Tool::Function { extra, .. } => read(extra, MarkedAt::Tool(index), MarkedKind::Block),
        Tool::Opaque(opaque) => read_raw(opaque.json.get(), MarkedAt::Tool(index)),
    };
    let on_parts = |is_system| {
        nested_parts(list)
            .filter(move |(_, role, _)| (*role == Role::System) == is_system)
            .filter_map(|(path, _, part)| mark(part, MarkedAt::Part(path)))
    };
    let on_tools = tools.iter().enumerate().filter_map(on_tool);
    on_tools.chain(on_parts(true)).chain(on_parts(false)).collect()
}

fn mark(part: &Part, at: MarkedAt) -> Option<Mark> {
    match part {
        Part::Text(text) if text.text.is_empty() => read(&text.extra, at, MarkedKind::EmptyText),
        Part::Text(text) => read(&text.extra, at, MarkedKind::Block),
        Part::Thinking(thinking) => read(&thinking.extra, at, MarkedKind::Thinking),
        Part::Media(media) => read(&media.extra, at, MarkedKind::Block),
        Part::ToolCall(call) => read(&call.extra, at, MarkedKind::Block),
        Part::ToolResult(result) => read(&result.extra, at, MarkedKind::Block),
        Part::Opaque(opaque) => read_raw(opaque.json.get(), at),
        Part::Redacted { .. } => None,
    }
}

fn read(extra: &Extra, at: MarkedAt, on: MarkedKind) -> Option<Mark> {
    let mark = extra.as_ref()?.get(MARK).filter(|mark| !mark.is_null())?;
    Some(Mark { at, on, is_long: mark.get("ttl").is_some_and(|ttl| ttl == "1h") })
}

/// A mark in a block that is kept as text: only whether there is one.
fn read_raw(json: &str, at: MarkedAt) -> Option<Mark> {
    #[derive(Deserialize)]
    struct Marked {
        #[serde(rename = "cache_control")]
        mark: Option<IgnoredAny>,
    }
    let is_marked = json.contains(MARK)
        && serde_json::from_str(json).is_ok_and(|Marked { mark }| mark.is_some());
    is_marked.then_some(Mark { at, on: MarkedKind::Opaque, is_long: false })
}

pub(super) fn check(request: &ChatRequest, rules: &TranscriptRules, found: &mut Findings) {
    let Some(max) = rules.cache_marks else { return };
    let marks = marks(&request.tools, &request.messages);
    let mut short = false;
    for mark in &marks {
        let path = || match mark.at {
            MarkedAt::Tool(tool) => format!("tools.{tool}"),
            MarkedAt::Part(path) => error_text::part(rules.dialect, path.at),
        };
        let text = match mark.on {
            MarkedKind::Thinking => error_text::marked_thinking(&path()),
            MarkedKind::EmptyText => error_text::marked_empty(&path()),
            MarkedKind::Block if mark.is_long && short => error_text::mark_order(&path()),
            on => {
                short |= on == MarkedKind::Block && !mark.is_long;
                continue;
            }
        };
        found.push(TranscriptRule::CacheMarks, mark.at, text);
    }
    let is_counted = |mark: &&Mark| matches!(mark.on, MarkedKind::Block | MarkedKind::Opaque);
    let count = marks.iter().filter(is_counted).count();
    if count > max {
        let text = error_text::mark_count(max, count);
        found.push(TranscriptRule::CacheMarks, Position::Request, text);
    }
}

pub(super) fn repair(draft: &mut Draft<'_>) {
    let Some(max) = draft.rules.cache_marks else { return };
    let marks = marks(draft.tools, &draft.messages);
    let fixed = marks.iter().filter(|mark| mark.on == MarkedKind::Opaque).count();
    let blocks: Vec<&Mark> = marks.iter().filter(|mark| mark.on == MarkedKind::Block).collect();
    for mark in &marks {
        if matches!(mark.on, MarkedKind::Thinking | MarkedKind::EmptyText) {
            edit(draft, mark.at, Option::take, "mark dropped from a block that can not have one");
        }
    }
    // The first mark covers what never changes, the last ones what grows.
    let room = max.saturating_sub(fixed);
    let kept_last = room.saturating_sub(1);
    let first_of_last = blocks.len().saturating_sub(kept_last);
    let mut short = false;
    for (index, mark) in blocks.iter().enumerate() {
        let is_over = blocks.len() > room;
        let stays = !is_over || index >= first_of_last || (index == 0 && room > 0);
        if !stays {
            edit(draft, mark.at, Option::take, "mark beyond the limit dropped");
        } else if mark.is_long && short {
            edit(draft, mark.at, shorten, "mark given the shorter life of those before it");
        } else {
            short |= !mark.is_long;
        }
    }
}

/// Gives a mark the default lifetime.
fn shorten(mark: &mut Option<Value>) -> Option<Value> {
    mark.as_mut()?.as_object_mut()?.remove("ttl")
}

/// Takes a mark out of its fields, lets `change` edit it, and puts back what is left.
fn edit<T>(
    draft: &mut Draft<'_>,
    at: MarkedAt,
    change: impl Fn(&mut Option<Value>) -> T,
    what: &'static str,
) {
    let Some(extra) = extra_mut(draft, at) else { return };
    let Some(fields) = extra else { return };
    // In place, so that the other fields keep their order.
    let mut mark = fields.get_mut(MARK).map(Value::take);
    change(&mut mark);
    match mark {
        Some(mark) => drop(fields.insert(MARK.to_owned(), mark)),
        None => drop(fields.shift_remove(MARK)),
    }
    if fields.is_empty() {
        *extra = None;
    }
    draft.record(TranscriptRule::CacheMarks, at, what);
}

fn extra_mut<'a>(draft: &'a mut Draft<'_>, at: MarkedAt) -> Option<&'a mut Extra> {
    match at {
        MarkedAt::Tool(tool) => match draft.tools.make_mut().get_mut(tool)? {
            Tool::Function { extra, .. } => Some(extra),
            Tool::Opaque(_) => None,
        },
        MarkedAt::Part(path) => match draft.part_mut(path)? {
            Part::Text(text) => Some(&mut text.extra),
            Part::Thinking(thinking) => Some(&mut thinking.extra),
            Part::Media(media) => Some(&mut media.extra),
            Part::ToolCall(call) => Some(&mut call.extra),
            Part::ToolResult(result) => Some(&mut result.extra),
            Part::Redacted { .. } | Part::Opaque(_) => None,
        },
    }
}
