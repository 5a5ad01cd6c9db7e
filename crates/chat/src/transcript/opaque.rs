//! S16: blocks of one dialect are moved whole or not at all.

use std::{borrow::Cow, collections::HashSet};

use serde::Deserialize;

use super::{
    Place, Rule, Rules,
    draft::Draft,
    outcome::Findings,
    turn::{Holds, Spot, turns},
    words,
};
use steadfast_core::Dialect;

use crate::{ChatRequest, Opaque, Part, Role, Tool};

pub(super) fn check(request: &ChatRequest, rules: &Rules, found: &mut Findings) {
    let dialect = rules.dialect;
    for (index, tool) in request.tools.iter().enumerate() {
        if let Tool::Opaque(opaque) = tool
            && opaque.dialect != dialect
        {
            let words = words::foreign_block(dialect, &format!("tools[{index}]"), &opaque.kind);
            found.push(Rule::Opaque, Place::Tool(index), words);
        }
    }
    for (index, message) in request.messages.iter().enumerate() {
        for (part, value) in message.parts().iter().enumerate() {
            for opaque in foreign(value, dialect) {
                let at = words::part(dialect, Spot { message: index, part });
                let words = words::foreign_block(dialect, &at, &opaque.kind);
                found.part(Rule::Opaque, index, part, words);
            }
        }
    }
    for half in halves(&request.messages, rules) {
        let words = match half.side {
            Side::Call => words::half_call(half.spot, half.kind, &half.id),
            Side::Result => words::half_result(half.spot, half.kind, &half.id),
        };
        found.part(Rule::Opaque, half.spot.message, half.spot.part, words);
    }
}

pub(super) fn mend(draft: &mut Draft<'_>) {
    let dialect = draft.rules.dialect;
    let is_foreign = |tool: &Tool| matches!(tool, Tool::Opaque(o) if o.dialect != dialect);
    if draft.tools.iter().any(is_foreign) {
        for index in 0..draft.tools.len() {
            if is_foreign(&draft.tools[index]) {
                draft.did(Rule::Opaque, Place::Tool(index), "tool of another dialect dropped");
            }
        }
        draft.tools.make_mut().retain(|tool| !is_foreign(tool));
        if draft.tools.is_empty() {
            draft.params.tool_choice = None;
        }
    }
    let halves: HashSet<Spot> =
        halves(&draft.messages, draft.rules).map(|half| half.spot).collect();
    draft.take_all(|message, _, part, value| match value {
        Part::Opaque(opaque) if opaque.dialect != dialect => {
            Some((Rule::Opaque, "block of another dialect dropped"))
        }
        Part::Opaque(_) if halves.contains(&Spot { message, part }) => {
            Some((Rule::Opaque, "half of a server tool's pair dropped"))
        }
        _ => None,
    });
    for index in 0..draft.messages.len() {
        let parts = draft.messages[index].message.parts();
        let is_nested = |part: &Part| part.as_tool_result().is_some();
        if !parts.iter().any(|part| is_nested(part) && foreign(part, dialect).next().is_some()) {
            continue;
        }
        for part in draft.messages[index].message.parts_mut() {
            if let Part::ToolResult(result) = part {
                result.content.retain(
                    |part| !matches!(part, Part::Opaque(opaque) if opaque.dialect != dialect),
                );
            }
        }
        draft.did_to(Rule::Opaque, index, "block of another dialect dropped from a result");
    }
}

/// Blocks of other dialects in a part.
fn foreign(part: &Part, dialect: Dialect) -> impl Iterator<Item = &Opaque> {
    let inner = match part {
        Part::ToolResult(result) => &*result.content,
        other => std::slice::from_ref(other),
    };
    inner.iter().filter_map(move |part| match part {
        Part::Opaque(opaque) if opaque.dialect != dialect => Some(opaque),
        _ => None,
    })
}

/// One block of a server tool that lacks the other.
struct Half<'a> {
    side: Side,
    spot: Spot,
    kind: &'a str,
    id: Cow<'a, str>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Call,
    Result,
}

/// The ids in a server tool's block.
#[derive(Deserialize)]
struct Ids<'a> {
    #[serde(borrow)]
    id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    tool_use_id: Option<Cow<'a, str>>,
}

/// Server tools' calls without a later result and results without an earlier call. A call in the
/// model's last turn may still be running: the provider paused, or waits for a client's tool.
fn halves<'a, H: Holds>(
    list: &'a [H],
    rules: &Rules,
) -> impl Iterator<Item = Half<'a>> + use<'a, H> {
    let blocks = if rules.server_tools { blocks(list, rules.dialect) } else { Vec::new() };
    let last = if blocks.is_empty() {
        usize::MAX
    } else {
        let turns = turns(list, true).filter(|turn| !turn.model.is_empty());
        turns.last().map_or(usize::MAX, |turn| turn.model.start)
    };
    let mut open: HashSet<&str> = HashSet::new();
    let mut answered: HashSet<&str> = HashSet::new();
    let mut lone = vec![false; blocks.len()];
    for (block, lone) in blocks.iter().zip(&mut lone) {
        match block.side {
            Side::Call => drop(open.insert(&block.id)),
            Side::Result if open.contains(&*block.id) => drop(answered.insert(&block.id)),
            Side::Result => *lone = true,
        }
    }
    for (block, lone) in blocks.iter().zip(&mut lone) {
        if block.side == Side::Call {
            *lone = block.spot.message < last && !answered.contains(&*block.id);
        }
    }
    blocks.into_iter().zip(lone).filter_map(|(block, lone)| lone.then_some(block))
}

fn blocks<'a, H: Holds>(list: &'a [H], dialect: Dialect) -> Vec<Half<'a>> {
    let mut blocks = Vec::new();
    for (message, held) in list.iter().enumerate() {
        if held.message().role() != Role::Assistant {
            continue;
        }
        for (part, value) in held.message().parts().iter().enumerate() {
            let Part::Opaque(opaque) = value else { continue };
            let side = if opaque.kind.ends_with("_tool_use") {
                Side::Call
            } else if opaque.kind.ends_with("_tool_result") {
                Side::Result
            } else {
                continue;
            };
            let ids = serde_json::from_str(opaque.json.get());
            let Ok(Ids { id, tool_use_id }) = ids else { continue };
            let id = if side == Side::Call { id } else { tool_use_id };
            let (Some(id), true) = (id, opaque.dialect == dialect) else { continue };
            blocks.push(Half { side, spot: Spot { message, part }, kind: &opaque.kind, id });
        }
    }
    blocks
}
