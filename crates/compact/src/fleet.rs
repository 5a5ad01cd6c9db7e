//! Compactions that other processes have made, as a layer has them.

use std::{fmt, future::Future, pin::Pin, sync::Arc};

use steadfast_chat::{Message, SharedVec};
use steadfast_core::CallContext;

use crate::Applied;

/// A compaction of a conversation that another process has made.
pub(crate) struct FoundCompaction {
    pub(crate) applied: Arc<Applied>,
    /// The window it was made for.
    pub(crate) window: u64,
    /// The tokens that it saves in every turn.
    pub(crate) saved: u64,
}

/// A compaction that is sent.
#[cfg_attr(not(feature = "shared"), expect(dead_code, reason = "others are what reads it"))]
pub(crate) struct SentCompaction<'a> {
    pub(crate) applied: &'a Applied,
    /// The messages whose beginning it replaces.
    pub(crate) caller: &'a [Message],
    pub(crate) window: u64,
    pub(crate) saved: u64,
}

/// Asks other processes for a compaction.
pub(crate) type CompactionRead = Pin<Box<dyn Future<Output = Option<FoundCompaction>> + Send>>;

/// Other processes, as a layer has them.
pub(crate) trait ShareCompactions: fmt::Debug + Send + Sync {
    /// Asks for a compaction of the beginning of `caller`, where others have made some.
    fn read(&self, context: &CallContext, caller: &SharedVec<Message>) -> Option<CompactionRead>;

    /// Lets the others know.
    fn put(&self, context: &CallContext, sent: &SentCompaction<'_>);
}
