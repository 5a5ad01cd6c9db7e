//! What is delivered.

use std::{fmt, sync::Arc, time::SystemTime};

use serde::{Deserialize, Serialize};
use steadfast_core::{Call, CallContext, time::wall};

use crate::FailureNotice;

/// A message for people, and where it goes: the request of every service here.
///
/// The **key** is what makes it one message: through retries, the other route and the dead letters it is the same, and
/// what was delivered under it is not sent again. A key names a message for ever: one of a random or counted part, not of
/// the text.
///
/// Cloning it is a few counted pointers. Its text is not in its `Debug`.
#[derive(Clone)]
#[non_exhaustive]
pub struct Announcement {
    /// The idempotency key, sent to a platform that takes one.
    pub key: Arc<str>,
    /// Whose conversation it belongs to: announcements of one session may share a turn of the parent.
    pub session: Arc<str>,
    /// The channel, as the user's own service knows it. Destinations fail independently of each other.
    pub destination: Arc<str>,
    /// What it is, which decides what becomes of it when it can not be delivered.
    pub kind: DeliveryKind,
    /// What people read.
    pub text: Arc<str>,
    /// When it was made.
    pub created: SystemTime,
    /// Tenant, deadline and recovery log.
    pub context: CallContext,
}

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum DeliveryKind {
    /// The answer to what a user has just written. A stale one is worse than none: it is never kept for later.
    Reply,
    /// A result that nobody is waiting for at this moment, such as that of a subagent.
    Announcement,
    /// That something failed: a fixed text, see [`FailureNotice`].
    Notice,
}

impl DeliveryKind {
    /// The name in events and files, such as `reply`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Reply => "reply",
            Self::Announcement => "announcement",
            Self::Notice => "notice",
        }
    }
}

impl Announcement {
    /// An announcement of `text`. Its session is the destination until [another](Self::with_session) is set.
    pub fn new(
        key: impl Into<Arc<str>>,
        destination: impl Into<Arc<str>>,
        text: impl Into<Arc<str>>,
    ) -> Self {
        let destination = destination.into();
        Self {
            key: key.into(),
            session: destination.clone(),
            destination,
            kind: DeliveryKind::Announcement,
            text: text.into(),
            created: wall(),
            context: CallContext::new(),
        }
    }

    /// The reply to a user.
    pub fn reply(
        key: impl Into<Arc<str>>,
        destination: impl Into<Arc<str>>,
        text: impl Into<Arc<str>>,
    ) -> Self {
        Self { kind: DeliveryKind::Reply, ..Self::new(key, destination, text) }
    }

    /// The fixed text for a task that failed.
    pub fn notice(
        key: impl Into<Arc<str>>,
        destination: impl Into<Arc<str>>,
        notice: FailureNotice,
    ) -> Self {
        Self { kind: DeliveryKind::Notice, ..Self::new(key, destination, notice.text()) }
    }

    /// As a part of the conversation `session`.
    #[must_use]
    pub fn with_session(mut self, session: impl Into<Arc<str>>) -> Self {
        self.session = session.into();
        self.context = self.context.with_session(self.session.clone());
        self
    }

    /// On behalf of `tenant`.
    #[must_use]
    pub fn with_tenant(mut self, tenant: impl Into<Arc<str>>) -> Self {
        self.context = self.context.with_tenant(tenant);
        self
    }

    /// With this context.
    #[must_use]
    pub fn with_context(self, context: CallContext) -> Self {
        Self { context, ..self }
    }
}

impl Call for Announcement {
    fn context(&self) -> &CallContext {
        &self.context
    }

    fn context_mut(&mut self) -> &mut CallContext {
        &mut self.context
    }
}

impl fmt::Debug for Announcement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Announcement")
            .field("key", &self.key)
            .field("session", &self.session)
            .field("destination", &self.destination)
            .field("kind", &self.kind)
            .field("bytes", &self.text.len())
            .finish_non_exhaustive()
    }
}
