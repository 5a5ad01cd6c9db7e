//! Conversations that were moved, shared with other processes: those of a node that does not know one read where it is.

use std::{fmt, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use steadfast_core::{
    Call, Target,
    shared::{KeyDigest, PutNotices, ReadValue, SharedState, SharedValues},
    time::WallClock,
};
use tokio::time::Instant;

use super::TargetName;
use crate::affinity::{Affinity, AffinityLookup, Sessions, ShareSessions};

/// Where conversations are, as values by key; and that some were moved, as a kind of fact.
const SPACE: &str = "moved";

/// What that fact is about.
const ALL: &str = "conversations";

/// Other processes, as conversations have them.
struct Moved {
    values: SharedValues,
    notices: PutNotices,
    name: TargetName,
}

/// Where a conversation is, as others read it.
#[derive(Debug, Deserialize, Serialize)]
struct SavedAffinity {
    target: Target,
    /// What the target is called: one that has these parts may be another one elsewhere.
    name: String,
    /// By the store's clock, in milliseconds since 1970.
    until_ms: u64,
    #[serde(default)]
    mixed: bool,
}

/// Shares where the conversations in `sessions` are.
pub(super) fn share(sessions: &Sessions, state: Arc<dyn SharedState>, name: TargetName) {
    let moved = Moved {
        values: SharedValues::new(state.clone(), SPACE),
        notices: PutNotices::new(state, SPACE),
        name,
    };
    // Whoever was first has the same.
    let _ = sessions.fleet.set(Box::new(moved));
}

impl ShareSessions for Moved {
    fn key(&self, request: &dyn Call, is_named: bool) -> Option<KeyDigest> {
        let context = request.context();
        if let Some(session) = context.session().filter(|_| is_named) {
            return Some(self.key_of(context.tenant(), session));
        }
        let mut digest = KeyDigest::default();
        digest.add(b"unnamed");
        digest.add_optional(context.tenant());
        let mut has_text = false;
        request.beginning_texts(&mut |text| {
            has_text = true;
            digest.add_sample(text);
        });
        // Those that begin without a text are all alike.
        has_text.then_some(digest)
    }

    fn key_of(&self, tenant: Option<&str>, session: &str) -> KeyDigest {
        let mut digest = KeyDigest::default();
        digest.add(b"named");
        digest.add_optional(tenant);
        digest.add(session.as_bytes());
        digest
    }

    fn look_up(&self, key: &KeyDigest, known_at: Option<Instant>) -> Option<AffinityLookup> {
        let since = self.notices.others(ALL, Instant::now())?;
        if known_at.is_some_and(|at| at >= since) {
            return None;
        }
        let read = self.values.read_since(key.key(), since)?;
        let (name, values) = (self.name.clone(), self.values.clone());
        Some(Box::pin(async move {
            match read.await {
                ReadValue::Found(value) => affinity(&value, &name, values.clock()),
                _ => None,
            }
        }))
    }

    fn put(&self, key: &KeyDigest, affinity: Option<&Affinity>, now: Instant, ttl: Duration) {
        let key = key.key();
        let Some(affinity) = affinity else {
            self.values.put(key, Vec::new().into(), ttl);
            return;
        };
        let Some(name) = (self.name)(&affinity.target) else { return };
        let clock = self.values.clock();
        let Affinity { target, until, mixed } = affinity;
        let saved = SavedAffinity {
            target: target.clone(),
            name,
            until_ms: clock.to_unix_ms(*until),
            mixed: *mixed,
        };
        // Nothing in it can not be written; without its parts it would not be read.
        let value = serde_json::to_vec(&saved).unwrap_or_default();
        let lasts = until.saturating_duration_since(now);
        self.values.put(key, value.into(), lasts);
        self.notices.put(ALL, now, lasts);
    }
}

/// What `value` says, where its target is the same one here.
fn affinity(value: &[u8], name: &TargetName, clock: WallClock) -> Option<Affinity> {
    let saved: SavedAffinity = serde_json::from_slice(value).ok()?;
    let is_same = name(&saved.target).is_some_and(|own| own == saved.name);
    is_same.then(|| Affinity {
        until: clock.to_instant(saved.until_ms),
        target: saved.target,
        mixed: saved.mixed,
    })
}

impl fmt::Debug for Moved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Moved")
            .field("values", &self.values)
            .field("notices", &self.notices)
            .finish_non_exhaustive()
    }
}
