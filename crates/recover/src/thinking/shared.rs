//! Thinking that was signed, shared with other processes: of a conversation that is another node's so far.

use std::{fmt, sync::Arc, time::Duration};

use steadfast_core::{
    Target,
    shared::{KeyDigest, PutNotices, ReadValue, SharedKey, SharedState, SharedValues},
};
use tokio::time::Instant;

use super::{
    fleet::{AnswerPosition, ShareThinking, ThinkingRead, ThinkingRow},
    memory::Memory,
};

/// Rows of thinking, as values by key; and that there are some of a target, as a kind of fact.
const SPACE: &str = "thinking";

/// What a target is called among processes.
type TargetName = Box<dyn Fn(&Target) -> Option<String> + Send + Sync>;

/// Other processes, as a memory has them.
struct SharedThinking {
    values: SharedValues,
    notices: PutNotices,
    name: TargetName,
    began: Instant,
    keep: Duration,
}

/// Shares what `memory` remembers; whether it did not before.
pub(super) fn share(
    memory: &Memory,
    state: Arc<dyn SharedState>,
    name: impl Fn(&Target) -> Option<String> + Send + Sync + 'static,
) -> bool {
    if memory.is_off() || memory.fleet.get().is_some() {
        return false;
    }
    let shared = SharedThinking {
        values: SharedValues::new(state.clone(), SPACE),
        notices: PutNotices::new(state, SPACE),
        name: Box::new(name),
        began: Instant::now(),
        keep: memory.policy.keep,
    };
    memory.fleet.set(Box::new(shared)).is_ok()
}

impl ShareThinking for SharedThinking {
    fn key(
        &self,
        tenant: Option<&str>,
        target: &Target,
        last: AnswerPosition,
    ) -> Option<SharedKey> {
        let mut digest = KeyDigest::default();
        digest.add_optional(tenant);
        digest.add((self.name)(target)?.as_bytes());
        digest.add_number(last.prefix);
        digest.add_number(last.answer);
        Some(digest.key())
    }

    fn has(&self, target: &Target) -> bool {
        let since = |name: String| self.notices.others(&name, Instant::now());
        (self.name)(target).and_then(since).is_some()
    }

    fn read(&self, key: SharedKey) -> Option<ThinkingRead> {
        let read = self.values.read_since(key, self.began)?;
        Some(Box::pin(async move {
            match read.await {
                ReadValue::Found(value) => serde_json::from_slice(&value).ok(),
                _ => None,
            }
        }))
    }

    fn put(&self, target: &Target, key: SharedKey, row: &ThinkingRow) {
        let Some(name) = (self.name)(target) else { return };
        // Nothing in it can not be written; what is empty would not be read.
        let value = serde_json::to_vec(row).unwrap_or_default();
        if self.values.put(key, value.into(), self.keep) {
            self.notices.put(&name, Instant::now(), self.keep);
        }
    }
}

impl fmt::Debug for SharedThinking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedThinking")
            .field("values", &self.values)
            .field("notices", &self.notices)
            .finish_non_exhaustive()
    }
}
