//! What is remembered of a message, to know it again.

use std::{hash::BuildHasher, sync::LazyLock};

use foldhash::quality::RandomState;
use steadfast_chat::Message;
use steadfast_core::Dialect;

/// What is remembered of a message, to know it again: the message itself where somebody else holds
/// it anyway, and a hash of its text where it was read from the wire, and would be kept alive by this
/// alone.
#[derive(Clone)]
pub(crate) enum Mark {
    /// The message.
    Held(Message),
    /// A hash of its role and its text.
    Print(u64),
}

impl Mark {
    pub(crate) fn of(message: &Message) -> Self {
        print(message).map_or_else(|| Mark::Held(message.clone()), Mark::Print)
    }

    /// Whether it is this message in memory; known without looking at it.
    pub(crate) fn same(&self, message: &Message) -> bool {
        matches!(self, Mark::Held(held) if held.same(message))
    }

    /// Whether it is this message.
    pub(crate) fn is(&self, message: &Message) -> bool {
        match self {
            Mark::Held(held) => held.same(message) || held == message,
            Mark::Print(known) => print(message) == Some(*known),
        }
    }

    /// The message, when it is held.
    pub(crate) fn message(&self) -> Option<&Message> {
        match self {
            Mark::Held(held) => Some(held),
            Mark::Print(_) => None,
        }
    }
}

/// A hash of a message that was read from the wire and not changed since. Seeded once a process: two
/// messages collide by accident only, once in 2^64.
fn print(message: &Message) -> Option<u64> {
    static SEED: LazyLock<RandomState> = LazyLock::new(RandomState::default);
    let dialect: Dialect = message.dialect()?;
    let text = message.raw(dialect)?;
    Some(SEED.hash_one((dialect, message.role(), text)))
}

#[cfg(test)]
mod tests {
    use steadfast_chat::{Part, RawJson, Role};

    use super::*;

    fn read(text: &str) -> Message {
        let raw = RawJson::parse(&format!("{{\"role\":\"user\",\"content\":\"{text}\"}}")).unwrap();
        Message::from_wire(Dialect::OpenAi, Role::User, vec![Part::text(text)], None, raw)
    }

    #[test]
    fn messages_are_known_again_and_those_of_the_wire_are_not_kept() {
        let (own, wire) = (Message::user("hi"), read("hi"));
        let (held, print) = (Mark::of(&own), Mark::of(&wire));
        assert!(held.same(&own) && held.is(&Message::user("hi")) && !held.is(&Message::user("ho")));
        assert!(print.message().is_none() && !print.same(&wire));
        assert!(print.is(&read("hi")) && !print.is(&read("ho")) && !print.is(&own));
        let mut changed = wire;
        changed.parts_mut().push(Part::text("more"));
        assert!(!print.is(&changed), "it is no longer what was read");
    }
}
