//! Looking at the breakers of a layer, and steering them.

use std::{
    fmt,
    hash::Hash,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use steadfast_core::{Reason, Target};
use tokio::{sync::broadcast, time::Instant};

use crate::{BreakerPolicy, Snapshot, Transition, cell::Shared, state::Machine};

/// Looks at the breakers of one layer, and steers them. Cheap to clone.
///
/// ```
/// use steadfast_breaker::{CircuitBreakerLayer, State};
/// use steadfast_core::Target;
///
/// let layer = CircuitBreakerLayer::default();
/// let handle = layer.handle();
/// let key = Some(Target::new("openai").with_model("gpt-4o"));
///
/// handle.force_open(&key);
/// assert_eq!(handle.get(&key).map(|breaker| breaker.state), Some(State::ForcedOpen));
/// handle.reset(&key);
/// assert_eq!(handle.get(&key).map(|breaker| breaker.state), Some(State::Closed));
/// ```
pub struct BreakerHandle<K = Option<Target>> {
    shared: Arc<Shared<K>>,
}

impl<K> BreakerHandle<K> {
    pub(crate) fn new(shared: Arc<Shared<K>>) -> Self {
        Self { shared }
    }
}

impl<K> BreakerHandle<K>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
{
    /// Every breaker as it stands, in no order. Breakers whose key has been idle for long are
    /// forgotten, unless they are open or forced.
    pub fn snapshot(&self) -> Vec<Snapshot<K>> {
        let now = Instant::now();
        self.shared.all().into_iter().map(|cell| cell.snapshot(now)).collect()
    }

    /// The breaker of `key` as it stands, if there has been a call for it.
    pub fn get(&self, key: &K) -> Option<Snapshot<K>> {
        self.shared.get(key).map(|cell| cell.snapshot(Instant::now()))
    }

    /// Refuses calls for `key` until it is [`reset`](Self::reset), except those that the panic rule
    /// lets through. Calls under way are not touched, and decide nothing. Says whether that changed
    /// anything.
    pub fn force_open(&self, key: &K) -> bool {
        self.steer(key, Machine::force_open)
    }

    /// Lets every call for `key` pass until it is [`reset`](Self::reset), and counts them. Says
    /// whether that changed anything.
    pub fn force_closed(&self, key: &K) -> bool {
        self.steer(key, Machine::force_closed)
    }

    /// Refuses every call for `key` until it is [`reset`](Self::reset), even those that have
    /// nowhere else to go. Says whether that changed anything.
    pub fn isolate(&self, key: &K) -> bool {
        self.steer(key, Machine::isolate)
    }

    /// Opens the breaker of `key` for `cooldown` as a failure with that hint would, or makes it
    /// rest longer if it is open already: for verdicts that were reached elsewhere. What is forced
    /// stays. Says whether it opened.
    pub fn trip(&self, key: &K, reason: Reason, cooldown: Duration) -> bool {
        self.steer(key, |machine, now| machine.trip(now, reason, cooldown))
    }

    /// Closes the breaker of `key` with nothing counted, whatever it was, forced included. Calls
    /// under way decide nothing. Says whether that changed its state.
    pub fn reset(&self, key: &K) -> bool {
        self.shared.get(key).is_some_and(|cell| cell.steer(Machine::reset))
    }

    /// Resets every breaker, as after a change of configuration. Says how many were not closed.
    pub fn reset_all(&self) -> usize {
        self.shared.all().into_iter().filter(|cell| cell.steer(Machine::reset)).count()
    }

    /// Forgets `key`, its forced state included: for a target that no longer exists. Says whether
    /// there was anything to forget.
    pub fn forget(&self, key: &K) -> bool {
        self.shared.remove(key)
    }

    /// Judge and report but refuse nothing (`true`), or refuse again (`false`).
    pub fn observe(&self, observe: bool) {
        self.shared.common.observe.store(observe, Ordering::Relaxed);
    }

    /// Changes of state from now on. Bounded: a subscriber that is 256 behind loses the oldest and
    /// is told how many.
    ///
    /// They are sent after the breaker's lock has been released, so those of two calls that ended
    /// at the same moment may arrive in either order; `generation` tells which was first.
    pub fn subscribe(&self) -> broadcast::Receiver<Transition<K>> {
        self.shared.common.transitions.subscribe()
    }

    /// What the breakers go by.
    pub fn policy(&self) -> &BreakerPolicy {
        &self.shared.common.policy
    }

    fn steer(
        &self,
        key: &K,
        change: impl FnOnce(&mut Machine, Instant) -> Option<crate::state::Change>,
    ) -> bool {
        self.shared.get_or_insert(key, Instant::now()).steer(change)
    }
}

impl<K> Clone for BreakerHandle<K> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

impl<K> fmt::Debug for BreakerHandle<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BreakerHandle").field("shared", &self.shared).finish()
    }
}
