//! Messages as turns: neighbours of one role are one turn, as the API reads them.

use serde_json::Value;

/// The position of a block in the request: message and index in its content.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At {
    pub(crate) message: usize,
    pub(crate) block: usize,
}

/// A block of a message; a string content is one text block.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Block<'a> {
    Plain(&'a str),
    Typed(&'a Value),
}

impl<'a> Block<'a> {
    pub(crate) fn kind(&self) -> &'a str {
        match self {
            Self::Plain(_) => "text",
            Self::Typed(value) => value["type"].as_str().unwrap_or_default(),
        }
    }

    pub(crate) fn text(&self) -> Option<&'a str> {
        match self {
            Self::Plain(text) => Some(text),
            Self::Typed(value) if self.kind() == "text" => value["text"].as_str(),
            Self::Typed(_) => None,
        }
    }

    pub(crate) fn str(&self, key: &str) -> &'a str {
        match self {
            Self::Plain(_) => "",
            Self::Typed(value) => value[key].as_str().unwrap_or_default(),
        }
    }

    pub(crate) fn is_thinking(&self) -> bool {
        matches!(self.kind(), "thinking" | "redacted_thinking")
    }
}

/// Neighbouring messages of one role.
#[derive(Clone, Debug)]
pub(crate) struct Turn<'a> {
    pub(crate) user: bool,
    pub(crate) blocks: Vec<(At, Block<'a>)>,
    /// The last message of the turn.
    pub(crate) last: usize,
}

impl<'a> Turn<'a> {
    pub(crate) fn of_kind(&self, kind: &'a str) -> impl Iterator<Item = (At, Block<'a>)> + '_ {
        self.blocks.iter().copied().filter(move |(_, block)| block.kind() == kind)
    }

    pub(crate) fn has(&self, kind: &'a str) -> bool {
        self.of_kind(kind).next().is_some()
    }
}

/// The turns of messages whose shape was checked.
pub(crate) fn turns(messages: &[Value]) -> Vec<Turn<'_>> {
    let mut turns: Vec<Turn<'_>> = Vec::new();
    for (at, message) in messages.iter().enumerate() {
        // Instructions in the middle belong to the turn they follow, which is a user's.
        let user = message["role"] != "assistant";
        let blocks: Vec<(At, Block<'_>)> = match &message["content"] {
            Value::String(text) => vec![(At { message: at, block: 0 }, Block::Plain(text))],
            Value::Array(list) => list
                .iter()
                .enumerate()
                .map(|(n, block)| (At { message: at, block: n }, Block::Typed(block)))
                .collect(),
            _ => Vec::new(),
        };
        match turns.last_mut() {
            Some(turn) if turn.user == user => {
                turn.blocks.extend(blocks);
                turn.last = at;
            }
            _ => turns.push(Turn { user, blocks, last: at }),
        }
    }
    turns
}
