//! A conversation as turns of two sides, for dialects that know no others.

use steadfast_chat::{Message, Part, RawJson, Role, SharedVec};
use steadfast_core::Dialect;

use super::calls::Calls;

/// One turn.
pub(crate) struct Turn<'a> {
    /// Whether the model speaks.
    pub(crate) model: bool,
    /// It is an instruction in the middle of the conversation, for models that take one there.
    instruction: bool,
    /// Its parts.
    pub(crate) items: Vec<Item<'a>>,
    /// The text it was read from in this dialect, when it is one message that nobody changed.
    pub(crate) raw: Option<&'a RawJson>,
}

/// One part, and where it stands.
#[derive(Clone, Copy)]
pub(crate) struct Item<'a> {
    pub(crate) part: &'a Part,
    pub(crate) message: &'a Message,
    pub(crate) at: (usize, usize),
}

impl Item<'_> {
    /// Whether what only its provider understands, such as a signature, means something in
    /// `dialect`: it was read in it, or made by a layer or the program, which is trusted.
    pub(crate) fn is_native(&self, dialect: Dialect) -> bool {
        self.message.dialect().is_none_or(|read| read == dialect)
    }

    /// Whether its extra fields are fields of `dialect`.
    pub(crate) fn has_extra(&self, dialect: Dialect) -> bool {
        self.message.dialect() == Some(dialect)
    }
}

/// The instructions in `messages`.
pub(crate) fn instructions(messages: &[Message]) -> impl Iterator<Item = (usize, &Message)> {
    messages.iter().enumerate().filter(|(_, message)| message.role() == Role::System)
}

/// The turns of `messages` without their instructions. Neighbours of one side become one turn,
/// unless both are as they were read; in it results come first, and what was read in another dialect
/// than `dialect` in the order of the calls. What `keep` does not want is left out, and turns with nothing left in them too.
pub(crate) fn turns<'a>(
    messages: &'a [Message],
    dialect: Dialect,
    calls: &Calls,
    verbatim: impl Fn(&'a Message) -> Option<&'a RawJson>,
    keep: impl Fn(&Item<'a>) -> bool,
) -> Vec<Turn<'a>> {
    let mut turns: Vec<Turn<'a>> = Vec::new();
    for (m, message) in messages.iter().enumerate() {
        let raw = verbatim(message);
        if message.role() == Role::System && raw.is_none() {
            continue;
        }
        let model = message.role() == Role::Assistant;
        let instruction = message.role() == Role::System;
        let items: Vec<Item<'a>> = message
            .parts()
            .iter()
            .enumerate()
            .map(|(p, part)| Item { part, message, at: (m, p) })
            .filter(|item| raw.is_some() || keep(item))
            .collect();
        if items.is_empty() && raw.is_none() {
            continue;
        }
        match turns.last_mut() {
            Some(last)
                if last.model == model
                    && !(instruction || last.instruction)
                    && (last.raw.is_none() || raw.is_none()) =>
            {
                // Each is filtered once: there may be many neighbours.
                if last.raw.take().is_some() {
                    last.items.retain(|item| keep(item));
                }
                last.items.extend(items.into_iter().filter(|item| raw.is_none() || keep(item)));
            }
            _ => turns.push(Turn { model, instruction, items, raw }),
        }
    }
    for turn in turns.iter_mut().filter(|turn| turn.raw.is_none() && !turn.model) {
        let own = turn.items.iter().all(|item| item.has_extra(dialect));
        turn.items.sort_by_key(|item| match item.part {
            Part::ToolResult(_) if own => (0, 0),
            Part::ToolResult(_) => {
                (0, calls.get(item.at.0, item.at.1).map_or(0, |known| known.order))
            }
            _ => (1, 0),
        });
    }
    turns
}

/// Whether the conversation is in the middle of a tool loop whose first step does not begin with
/// thinking that its provider signed. Then nothing may be thought now, or the provider asks where
/// the thoughts before are.
pub(crate) fn loop_without_thinking(messages: &[Message], dialect: Dialect) -> bool {
    let mut without = false;
    for message in messages.iter().rev() {
        match message.role() {
            Role::Assistant => {
                let signed = message.dialect().is_none_or(|read| read == dialect)
                    && message.parts().iter().any(|part| match part {
                        Part::Thinking(thinking) => {
                            thinking.signature.as_ref().is_some_and(|s| !s.is_empty())
                        }
                        Part::Redacted { .. } => true,
                        _ => false,
                    });
                if message.tool_calls().next().is_none() {
                    return without;
                }
                without = !signed;
            }
            Role::System => {}
            _ => {
                if message.tool_results().next().is_none() {
                    return without;
                }
            }
        }
    }
    without
}

/// Whether both are the same messages, by their address.
pub(crate) fn same(a: &SharedVec<Message>, b: &SharedVec<Message>) -> bool {
    a.same(b) || (a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.same(b)))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn neighbours_become_one_turn_and_each_part_is_filtered_once() {
        const MANY: usize = 1_000;
        let messages: Vec<Message> =
            (0..MANY).map(|n| Message::tool(format!("c{n}"), "result")).collect();
        let calls = Calls::of(&messages, Dialect::Anthropic);
        let filtered = Cell::new(0);
        let keep = |_: &Item<'_>| {
            filtered.set(filtered.get() + 1);
            true
        };
        let turns = turns(&messages, Dialect::Anthropic, &calls, |_| None, keep);
        assert_eq!(turns.len(), 1);
        assert_eq!(turns[0].items.len(), MANY);
        assert_eq!(filtered.get(), MANY);
    }

    #[test]
    fn what_stood_in_a_turn_as_it_was_read_is_chosen_from_once_it_is_merged() {
        let raw = RawJson::parse("{}").unwrap();
        let messages = [Message::user("drop"), Message::user("keep"), Message::user("drop")];
        let calls = Calls::default();
        let keep = |item: &Item<'_>| item.part.as_text() == Some("keep");
        for as_read in 0..3 {
            let verbatim =
                |message: &'_ Message| std::ptr::eq(message, &messages[as_read]).then_some(&raw);
            let turns = turns(&messages, Dialect::Anthropic, &calls, verbatim, keep);
            let kept: Vec<_> = turns.iter().flat_map(|turn| &turn.items).collect();
            assert_eq!(turns.len(), 1, "{as_read}");
            assert_eq!(kept.len(), 1, "{as_read}");
        }
    }
}
