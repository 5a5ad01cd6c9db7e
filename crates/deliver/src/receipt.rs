//! What is returned for a message.

use std::{fmt, sync::Arc};

use crate::LetterEnd;

/// By which route a message went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeliveryRoute {
    /// The parent agent has announced it.
    Parent,
    /// Directly to the channel.
    Direct,
    /// It is a dead letter: it will be delivered later, or end in a record that people see.
    Letter,
    /// Not at all this time: the ledger has its key, so it had been delivered before.
    Repeated,
    /// Not at all, and by nobody any more: it has ended in a record that people see, as [`DeliveryReceipt::end`] says. Sending it
    /// again changes nothing but the record.
    Recorded,
}

impl DeliveryRoute {
    /// The name in events, such as `parent`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Parent => "parent",
            Self::Direct => "direct",
            Self::Letter => "letter",
            Self::Repeated => "repeated",
            Self::Recorded => "recorded",
        }
    }
}

impl fmt::Display for DeliveryRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The reply of every service here. A channel may reply with one, or with `()`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeliveryReceipt {
    /// By which route the message went.
    pub route: DeliveryRoute,
    /// What the platform calls the message, where the channel reports it.
    pub message_id: Option<Arc<str>>,
    /// How it ended, of a message that is [recorded](DeliveryRoute::Recorded).
    pub end: Option<LetterEnd>,
}

impl DeliveryReceipt {
    /// For a message that went this way.
    pub const fn new(route: DeliveryRoute) -> Self {
        Self { route, message_id: None, end: None }
    }

    /// For a message that has ended in a record.
    pub(crate) const fn recorded(end: LetterEnd) -> Self {
        Self { route: DeliveryRoute::Recorded, message_id: None, end: Some(end) }
    }

    /// With the platform's own id of the message.
    #[must_use]
    pub fn with_message_id(self, id: impl Into<Arc<str>>) -> Self {
        Self { message_id: Some(id.into()), ..self }
    }
}

impl From<()> for DeliveryReceipt {
    /// Delivered directly.
    fn from((): ()) -> Self {
        Self::new(DeliveryRoute::Direct)
    }
}
