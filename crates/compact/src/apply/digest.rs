//! Tier 4: what is kept of messages that no model summarises. Bounded by construction.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};
use steadfast_chat::{Message, Part, Role};

use super::clip;

/// First lines of user turns that are kept from the beginning of a conversation, and from its end.
const OPENINGS: (usize, usize) = (4, 16);

/// Bytes of one of them.
const OPENING: usize = 160;

/// Tools that are counted by name; the calls of others are counted together.
const TOOLS: usize = 40;

/// Bytes of a tool's name.
const TOOL_NAME: usize = 64;

/// What was in removed messages: counts, the first lines of the user's turns, the names of
/// tools. Digests of several compactions add up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct Digest {
    user: u64,
    assistant: u64,
    tool: u64,
    first: Vec<Box<str>>,
    last: VecDeque<Box<str>>,
    tools: BTreeMap<Box<str>, u64>,
    other_calls: u64,
}

impl Digest {
    /// Adds a message, the newest so far.
    pub(super) fn read(&mut self, message: &Message) {
        match message.role() {
            Role::Assistant => self.assistant += 1,
            Role::Tool => self.tool += 1,
            _ if message.tool_results().next().is_some() => self.tool += 1,
            _ => self.user += 1,
        }
        for call in message.tool_calls() {
            let name = clip(call.name.trim(), TOOL_NAME);
            let is_known = self.tools.contains_key(name);
            if is_known || (self.tools.len() < TOOLS && !name.is_empty()) {
                *self.tools.entry(name.into()).or_default() += 1;
            } else {
                self.other_calls += 1;
            }
        }
        let lines = message.parts().iter().filter_map(Part::as_text).flat_map(str::lines);
        let is_user = message.role() == Role::User;
        let opening = lines.map(str::trim).find(|line| is_user && !line.is_empty());
        if let Some(line) = opening.map(|line| clip(line, OPENING).into()) {
            if self.first.len() < OPENINGS.0 {
                return self.first.push(line);
            }
            if self.last.len() == OPENINGS.1 {
                self.last.pop_front();
            }
            self.last.push_back(line);
        }
    }

    /// How many messages it replaces.
    pub(super) fn messages(&self) -> u64 {
        self.user + self.assistant + self.tool
    }

    /// As text of at most `room` bytes: whole lines, the counts first, then the tools, then the
    /// user's turns, of which the newest come first where there is no room for all.
    pub(super) fn render(&self, room: usize) -> String {
        let counts = format!(
            "Messages removed: {} of the user, {} of the assistant, {} with tool results.\n",
            self.user, self.assistant, self.tool
        );
        let mut out = if counts.len() <= room { counts } else { return String::new() };
        let mut names =
            self.tools.iter().map(|(name, calls)| format!("{name} ({calls})")).collect::<Vec<_>>();
        if self.other_calls > 0 {
            names.push(format!("others ({})", self.other_calls));
        }
        let tools = format!("Tools called: {}.\n", names.join(", "));
        if !names.is_empty() && out.len() + tools.len() <= room {
            out.push_str(&tools);
        }
        let heading = "The user's turns began:\n";
        let mut left = room.saturating_sub(out.len() + heading.len());
        let mut lines = Vec::new();
        for opening in self.last.iter().rev().chain(self.first.iter().rev()) {
            let line = format!("- {opening}\n");
            if line.len() > left {
                break;
            }
            left -= line.len();
            lines.push(line);
        }
        if !lines.is_empty() {
            out.push_str(heading);
            out.extend(lines.into_iter().rev());
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn has_counts_and_the_users_turns() {
        let mut digest = Digest::default();
        for message in [
            Message::user("\n  Fix the parser.\nAnd more."),
            Message::new(
                Role::Assistant,
                vec![Part::tool_call("1", "ls", "{}"), Part::tool_call("2", "ls", "{}")],
            ),
            Message::tool("1", "out"),
            Message::new(Role::User, vec![Part::tool_result("2", "out")]),
            Message::assistant("done"),
        ] {
            digest.read(&message);
        }
        assert_eq!(digest.messages(), 5);
        assert_eq!(
            digest.render(1_000),
            "Messages removed: 1 of the user, 2 of the assistant, 2 with tool results.\n\
             Tools called: ls (2).\n\
             The user's turns began:\n\
             - Fix the parser.\n"
        );
    }

    #[test]
    fn the_beginning_and_the_end_of_long_conversations_are_kept() {
        let mut digest = Digest::default();
        for number in 0..100 {
            digest.read(&Message::user(format!("turn {number}")));
        }
        let text = digest.render(10_000);
        assert!(text.contains("- turn 0\n") && text.contains("- turn 99\n"));
        assert!(!text.contains("- turn 50\n"));
        let short = digest.render(150);
        assert!(short.contains("turn 99") && !short.contains("turn 0\n"), "{short}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        #[test]
        fn is_bounded_whatever_it_reads(
            texts in prop::collection::vec("\\PC{0,300}", 0..60),
            room in 0_usize..3_000,
        ) {
            let mut digest = Digest::default();
            for text in &texts {
                let call = Part::tool_call("", text.clone(), "");
                digest.read(&Message::user(text.clone()));
                digest.read(&Message::new(Role::Assistant, vec![call]));
            }
            prop_assert!(digest.render(room).len() <= room);
            prop_assert!(digest.tools.len() <= TOOLS);
        }
    }
}
