//! S12: cache marks.

use serde::{Deserialize, de::IgnoredAny};

use super::{Place, Rule, Rules, draft::Draft, outcome::Findings, turn::Holds, turn::Spot, words};
use crate::{ChatRequest, Extra, Part, Role, Tool};

/// The field that marks a part.
const MARK: &str = "cache_control";

/// A cache mark, and where it is.
#[derive(Clone, Copy)]
struct Mark {
    at: At,
    /// Lives an hour instead of five minutes.
    is_long: bool,
    on: On,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    Tool(usize),
    Part(Spot),
    /// A part inside a result.
    Nested(Spot, usize),
}

/// What it is on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum On {
    Block,
    Thinking,
    Empty,
    /// A block that is not edited.
    Opaque,
}

impl At {
    fn place(self) -> Place {
        match self {
            At::Tool(tool) => Place::Tool(tool),
            At::Part(Spot { message, part }) | At::Nested(Spot { message, part }, _) => {
                Place::Part { message, part }
            }
        }
    }

    fn path(self, rules: &Rules) -> String {
        match self {
            At::Tool(tool) => format!("tools.{tool}"),
            At::Part(spot) | At::Nested(spot, _) => words::part(rules.dialect, spot),
        }
    }
}

/// All marks, in the order in which the provider reads them: tools, instructions, conversation.
fn marks<H: Holds>(tools: &[Tool], list: &[H]) -> Vec<Mark> {
    let mut marks = Vec::new();
    for (index, tool) in tools.iter().enumerate() {
        match tool {
            Tool::Function { extra, .. } => {
                marks.extend(read(extra, At::Tool(index), On::Block));
            }
            Tool::Opaque(opaque) => marks.extend(read_raw(opaque.json.get(), At::Tool(index))),
        }
    }
    for is_system in [true, false] {
        for (message, held) in list.iter().enumerate() {
            if (held.message().role() == Role::System) != is_system {
                continue;
            }
            for (part, value) in held.message().parts().iter().enumerate() {
                let spot = Spot { message, part };
                if let Part::ToolResult(result) = value {
                    for (index, inner) in result.content.iter().enumerate() {
                        marks.extend(mark(inner, At::Nested(spot, index)));
                    }
                }
                marks.extend(mark(value, At::Part(spot)));
            }
        }
    }
    marks
}

fn mark(part: &Part, at: At) -> Option<Mark> {
    match part {
        Part::Text(text) => {
            let on = if text.text.is_empty() { On::Empty } else { On::Block };
            read(&text.extra, at, on)
        }
        Part::Thinking(thinking) => read(&thinking.extra, at, On::Thinking),
        Part::Media(media) => read(&media.extra, at, On::Block),
        Part::ToolCall(call) => read(&call.extra, at, On::Block),
        Part::ToolResult(result) => read(&result.extra, at, On::Block),
        Part::Opaque(opaque) => read_raw(opaque.json.get(), at),
        Part::Redacted { .. } => None,
    }
}

fn read(extra: &Extra, at: At, on: On) -> Option<Mark> {
    let mark = extra.as_ref()?.get(MARK).filter(|mark| !mark.is_null())?;
    Some(Mark { at, on, is_long: mark.get("ttl").is_some_and(|ttl| ttl == "1h") })
}

/// A mark in a block that is kept as text: whether there is one, not more.
fn read_raw(json: &str, at: At) -> Option<Mark> {
    #[derive(Deserialize)]
    struct Marked {
        #[serde(rename = "cache_control")]
        mark: Option<IgnoredAny>,
    }
    let is_marked = json.contains(MARK)
        && serde_json::from_str(json).is_ok_and(|Marked { mark }| mark.is_some());
    is_marked.then_some(Mark { at, on: On::Opaque, is_long: false })
}

pub(super) fn check(request: &ChatRequest, rules: &Rules, found: &mut Findings) {
    let Some(max) = rules.cache_marks else { return };
    let marks = marks(&request.tools, &request.messages);
    let mut short = false;
    for mark in &marks {
        let words = match (mark.on, mark.at) {
            (On::Thinking, At::Part(spot) | At::Nested(spot, _)) => words::marked_thinking(spot),
            (On::Empty, At::Part(spot) | At::Nested(spot, _)) => words::marked_empty(spot),
            (On::Block, at) if mark.is_long && short => words::mark_order(&at.path(rules)),
            (on, _) => {
                short |= on == On::Block && !mark.is_long;
                continue;
            }
        };
        found.push(Rule::CacheMarks, mark.at.place(), words);
    }
    let count = marks.iter().filter(|mark| matches!(mark.on, On::Block | On::Opaque)).count();
    if count > max {
        found.push(Rule::CacheMarks, Place::Request, words::mark_count(max, count));
    }
}

pub(super) fn mend(draft: &mut Draft<'_>) {
    let Some(max) = draft.rules.cache_marks else { return };
    let marks = marks(draft.tools, &draft.messages);
    let fixed = marks.iter().filter(|mark| mark.on == On::Opaque).count();
    let blocks: Vec<&Mark> = marks.iter().filter(|mark| mark.on == On::Block).collect();
    for mark in marks.iter().filter(|mark| matches!(mark.on, On::Thinking | On::Empty)) {
        edit(draft, mark.at, Option::take, "mark dropped from a block that can not have one");
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

/// Gives a mark the life that needs no word.
fn shorten(mark: &mut Option<serde_json::Value>) -> Option<serde_json::Value> {
    mark.as_mut()?.as_object_mut()?.remove("ttl")
}

/// Takes a mark out of the fields it is in, lets `change` have it, and puts back what is left.
fn edit<T>(
    draft: &mut Draft<'_>,
    at: At,
    change: impl Fn(&mut Option<serde_json::Value>) -> T,
    what: &'static str,
) {
    let (place, extra) = match at {
        At::Tool(tool) => (
            Place::Tool(tool),
            match draft.tools.make_mut().get_mut(tool) {
                Some(Tool::Function { extra, .. }) => extra,
                _ => return,
            },
        ),
        At::Part(spot) | At::Nested(spot, _) => {
            let slot = &mut draft.messages[spot.message];
            let place = Place::Part { message: slot.from, part: spot.part };
            let nested = if let At::Nested(_, index) = at { Some(index) } else { None };
            let extra = match slot.part_mut(spot.part, nested) {
                Some(Part::Text(text)) => &mut text.extra,
                Some(Part::Thinking(thinking)) => &mut thinking.extra,
                Some(Part::Media(media)) => &mut media.extra,
                Some(Part::ToolCall(call)) => &mut call.extra,
                Some(Part::ToolResult(result)) => &mut result.extra,
                _ => return,
            };
            (place, extra)
        }
    };
    let Some(fields) = extra else { return };
    // In place, so that the other fields keep their order.
    let mut mark = fields.get_mut(MARK).map(serde_json::Value::take);
    change(&mut mark);
    match mark {
        Some(mark) => drop(fields.insert(MARK.to_owned(), mark)),
        None => drop(fields.shift_remove(MARK)),
    }
    if fields.is_empty() {
        *extra = None;
    }
    draft.did(Rule::CacheMarks, place, what);
}
