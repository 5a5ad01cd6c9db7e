//! What is reported of compactions: of each one, and in the head of an answer.

use std::{fmt, sync::Arc};

use steadfast_chat::{Head, Message, SharedVec};

use super::Applied;
use crate::Degraded;

/// How much was done to a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Tier {
    /// Nothing.
    None,
    /// Large results and arguments became markers.
    Strip,
    /// A summary replaces older messages.
    Summary,
    /// A summary replaces the oldest half of what may go.
    Partial,
    /// Older messages were removed, and a list of facts replaces them: an emergency
    /// truncation.
    Fallback,
}

impl Tier {
    /// The name used in logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Tier::None => "none",
            Tier::Strip => "strip",
            Tier::Summary => "summary",
            Tier::Partial => "partial",
            Tier::Fallback => "fallback",
        }
    }
}

/// The effect of a compaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Effect {
    /// The target was reached.
    Effective,
    /// The target was not reached, but the result is below the next compaction's trigger.
    Eased,
    /// It fits the window and nothing more: the next turn will need another.
    Tight,
    /// It did not help and was undone: the request is as it was, and fits the window.
    Ineffective,
}

impl Effect {
    /// The name used in logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Effect::Effective => "effective",
            Effect::Eased => "eased",
            Effect::Tight => "tight",
            Effect::Ineffective => "ineffective",
        }
    }
}

/// What a compaction did: in input tokens, and in messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CompactionReport {
    /// How much was done.
    pub tier: Tier,
    /// Its effect.
    pub effect: Effect,
    /// Tokens before.
    pub before: u64,
    /// Tokens after.
    pub after: u64,
    /// Tokens of all that is never changed.
    pub floor: u64,
    /// Tokens it was to come down to: the policy's target, or what replaced it ([`Effect`]).
    pub target: u64,
    /// Messages that are still there, changed or not; the summary not counted.
    pub kept: usize,
    /// Messages that were removed.
    pub dropped: usize,
    /// Results and arguments that became markers.
    pub stripped: usize,
    /// Repairs that the provider's rules required.
    pub repaired: usize,
    /// Blocks of signed thinking that were dropped, since they were bound to what was changed.
    pub unbound: usize,
}

impl fmt::Display for CompactionReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "tier={} effect={} before={} after={} floor={} target={} kept={} dropped={} stripped={}",
            self.tier.as_str(),
            self.effect.as_str(),
            self.before,
            self.after,
            self.floor,
            self.target,
            self.kept,
            self.dropped,
            self.stripped
        )
    }
}

/// What a [`CompactionLayer`](crate::CompactionLayer) reports in the head of an answer; none where
/// there was room enough.
///
/// ```
/// use steadfast_compact::Notice;
/// # use steadfast_chat::Head;
/// # use steadfast_core::Dialect;
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
    /// The layer does not compact this conversation any more, after internal errors.
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
    /// What the layer reports in the head of an answer.
    pub fn of(head: &Head) -> Option<&Self> {
        head.extensions.get::<Arc<Self>>().map(AsRef::as_ref)
    }

    pub(crate) fn put(self, head: &mut Head) {
        head.extensions.insert(Arc::new(self));
    }
}

impl fmt::Debug for Compacted {
    /// Without contents: prompts are private.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compacted").finish_non_exhaustive()
    }
}
