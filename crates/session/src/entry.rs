//! What is in the files.

use serde::{Deserialize, Serialize};
use steadfast_chat::Message;
use steadfast_core::time::wall;

/// A line of a thread's log, which has everything that ever happened in the thread.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SessionEntry {
    /// A turn has ended.
    Turn(TurnEntry),
    /// A session has started, with an empty history. The first one has no such entry.
    Started(StartEntry),
}

/// A turn that has ended: the messages that it added to the history.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TurnEntry {
    /// Its number in the thread, from 1 and without gaps, over all sessions.
    pub turn: u64,
    /// Its session.
    pub session: u64,
    /// When it ended, RFC 3339.
    pub at: String,
    /// The idempotency key of its prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Whether its prompt's run ended with it.
    pub last: bool,
    /// How many of the messages, at the beginning, are the prompt itself.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub prompt: u32,
    /// The messages.
    pub messages: Vec<Message>,
}

impl TurnEntry {
    /// What the turn added besides the prompt.
    pub fn answer(&self) -> &[Message] {
        self.messages.get(self.prompt as usize..).unwrap_or_default()
    }
}

/// A session that has started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StartEntry {
    /// Its number, from 1.
    pub session: u64,
    /// The last turn before it.
    pub after: u64,
    /// When, RFC 3339.
    pub at: String,
    /// Why.
    pub why: StartReason,
}

/// Why a session has started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum StartReason {
    /// Somebody asked for it.
    RolledOver,
    /// The history before it could not be read.
    Lost,
}

/// A record of a thread's context: the head, then the messages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ContextRecord {
    Head(ContextHead),
    Message(Message),
}

/// What the messages of a context are of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ContextHead {
    pub(crate) session: u64,
    /// The last turn in it.
    pub(crate) turn: u64,
    /// The history was replaced after this turn; 0 when it never was. The messages of later turns are in it as in the log.
    pub(crate) replaced: u64,
}

/// A context that could be read.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ContextFile {
    pub(crate) head: ContextHead,
    pub(crate) messages: Vec<Message>,
}

impl ContextFile {
    /// From the records of the file; `None` when they are not those of a context.
    pub(crate) fn from_records(records: Vec<ContextRecord>) -> Option<Self> {
        let mut records = records.into_iter();
        let ContextRecord::Head(head) = records.next()? else { return None };
        let messages = records.map(|record| match record {
            ContextRecord::Message(message) => Some(message),
            ContextRecord::Head(_) => None,
        });
        Some(Self { head, messages: messages.collect::<Option<_>>()? })
    }

    /// The records of this context.
    pub(crate) fn records(head: ContextHead, messages: &[Message]) -> Vec<ContextRecord> {
        let messages = messages.iter().cloned().map(ContextRecord::Message);
        std::iter::once(ContextRecord::Head(head)).chain(messages).collect()
    }
}

/// Now, for an entry.
pub(crate) fn now() -> String {
    humantime::format_rfc3339_seconds(wall()).to_string()
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}
