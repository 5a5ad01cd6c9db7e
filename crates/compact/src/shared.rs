//! Compactions of conversations, shared with other processes: whoever has the next turn goes on with the summary that
//! there is, and with the beginning that a provider has in its cache.

use std::{fmt, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use steadfast_chat::{Message, Part, Role, SharedVec};
use steadfast_core::{
    CallContext,
    shared::{KeyDigest, PutNotices, ReadValue, SharedKey, SharedState, SharedValues},
};
use tokio::time::Instant;

use crate::{
    Applied, Summary,
    fleet::{CompactionRead, FoundCompaction, SentCompaction, ShareCompactions},
    state::{LayerState, REMEMBER},
};

/// Compactions, as values by key; and that there are some, as a kind of fact.
const SPACE: &str = "compactions";

/// What that fact is about.
const ALL: &str = "conversations";

/// Other processes, as a layer has them.
struct SharedCompactions {
    values: SharedValues,
    notices: PutNotices,
    keep: Duration,
}

/// A compaction, as others read it.
#[derive(Deserialize, Serialize)]
struct SavedCompaction {
    /// How many messages it replaces, and what they are known by.
    replaced: usize,
    original: String,
    compacted: Vec<SavedMessage>,
    summary: Option<Summary>,
    window: u64,
    saved: u64,
    /// Of how many messages it was first sent.
    sent: usize,
}

/// A message that replaces others.
#[derive(Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
enum SavedMessage {
    /// The original one of this index.
    Original(usize),
    New(Message),
}

/// Shares the compactions of `layer`, where they are not shared yet.
pub(crate) fn share(layer: &LayerState, state: Arc<dyn SharedState>) {
    layer.memory.fleet.get_or_init(|| {
        Box::new(SharedCompactions {
            values: SharedValues::new(state.clone(), SPACE),
            notices: PutNotices::new(state, SPACE),
            keep: layer.config.remember.unwrap_or(REMEMBER).idle,
        })
    });
}

/// By what a conversation is known: by its names, and by how it begins. What is read of it is compared all the same.
fn key(context: &CallContext, messages: &[Message]) -> SharedKey {
    let mut digest = KeyDigest::default();
    for name in [context.tenant(), context.agent(), context.session()] {
        digest.add_optional(name);
    }
    let first = messages.iter().find(|message| message.role() != Role::System);
    for text in first.into_iter().flat_map(Message::parts).filter_map(Part::as_text) {
        digest.add_sample(text.as_bytes());
    }
    digest.key()
}

/// What messages are known by: by all that they say.
fn original(messages: &[Message]) -> Option<String> {
    let mut digest = KeyDigest::default();
    for message in messages {
        let raw = message.dialect().and_then(|dialect| Some((dialect, message.raw(dialect)?)));
        match raw {
            Some((dialect, raw)) => {
                digest.add(dialect.as_str().as_bytes());
                digest.add(message.role().as_str().as_bytes());
                digest.add(raw.get().as_bytes());
            }
            None => digest.add(&serde_json::to_vec(message).ok()?),
        }
    }
    Some(digest.key().text())
}

impl ShareCompactions for SharedCompactions {
    fn read(&self, context: &CallContext, caller: &SharedVec<Message>) -> Option<CompactionRead> {
        let now = Instant::now();
        self.notices.others(ALL, now)?;
        // A compaction is seldom, so each asks.
        let read = self.values.read(key(context, caller))?;
        let caller = caller.clone();
        Some(Box::pin(async move {
            match read.await {
                ReadValue::Found(value) => found(&value, &caller),
                _ => None,
            }
        }))
    }

    fn put(&self, context: &CallContext, sent: &SentCompaction<'_>) {
        let SentCompaction { applied, caller, window, saved } = *sent;
        let Some(original) = caller.get(..applied.replaced()).and_then(original) else { return };
        let saved = SavedCompaction {
            replaced: applied.replaced(),
            original,
            compacted: applied
                .replacement()
                .map(|(message, origin)| {
                    origin
                        .map_or_else(|| SavedMessage::New(message.clone()), SavedMessage::Original)
                })
                .collect(),
            summary: applied.summary().cloned(),
            window,
            saved,
            sent: applied.is_sent(caller.len()),
        };
        let Ok(value) = serde_json::to_vec(&saved) else { return };
        if self.values.put(key(context, caller), value.into(), self.keep) {
            self.notices.put(ALL, Instant::now(), self.keep);
        }
    }
}

/// What `value` says, where it is of the beginning of `caller`.
fn found(value: &[u8], caller: &[Message]) -> Option<FoundCompaction> {
    let saved: SavedCompaction = serde_json::from_slice(value).ok()?;
    let replaced = caller.get(..saved.replaced)?;
    if original(replaced)? != saved.original {
        return None;
    }
    let message = |one: SavedMessage| match one {
        SavedMessage::Original(at) => replaced.get(at).cloned(),
        SavedMessage::New(message) => Some(message),
    };
    let compacted = saved.compacted.into_iter().map(message).collect::<Option<Vec<_>>>()?;
    let applied = Applied::new(replaced.to_vec(), compacted, saved.summary);
    applied.is_sent(saved.sent);
    let (window, saved) = (saved.window, saved.saved);
    Some(FoundCompaction { applied: Arc::new(applied), window, saved })
}

impl fmt::Debug for SharedCompactions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedCompactions")
            .field("values", &self.values)
            .field("notices", &self.notices)
            .finish_non_exhaustive()
    }
}
