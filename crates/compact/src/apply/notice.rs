//! What the head of an answer says of compactions.

use std::{fmt, sync::Arc};

use steadfast_core::{Head, Message, SharedVec};

use super::{Applied, CompactionReport};
use crate::Degraded;

/// What a [`CompactionLayer`](crate::CompactionLayer) says of an answer, in its head; nothing where
/// there was room enough.
///
/// ```
/// use steadfast_compact::Notice;
/// # use steadfast_core::{Dialect, Head};
/// # let head = Head::new(Dialect::OpenAi);
///
/// if let Some(notice) = Notice::of(&head) {
///     println!("{} of {} tokens are used", notice.tokens + notice.reserve, notice.window);
/// }
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Notice {
    /// The model's window, in tokens.
    pub window: u64,
    /// Tokens of it that were kept for the answer.
    pub reserve: u64,
    /// Input tokens of the request as it was sent: the upper end of the estimate.
    pub tokens: u64,
    /// The window is filling: soon the conversation will be compacted.
    pub warning: bool,
    /// The compactions that were made for this answer, in order.
    pub reports: Vec<CompactionReport>,
    /// Why none of them has a summary, when it should have.
    pub degraded: Option<Degraded>,
    /// A compaction was started for the next turn.
    pub deferred: bool,
    /// The layer leaves this conversation alone, after errors of its own.
    pub switched_off: bool,
    /// What was sent instead of the caller's messages, when that was something else.
    pub compacted: Option<Compacted>,
}

/// What was sent instead of the caller's messages.
#[derive(Clone)]
#[non_exhaustive]
pub struct Compacted {
    /// The messages as they were sent.
    pub messages: SharedVec<Message>,
    /// The tokens that this saved.
    pub saved: u64,
    pub(crate) applied: Arc<Applied>,
}

impl Compacted {
    /// Where the message at `index` stood in the caller's own list; `None` for a summary, for a
    /// message in which something became a marker, and beyond the end.
    pub fn origin(&self, index: usize) -> Option<usize> {
        if index >= self.messages.len() {
            return None;
        }
        self.applied.original(index)
    }
}

impl Notice {
    /// What the layer says in the head of an answer.
    pub fn of(head: &Head) -> Option<&Self> {
        head.extensions.get::<Arc<Self>>().map(AsRef::as_ref)
    }

    pub(crate) fn put(self, head: &mut Head) {
        head.extensions.insert(Arc::new(self));
    }
}

impl fmt::Debug for Compacted {
    /// Shows shapes, not contents: prompts are private.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compacted")
            .field("messages", &self.messages.len())
            .field("saved", &self.saved)
            .finish_non_exhaustive()
    }
}
