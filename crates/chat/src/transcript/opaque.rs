//! S16: blocks of one dialect are sent whole or not at all.
//!
//! A block or a tool of another dialect stays where it is: whoever translates the request writes it in other
//! words, or refuses the target. To drop it here would lose it in silence.

use std::{borrow::Cow, collections::HashSet};

use serde::Deserialize;

use super::{
    TranscriptRule, TranscriptRules,
    draft::Draft,
    error_text,
    outcome::Findings,
    turn::{HasMessage, PartIndex, parts, turns},
};
use steadfast_core::Dialect;

use crate::{ChatRequest, Opaque, Part, Role};

pub(super) fn check(request: &ChatRequest, rules: &TranscriptRules, found: &mut Findings) {
    for Block { side, at, kind, id } in unpaired(&request.messages, rules) {
        let text = match side {
            Side::Call => error_text::unpaired_call(at, kind, &id),
            Side::Result => error_text::unpaired_result(at, kind, &id),
        };
        found.push(TranscriptRule::Opaque, at, text);
    }
}

pub(super) fn repair(draft: &mut Draft<'_>) {
    let unpaired: HashSet<PartIndex> =
        unpaired(&draft.messages, draft.rules).map(|block| block.at).collect();
    draft.remove_parts(|at, _, _| {
        unpaired
            .contains(&at)
            .then_some((TranscriptRule::Opaque, "half of a server tool's pair dropped"))
    });
}

/// A block of a server tool.
struct Block<'a> {
    side: Side,
    at: PartIndex,
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
fn unpaired<'a, H: HasMessage>(
    list: &'a [H],
    rules: &TranscriptRules,
) -> impl Iterator<Item = Block<'a>> + use<'a, H> {
    let blocks = if rules.server_tools { blocks(list, rules.dialect) } else { Vec::new() };
    let last = if blocks.is_empty() {
        usize::MAX
    } else {
        let turns = turns(list, true).filter(|turn| !turn.model.is_empty());
        turns.last().map_or(usize::MAX, |turn| turn.model.start)
    };
    let mut open: HashSet<&str> = HashSet::new();
    let mut answered: HashSet<&str> = HashSet::new();
    let mut is_unpaired = vec![false; blocks.len()];
    for (block, is_unpaired) in blocks.iter().zip(&mut is_unpaired) {
        match block.side {
            Side::Call => drop(open.insert(&block.id)),
            Side::Result if open.contains(&*block.id) => drop(answered.insert(&block.id)),
            Side::Result => *is_unpaired = true,
        }
    }
    for (block, is_unpaired) in blocks.iter().zip(&mut is_unpaired) {
        if block.side == Side::Call {
            *is_unpaired = block.at.message < last && !answered.contains(&*block.id);
        }
    }
    blocks
        .into_iter()
        .zip(is_unpaired)
        .filter_map(|(block, is_unpaired)| is_unpaired.then_some(block))
}

/// All blocks of server tools that have an id.
fn blocks<H: HasMessage>(list: &[H], dialect: Dialect) -> Vec<Block<'_>> {
    let own = parts(list).filter_map(|(at, role, part)| match part {
        Part::Opaque(own) if own.dialect == dialect && role == Role::Assistant => Some((at, own)),
        _ => None,
    });
    own.filter_map(|(at, Opaque { kind, json, .. })| {
        let ids = || serde_json::from_str::<Ids<'_>>(json.get()).ok();
        let (side, id) = if kind.ends_with("_tool_use") {
            (Side::Call, ids()?.id?)
        } else if kind.ends_with("_tool_result") {
            (Side::Result, ids()?.tool_use_id?)
        } else {
            return None;
        };
        Some(Block { side, at, kind, id })
    })
    .collect()
}
