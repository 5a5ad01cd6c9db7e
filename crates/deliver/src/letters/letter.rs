//! One dead letter, and how it ends.

use std::{fmt, sync::Arc, time::SystemTime};

use serde::{Deserialize, Serialize};
use steadfast_core::Failure;

use crate::{Announcement, DeliveryKind, clock};

/// A message that could not be delivered: what the queue has of it, and a record of its file. Times are milliseconds since 1970.
///
/// Its text is not in its `Debug`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DeadLetter {
    /// The message's idempotency key.
    pub key: Arc<str>,
    /// Its session.
    pub session: Arc<str>,
    /// Its channel.
    pub destination: Arc<str>,
    /// What it is.
    pub kind: DeliveryKind,
    /// On whose behalf it is sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Arc<str>>,
    /// What people read. Empty once it is delivered.
    pub text: Arc<str>,
    /// When the message was made.
    pub created_ms: u64,
    /// When it came into the queue.
    pub kept_ms: u64,
    /// When it is tried next, unless it is drained earlier.
    pub next_ms: u64,
    /// When it expires.
    pub expires_ms: u64,
    /// How many of its retries it has used.
    pub attempts: u32,
    /// Why it was not delivered the last time; without secrets.
    pub error: Arc<str>,
    /// It is being sent, by an attempt or by a send on which an attempt has stopped to wait: in a file that a killed process has
    /// left, nobody knows how that ended.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sending: bool,
    /// How it ended; `None` while it waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<LetterEnd>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_ms: Option<u64>,
}

/// How a dead letter ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LetterEnd {
    /// It was delivered.
    Delivered,
    /// It was too old.
    TooOld,
    /// Its retries were used up.
    NoRetries,
    /// The queue was full, and its destination had most letters.
    QueueFull,
    /// The platform will never take it as it is: malformed or too large.
    Refused,
    /// Nobody knows whether it was sent: the connection broke or nothing came in time, and the platform takes no key.
    Unclear,
    /// A person has dropped it.
    Discarded,
}

impl LetterEnd {
    /// The name in events and files, such as `too_old`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::TooOld => "too_old",
            Self::NoRetries => "no_retries",
            Self::QueueFull => "queue_full",
            Self::Refused => "refused",
            Self::Unclear => "unclear",
            Self::Discarded => "discarded",
        }
    }
}

impl fmt::Display for LetterEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Which letters are to be delivered now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LetterDrain {
    /// All that wait.
    All,
    /// Those of one channel.
    Destination(Arc<str>),
    /// The one of this key, also when it has ended without being delivered: it begins anew.
    Key(Arc<str>),
}

impl DeadLetter {
    /// The letter of `message`, which has failed just now; whether its send goes on nevertheless.
    pub(crate) fn of(message: &Announcement, failure: &Failure, sending: bool, now: u64) -> Self {
        Self {
            key: message.key.clone(),
            session: message.session.clone(),
            destination: message.destination.clone(),
            kind: message.kind,
            tenant: message.context.tenant().map(Arc::from),
            text: message.text.clone(),
            created_ms: clock::to_ms(message.created),
            kept_ms: now,
            next_ms: now,
            expires_ms: now,
            attempts: 0,
            error: failure.to_string().into(),
            sending,
            end: None,
            ended_ms: None,
        }
    }

    /// The message again.
    pub fn to_announcement(&self) -> Announcement {
        let mut message =
            Announcement::new(self.key.clone(), self.destination.clone(), self.text.clone())
                .with_session(self.session.clone());
        message.kind = self.kind;
        message.created = clock::from_ms(self.created_ms);
        message.context.attempts = self.attempts;
        match &self.tenant {
            Some(tenant) => message.with_tenant(tenant.clone()),
            None => message,
        }
    }

    /// When it came into the queue.
    pub fn kept(&self) -> SystemTime {
        clock::from_ms(self.kept_ms)
    }

    /// How it is, in a word: how it ended, `sending` or `waiting`.
    pub fn state(&self) -> &'static str {
        match self.end {
            Some(end) => end.as_str(),
            None if self.sending => "sending",
            None => "waiting",
        }
    }

    /// Whether it waits to be delivered.
    pub const fn is_waiting(&self) -> bool {
        self.end.is_none()
    }

    pub(crate) fn ended(mut self, end: LetterEnd, now: u64) -> Self {
        if end == LetterEnd::Delivered {
            // Nobody needs it again, and it is somebody's message.
            self.text = Arc::from("");
        }
        (self.sending, self.end, self.ended_ms) = (false, Some(end), Some(now));
        self
    }

    /// What it takes of the queue's memory, about.
    pub(crate) fn bytes(&self) -> usize {
        256 + self.key.len() + self.session.len() + self.destination.len() + self.text.len()
    }
}

impl fmt::Debug for DeadLetter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeadLetter")
            .field("key", &self.key)
            .field("destination", &self.destination)
            .field("kind", &self.kind)
            .field("attempts", &self.attempts)
            .field("error", &self.error)
            .field("end", &self.end)
            .finish_non_exhaustive()
    }
}
