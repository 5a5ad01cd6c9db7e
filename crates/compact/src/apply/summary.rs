//! The summary that stands in a conversation.

use std::fmt;

use steadfast_core::Message;

use super::{Digest, Ledger, SummaryHeader, clip, render};

/// Bytes of the record that is kept by rule, when it is handed to a summariser.
const RECORD: usize = 4_000;

/// The summary of an earlier compaction: what stands in the conversation, and what is known beyond
/// its text. It is recognised by being this value, never by its text.
#[derive(Clone)]
pub struct Summary {
    message: Message,
    facts: KeptFacts,
    /// What a model wrote of it.
    written: Option<Box<str>>,
}

/// What is kept by rule of messages that are gone.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeptFacts {
    digest: Digest,
    ledger: Ledger,
}

impl KeptFacts {
    /// Adds messages, oldest first.
    pub(crate) fn read<'a>(&mut self, messages: impl Iterator<Item = &'a Message> + Clone) {
        self.digest.read(messages.clone());
        self.ledger.read(messages);
    }

    /// As a message, its body in at most `room` bytes: what was written in half of it, or what is kept
    /// by rule in a third, and facts in the rest.
    pub(crate) fn message(
        &self,
        written: Option<&str>,
        room: usize,
        rng: &mut fastrand::Rng,
    ) -> Message {
        let messages = self.digest.messages();
        let (header, body) = match written {
            Some(written) => {
                let about = clip(written, room / 2);
                let facts = self.ledger.complete(about, room - about.len());
                (SummaryHeader::written(messages), format!("{about}\n{facts}"))
            }
            None => {
                let about = self.digest.render(room / 3);
                let facts = self.ledger.render(room - about.len());
                (SummaryHeader::emergency(messages), format!("{about}{facts}"))
            }
        };
        render(&header, body.trim_end(), rng)
    }
}

impl Summary {
    pub(crate) fn new(message: Message, facts: KeptFacts, written: Option<&str>) -> Self {
        Self { message, facts, written: written.map(Into::into) }
    }

    /// The message that stands in the conversation.
    pub fn message(&self) -> &Message {
        &self.message
    }

    /// The facts it keeps.
    pub fn ledger(&self) -> &Ledger {
        &self.facts.ledger
    }

    /// How many messages it stands for.
    pub fn messages(&self) -> u64 {
        self.facts.digest.messages()
    }

    /// The record so far, for a summariser to bring up to date ([`ask`](crate::ask)): what one wrote
    /// before, or what was kept by rule. The facts are not in it; they are added to any summary.
    pub fn record(&self) -> String {
        self.written.as_deref().map_or_else(|| self.facts.digest.render(RECORD), str::to_owned)
    }

    pub(crate) fn facts(&self) -> &KeptFacts {
        &self.facts
    }

    /// Where it stands.
    pub(crate) fn find(&self, list: &[Message]) -> Option<usize> {
        list.iter().position(|message| message.same(&self.message) || *message == self.message)
    }
}

impl fmt::Debug for Summary {
    /// Shows shapes, not contents: prompts are private.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Summary")
            .field("messages", &self.messages())
            .field("written", &self.written.is_some())
            .finish_non_exhaustive()
    }
}
