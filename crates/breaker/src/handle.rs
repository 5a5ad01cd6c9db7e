//! Looking at the breakers of a layer, and steering them.

use std::{
    fmt,
    hash::Hash,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

#[cfg(feature = "shared")]
use steadfast_core::shared::SharedState;
use steadfast_core::{
    Reason, Target,
    circuit::{Circuit, CircuitState, Moment, Restored, Transition},
    time::WallClock,
};
use tokio::{sync::broadcast, time::Instant};

use crate::{BreakerPolicy, BreakerSnapshot, BreakerTransition, SavedBreaker, state::Breakers};

/// Looks at the breakers of one layer, and steers them. Cheap to clone.
///
/// ```
/// use steadfast_breaker::CircuitBreakerLayer;
/// use steadfast_core::{Target, circuit::CircuitState};
///
/// let layer = CircuitBreakerLayer::default();
/// let handle = layer.handle();
/// let key = Some(Target::new("openai").with_model("gpt-4o"));
///
/// handle.force_open(&key);
/// assert_eq!(handle.get(&key).map(|breaker| breaker.circuit.state), Some(CircuitState::ForcedOpen));
/// handle.reset(&key);
/// assert_eq!(handle.get(&key).map(|breaker| breaker.circuit.state), Some(CircuitState::Closed));
/// ```
pub struct BreakerHandle<K = Option<Target>> {
    breakers: Arc<Breakers<K>>,
}

impl<K> BreakerHandle<K> {
    pub(crate) fn new(breakers: Arc<Breakers<K>>) -> Self {
        Self { breakers }
    }

    pub(crate) fn breakers(&self) -> &Arc<Breakers<K>> {
        &self.breakers
    }
}

impl<K> BreakerHandle<K>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
{
    /// Every breaker as it stands, in no order. Breakers whose key has been idle for long are
    /// forgotten, unless they are open or forced.
    pub fn snapshot(&self) -> Vec<BreakerSnapshot<K>> {
        let now = Instant::now();
        self.breakers.all().into_iter().map(|breaker| breaker.snapshot(now)).collect()
    }

    /// The breaker of `key` as it stands, if there has been a call for it.
    pub fn get(&self, key: &K) -> Option<BreakerSnapshot<K>> {
        self.breakers.get(key).map(|breaker| breaker.snapshot(Instant::now()))
    }

    /// Refuses calls for `key` until it is [`reset`](Self::reset), except the
    /// [lone](BreakerPolicy::lone) ones. Calls under way are not touched, and decide nothing. Says
    /// whether that changed anything.
    pub fn force_open(&self, key: &K) -> bool {
        self.steer(key, |circuit, now| circuit.force(now, CircuitState::ForcedOpen))
    }

    /// Lets every call for `key` pass until it is [`reset`](Self::reset), and counts them. Says
    /// whether that changed anything.
    pub fn force_closed(&self, key: &K) -> bool {
        self.steer(key, |circuit, now| circuit.force(now, CircuitState::ForcedClosed))
    }

    /// Refuses every call for `key` until it is [`reset`](Self::reset), even those that have
    /// nowhere else to go. Says whether that changed anything.
    pub fn isolate(&self, key: &K) -> bool {
        self.steer(key, |circuit, now| circuit.force(now, CircuitState::Isolated))
    }

    /// Opens the breaker of `key` for `cooldown` as a failure with that hint would, or makes it
    /// rest longer if it is open already: for verdicts that were reached elsewhere. What is forced
    /// stays. Says whether it opened.
    pub fn trip(&self, key: &K, reason: Reason, cooldown: Duration) -> bool {
        self.steer(key, |circuit, now| circuit.trip(now, reason, cooldown))
    }

    /// Closes the breaker of `key` with nothing counted, whatever it was, forced included. Calls
    /// under way decide nothing. Says whether that changed its state.
    pub fn reset(&self, key: &K) -> bool {
        self.breakers.get(key).is_some_and(|breaker| breaker.steer(Circuit::reset))
    }

    /// Resets every breaker, as after a change of configuration. Says how many were not closed.
    pub fn reset_all(&self) -> usize {
        self.breakers.all().into_iter().filter(|breaker| breaker.steer(Circuit::reset)).count()
    }

    /// Forgets `key`, its forced state included: for a target that no longer exists. Says whether
    /// there was anything to forget.
    pub fn forget(&self, key: &K) -> bool {
        self.breakers.remove(key)
    }

    /// The breakers that rest, for another process to go on with; see [`SavedCircuit`]. In no order.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use steadfast_breaker::CircuitBreakerLayer;
    /// use steadfast_core::{Reason, Target};
    ///
    /// let handle = CircuitBreakerLayer::default().handle();
    /// handle.trip(&Some(Target::new("openai")), Reason::Overloaded, Duration::from_secs(60));
    /// let saved = handle.save();
    ///
    /// // After a restart, before the first call. What is configured no more is left out.
    /// let handle = CircuitBreakerLayer::default().handle();
    /// let counts = handle.restore(&saved, |target| target.is_some());
    /// assert_eq!((counts.restored, counts.unknown), (1, 0));
    /// assert!(handle.snapshot()[0].circuit.until.is_some());
    /// ```
    ///
    /// [`SavedCircuit`]: steadfast_core::circuit::SavedCircuit
    pub fn save(&self) -> Vec<SavedBreaker<K>> {
        let clock = WallClock::now();
        self.breakers.all().into_iter().filter_map(|breaker| breaker.save(clock)).collect()
    }

    /// Goes on with the rests of `saved` whose key is `known`, for what is left of them. A breaker that is not
    /// closed is left as it is. Each that rests by it is reported as opened, with the cause
    /// [`Restored`](steadfast_core::circuit::CircuitCause::Restored).
    pub fn restore(&self, saved: &[SavedBreaker<K>], known: impl Fn(&K) -> bool) -> Restored {
        let clock = WallClock::now();
        let policy = self.policy();
        let mut counts = Restored::default();
        for one in saved {
            let count = if !known(&one.key) {
                &mut counts.unknown
            } else if one.circuit.is_live(&policy.circuit_for(one.routed), clock)
                && self.breakers.get_or_insert(&one.key, clock.at()).restore(one, clock)
            {
                &mut counts.restored
            } else {
                &mut counts.expired
            };
            *count += 1;
        }
        counts
    }

    /// Judge and report but refuse nothing (`true`), or refuse again (`false`).
    pub fn set_observe(&self, observe: bool) {
        self.breakers.common.observe.store(observe, Ordering::Relaxed);
    }

    /// Changes of state from now on. Bounded: a subscriber that is 256 behind loses the oldest and
    /// learns how many.
    ///
    /// They are sent after the breaker's lock has been released, so those of two calls that ended
    /// at the same moment may arrive in either order; `generation` says which was first.
    pub fn subscribe(&self) -> broadcast::Receiver<BreakerTransition<K>> {
        self.breakers.common.transitions.subscribe()
    }

    /// What the breakers go by.
    pub fn policy(&self) -> Arc<BreakerPolicy> {
        self.breakers.policy()
    }

    fn steer(
        &self,
        key: &K,
        change: impl FnOnce(&mut Circuit, Moment) -> Option<Transition>,
    ) -> bool {
        self.breakers.get_or_insert(key, Instant::now()).steer(change)
    }
}

#[cfg(feature = "shared")]
impl BreakerHandle {
    /// Shares what rests with other processes: a target whose breaker one of them has opened is left alone by all, and
    /// asked by all when one has seen that it is back; of those that could see that, one does. Once for a layer,
    /// from inside a tokio runtime; whether this was the first time. See [`shared`](steadfast_core::shared).
    ///
    /// Nothing of it waits for the store. What is forced by hand holds in its process. A breaker whose key names a
    /// provider, model and credential is taken to be that of the same ones in all processes; where names may
    /// stand for others, [say so](Self::share_named). That of calls without a target is not shared.
    ///
    /// ```
    /// use std::{sync::Arc, time::Duration};
    ///
    /// use steadfast_breaker::CircuitBreakerLayer;
    /// use steadfast_core::{Reason, Target, circuit::CircuitState, shared::EmbeddedStore};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() {
    /// let store = EmbeddedStore::new();
    /// let [one, other] = ["one", "other"].map(|name| {
    ///     let handle = CircuitBreakerLayer::default().handle();
    ///     assert!(handle.share(Arc::new(store.join(name))));
    ///     handle
    /// });
    /// let key = Some(Target::new("openai"));
    /// one.trip(&key, Reason::Overloaded, Duration::from_secs(60));
    /// tokio::time::sleep(Duration::from_millis(1)).await;
    /// assert_eq!(other.get(&key).map(|breaker| breaker.circuit.state), Some(CircuitState::Open));
    /// # }
    /// ```
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn share(&self, state: Arc<dyn SharedState>) -> bool {
        self.share_named(state, |key| key.as_ref().map(Target::to_string))
    }
}

#[cfg(feature = "shared")]
impl<K> BreakerHandle<K>
where
    K: Hash + Eq + Clone + Send + Sync + serde::Serialize + serde::de::DeserializeOwned + 'static,
{
    /// The same, where each key has the `name` there that it has in all processes in which it means the same. One
    /// without a name is not shared.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn share_named(
        &self,
        state: Arc<dyn SharedState>,
        name: impl Fn(&K) -> Option<String> + Send + Sync + 'static,
    ) -> bool {
        crate::shared::share(&self.breakers, state, name)
    }
}

impl<K> Clone for BreakerHandle<K> {
    fn clone(&self) -> Self {
        Self { breakers: self.breakers.clone() }
    }
}

impl<K> fmt::Debug for BreakerHandle<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BreakerHandle").field("breakers", &self.breakers).finish()
    }
}
