//! The summary in a conversation.

use std::fmt;

use serde::{Deserialize, Serialize};
use steadfast_chat::Message;

use super::Ledger;

/// Bytes of the record that is kept by rule, when it is shown to a summariser.
const RECORD: usize = 4_000;

/// The summary of an earlier compaction: its message, and what is known beyond its text. It is
/// recognised by being this value, never by its text.
#[derive(Clone, Deserialize, Serialize)]
pub struct Summary {
    message: Message,
    ledger: Ledger,
    /// What a model wrote of it.
    written: Option<Box<str>>,
}

impl Summary {
    pub(crate) fn new(message: Message, ledger: Ledger, written: Option<&str>) -> Self {
        Self { message, ledger, written: written.map(Into::into) }
    }

    /// Its message in the conversation.
    pub fn message(&self) -> &Message {
        &self.message
    }

    /// The facts it keeps.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// How many messages it replaces.
    pub fn messages(&self) -> u64 {
        self.ledger.messages()
    }

    /// The record so far, for a summariser to bring up to date ([`ask`](crate::ask)): what one wrote
    /// before, or what was kept by rule. The facts are not in it; they are added to any summary.
    pub fn record(&self) -> String {
        self.written.as_deref().map_or_else(|| self.ledger.digest(RECORD), str::to_owned)
    }

    /// Where it stands.
    pub(crate) fn find(&self, list: &[Message]) -> Option<usize> {
        list.iter().position(|message| message.same(&self.message) || *message == self.message)
    }
}

impl fmt::Debug for Summary {
    /// Without contents: prompts are private.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Summary").finish_non_exhaustive()
    }
}
