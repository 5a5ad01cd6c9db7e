//! Shows and steers the state of the layer.

use std::{fmt, sync::Arc, time::Duration};

use steadfast_core::Target;
#[cfg(feature = "shared")]
use steadfast_core::shared::SharedState;
use tokio::time::Instant;

use super::state::RateState;

/// Shows and steers the state of a [`RateLimitLayer`](crate::RateLimitLayer). Cheap to clone; every clone and
/// every service of the layer share one state.
#[derive(Clone)]
pub struct RateHandle(pub(crate) Arc<RateState>);

/// The limits of one key, and what is used of them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RateSnapshot {
    /// The key.
    pub target: Option<Target>,
    /// The limits that are known.
    pub quotas: Vec<QuotaSnapshot>,
    /// Calls under way that count against the concurrency.
    pub in_use: u32,
    /// Calls that wait.
    pub waiting: usize,
    /// Calls let through since the key is known.
    pub admitted: u64,
    /// Those of them that had to wait.
    pub waited: u64,
    /// Calls refused.
    pub refused: u64,
    /// Calls that the provider refused for their rate.
    pub rejected: u64,
    /// How long nothing is let through, after a 429 or [`RateHandle::block`].
    pub blocked_for: Duration,
    /// The part of its limits that this process has, in parts per million: all of it unless it shares them.
    pub part_ppm: u32,
}

/// One limit.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QuotaSnapshot {
    /// What it is of: `requests`, `tokens`, `input` or `output` (tokens).
    pub name: &'static str,
    /// So many in a period.
    pub limit: u64,
    /// The period.
    pub period: Duration,
    /// What is left now.
    pub available: u64,
    /// The provider has stated it; else it is configured.
    pub learned: bool,
}

impl RateHandle {
    /// Every key, by name.
    pub fn snapshot(&self) -> Vec<RateSnapshot> {
        let now = Instant::now();
        let entries = self.0.memory.keys.entries().into_iter();
        let mut keys: Vec<_> = entries.map(|(_, key)| key.snapshot(now)).collect();
        keys.sort_by(|a, b| {
            let name = |key: &RateSnapshot| key.target.as_ref().map(ToString::to_string);
            name(a).cmp(&name(b))
        });
        keys
    }

    /// One key, if there has been a call with it.
    pub fn get(&self, target: &Option<Target>) -> Option<RateSnapshot> {
        self.0.memory.keys.get(target).map(|key| key.snapshot(Instant::now()))
    }

    /// Lets nothing through to a target for a time. Calls that may wait so long wait.
    pub fn block(&self, target: &Option<Target>, time: Duration) {
        self.0.key(target, Instant::now()).update(|quota, now| quota.block(time, now));
    }

    /// Forgets what was learned of a target's limits and what is used of them, for instance once its provider
    /// has raised them. Returns whether there was such a key.
    pub fn reset(&self, target: &Option<Target>) -> bool {
        let key = self.0.memory.keys.get(target);
        if let Some(key) = &key {
            key.update(|quota, _| quota.reset());
        }
        key.is_some()
    }

    /// The same for every target.
    pub fn reset_all(&self) {
        for (_, key) in self.0.memory.keys.entries() {
            key.update(|quota, _| quota.reset());
        }
    }

    /// Shares the limits of targets with other processes: each has the part of them that it needs, leased for two seconds
    /// and renewed twice a second, so that all of them together keep to the limit. Once for a layer, from inside a
    /// tokio runtime; whether this was the first time. See [`shared`](steadfast_core::shared).
    ///
    /// No call waits for the store. While it is away, each process has the part that falls to it of as many as there
    /// were.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    #[cfg(feature = "shared")]
    pub fn share(&self, state: Arc<dyn SharedState>) -> bool {
        self.share_named(state, |target| Some(target.to_string()))
    }

    /// The same, where each target has the `name` there that it has in all processes in which it is the same. The
    /// limits of one without a name are not shared.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    #[cfg(feature = "shared")]
    pub fn share_named(
        &self,
        state: Arc<dyn SharedState>,
        name: impl Fn(&Target) -> Option<String> + Send + Sync + 'static,
    ) -> bool {
        super::shared::share(&self.0.memory, state, name)
    }

    /// Drops what is known of the targets that `keep` does not want: for targets that are configured no more, and
    /// for those whose key or address is another one now. Calls under way and calls that wait keep what they
    /// have, and concern nobody else any more. What is known of requests without a target is kept.
    pub fn retain(&self, keep: impl Fn(&Target) -> bool) {
        self.0.memory.keys.retain(|target, _| target.as_ref().is_none_or(&keep));
    }
}

impl fmt::Debug for RateHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateHandle").field("keys", &self.0.memory.keys.len()).finish()
    }
}
