//! What a request leaves to its provider to remember.

use steadfast_core::Target;

use crate::{Message, SharedVec};

/// What a request leaves to its provider to remember: in OpenAI's Responses API it may name the response that it
/// goes on from, and items by their ids, instead of saying them again.
///
/// Who remembers what has passed says it again in its place ([`ChatRequest::replay`](crate::ChatRequest::replay)):
/// then layers see the whole conversation, and it can go on at a provider that keeps nothing of it.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ProviderState {
    /// The response before it (`previous_response_id`).
    pub previous: Option<Box<str>>,
    /// The conversation that it is a part of (`conversation`).
    pub conversation: Option<Box<str>>,
    /// Items are named by their ids (`item_reference`).
    pub has_references: bool,
    /// Something compacted is in it (`compaction`), which only who made it can read.
    pub has_compaction: bool,
    /// It asks for a compaction instead of an answer (`compaction_trigger`).
    pub asks_for_compaction: bool,
    /// The answer is not to be kept (`store: false`).
    pub unstored: bool,
    /// The first message is what the request says as `instructions`, which hold for one answer alone.
    pub has_instructions: bool,
    whole: Option<Replay>,
}

/// A conversation that is replayed.
#[derive(Clone, Debug)]
struct Replay {
    /// Who keeps what was left out, if anybody does.
    at: Option<Target>,
    messages: SharedVec<Message>,
}

impl ProviderState {
    /// Whether what it leaves to its provider is in its messages, too.
    pub fn is_replayed(&self) -> bool {
        self.whole.is_some()
    }

    /// With all of the conversation, of which `at` keeps what the request left out.
    pub(crate) fn replayed(mut self, at: Option<Target>, messages: SharedVec<Message>) -> Self {
        self.whole = Some(Replay { at, messages });
        self
    }

    /// Whether `target` keeps what is replayed: under the same credential, as others may not ask for it.
    pub(crate) fn is_kept_at(&self, target: &Target) -> bool {
        self.whole.as_ref().and_then(|whole| whole.at.as_ref()).is_some_and(|at| {
            at.provider() == target.provider() && at.credential() == target.credential()
        })
    }

    /// Whether `messages` are those that were replayed, and nobody has changed them since.
    pub(crate) fn is_unchanged(&self, messages: &SharedVec<Message>) -> bool {
        self.whole.as_ref().is_some_and(|whole| whole.messages.same(messages))
    }
}
