//! What is remembered of one conversation.

use std::sync::Arc;

use parking_lot::Mutex;
use steadfast_chat::Message;
use steadfast_core::Keep;
use tokio::sync::Notify;

use crate::{Applied, ConversationId, Tape};

/// Turns in a row to which a compaction did not apply, after which another may take its place: until
/// then two histories go by one name.
const STALE: u32 = 3;

/// What is remembered of one conversation.
#[derive(Debug)]
pub(crate) struct Conversation {
    pub(crate) id: ConversationId,
    pub(crate) book: Mutex<Book>,
    /// A compaction is over.
    freed: Notify,
}

#[derive(Debug, Default)]
pub(crate) struct Book {
    pub(crate) tape: Tape,
    /// Which count the tape holds.
    pub(crate) counted: u64,
    /// The last body that nobody had to look into.
    pub(crate) wire: Option<Wire>,
    pub(crate) applied: Option<Arc<Applied>>,
    /// The window it was made for.
    window: u64,
    /// Turns in a row to which it did not apply.
    stale: u32,
    /// Moves on when what is remembered is replaced.
    pub(crate) generation: u64,
    /// A compaction is under way.
    pub(crate) busy: bool,
    pub(crate) warned: bool,
    /// Compactions in a row that did not help.
    pub(crate) ineffective: u32,
    /// Errors of the layer's own.
    pub(crate) throws: u32,
    pub(crate) off: bool,
    pub(crate) compactions: u64,
    /// What the compactions that stand have saved.
    pub(crate) saved: u64,
    /// The last count.
    pub(crate) tokens: u64,
}

/// A body, and what the provider said it came to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wire {
    pub(crate) model: u64,
    pub(crate) bytes: usize,
    pub(crate) tokens: u64,
}

impl Conversation {
    pub(crate) fn new(id: ConversationId) -> Self {
        Self { id, book: Mutex::default(), freed: Notify::new() }
    }

    /// The right to compact it; else what to wait for.
    pub(crate) fn take(self: &Arc<Self>) -> Option<Flight> {
        let mut book = self.book.lock();
        if std::mem::replace(&mut book.busy, true) {
            return None;
        }
        Some(Flight { generation: book.generation, conversation: self.clone() })
    }

    /// Waits for the compaction that is under way when this is called.
    pub(crate) fn waiting(&self) -> impl Future<Output = ()> + '_ {
        self.freed.notified()
    }
}

impl Keep for Conversation {}

/// The right to compact a conversation; given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) conversation: Arc<Conversation>,
    /// What was remembered when it began.
    pub(crate) generation: u64,
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.conversation.book.lock().busy = false;
        self.conversation.freed.notify_waiters();
    }
}

impl Book {
    /// What stands for the beginning of `history` in a window of this size, if anything does: what was
    /// compacted for a smaller one may have room in a larger.
    pub(crate) fn standing(&mut self, history: &[Message], window: u64) -> Option<Arc<Applied>> {
        let applied = self.applied.as_ref()?;
        if window > self.window {
            return None;
        }
        if applied.covers(history) {
            self.stale = 0;
            return Some(applied.clone());
        }
        None
    }

    /// What is remembered did not apply to a turn.
    pub(crate) fn missed(&mut self) {
        self.stale = self.stale.saturating_add(u32::from(self.applied.is_some()));
    }

    /// Whether what is remembered may be replaced by a compaction of `history`: not while it is of
    /// use to another history.
    pub(crate) fn may_replace(&self, history: &[Message]) -> bool {
        self.stale >= STALE || self.covers(history)
    }

    /// Whether nothing is remembered of another history.
    pub(crate) fn covers(&self, history: &[Message]) -> bool {
        self.applied.as_ref().is_none_or(|applied| applied.covers(history))
    }

    /// Forgets what was compacted.
    pub(crate) fn forget(&mut self) {
        self.applied = None;
        self.stale = 0;
        self.saved = 0;
        self.generation += 1;
        self.tape.compacted();
    }

    /// Takes over a compaction.
    pub(crate) fn keep(&mut self, applied: Arc<Applied>, window: u64, saved: u64) {
        self.applied = Some(applied);
        self.window = window;
        self.stale = 0;
        self.generation += 1;
        self.compactions += 1;
        self.saved = saved;
        self.wire = None;
        self.tape.compacted();
    }
}
