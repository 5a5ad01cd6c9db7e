//! Which providers are degraded: known to the layer that observes them, asked by others.

use std::{
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::RwLock;
use tokio::time::Instant;

use crate::time::later;

/// The providers that are degraded at the moment: a shared handle, cheap to clone.
///
/// The layer that observes providers, [`ProviderHealthLayer`][layer], writes it. Others ask it what they may
/// leave to a better moment or to another provider. While no provider is degraded, that costs them one load.
///
/// A provider that is avoided could never be seen to be well again. So from time to time one call may be made
/// as if it were not degraded, [as a probe](Self::acquire_probe).
///
/// ```
/// use std::time::Duration;
/// use steadfast_core::DegradedProviders;
/// use tokio::time::Instant;
///
/// let (degraded, now) = (DegradedProviders::default(), Instant::now());
/// assert!(degraded.is_empty());
///
/// degraded.insert("openai", now, Duration::from_secs(10));
/// assert!(degraded.contains("openai") && !degraded.contains("anthropic"));
/// assert!(!degraded.acquire_probe("openai", now), "too early");
/// assert!(degraded.acquire_probe("openai", now + Duration::from_secs(10)));
///
/// degraded.remove("openai");
/// assert!(degraded.is_empty());
/// ```
///
/// [layer]: https://docs.rs/steadfast-health
#[derive(Clone, Default)]
pub struct DegradedProviders(Arc<Shared>);

#[derive(Default)]
struct Shared {
    /// How many entries there are, to be read without the lock.
    count: AtomicUsize,
    entries: RwLock<Vec<Entry>>,
    /// Whose turn it is among several processes.
    turns: OnceLock<Turns>,
}

/// How long a process that has no turn asks for none.
const TURN: Duration = Duration::from_secs(1);

/// Whether it is this process that may probe a provider now.
type Turns = Box<dyn Fn(&str, Instant) -> bool + Send + Sync>;

#[derive(Clone)]
struct Entry {
    provider: Box<str>,
    probe_every: Duration,
    /// When the next probe may be made.
    probe_from: Instant,
}

impl DegradedProviders {
    /// Whether none is.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.count.load(Ordering::Acquire) == 0
    }

    /// Whether `provider` is.
    #[inline]
    pub fn contains(&self, provider: &str) -> bool {
        !self.is_empty() && self.find(provider, |_| ()).is_some()
    }

    /// Whether `provider` is degraded and a probe of it may be made.
    pub fn is_probe_due(&self, provider: &str, now: Instant) -> bool {
        !self.is_empty() && self.find(provider, |entry| entry.probe_from <= now) == Some(true)
    }

    /// Whether this call may be the probe of `provider`; then the next one has to wait as long again. One call
    /// at most gets it.
    pub fn acquire_probe(&self, provider: &str, now: Instant) -> bool {
        if self.is_empty() {
            return false;
        }
        let mut entries = self.0.entries.write();
        match entries.iter_mut().find(|entry| *entry.provider == *provider) {
            Some(entry) if entry.probe_from <= now => {
                let is_own = self.0.turns.get().is_none_or(|may_probe| may_probe(provider, now));
                let wait = if is_own { entry.probe_every } else { TURN };
                entry.probe_from = later(now, wait);
                is_own
            }
            _ => false,
        }
    }

    /// Where several processes find out together whether a provider is well: a call is the probe only where this process
    /// `may_probe` it then, which is asked when a probe is due. Once; whether this was the first time.
    pub fn set_turns(
        &self,
        may_probe: impl Fn(&str, Instant) -> bool + Send + Sync + 'static,
    ) -> bool {
        self.0.turns.set(Box::new(may_probe)).is_ok()
    }

    /// The next call may be a probe of `provider`: one has succeeded.
    pub fn allow_probe(&self, provider: &str, now: Instant) {
        let mut entries = self.0.entries.write();
        if let Some(entry) = entries.iter_mut().find(|entry| *entry.provider == *provider) {
            entry.probe_from = now;
        }
    }

    /// Their names, in no order.
    pub fn list(&self) -> Vec<Box<str>> {
        self.0.entries.read().iter().map(|entry| entry.provider.clone()).collect()
    }

    /// `provider` is degraded from `now` on; a probe of it may be made after each `probe_every`.
    pub fn insert(&self, provider: &str, now: Instant, probe_every: Duration) {
        let entry =
            Entry { provider: provider.into(), probe_every, probe_from: later(now, probe_every) };
        let mut entries = self.0.entries.write();
        match entries.iter_mut().find(|entry| *entry.provider == *provider) {
            Some(known) => *known = entry,
            None => entries.push(entry),
        }
        self.0.count.store(entries.len(), Ordering::Release);
    }

    /// `provider` is well again, or of no interest any more.
    pub fn remove(&self, provider: &str) {
        let mut entries = self.0.entries.write();
        entries.retain(|entry| *entry.provider != *provider);
        self.0.count.store(entries.len(), Ordering::Release);
    }

    fn find<R>(&self, provider: &str, read: impl FnOnce(&Entry) -> R) -> Option<R> {
        self.0.entries.read().iter().find(|entry| *entry.provider == *provider).map(read)
    }
}

impl fmt::Debug for DegradedProviders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DegradedProviders").field(&self.list()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: Duration = Duration::from_secs(10);

    #[test]
    fn one_probe_at_a_time_and_each_has_its_interval() {
        let (degraded, start) = (DegradedProviders::default(), Instant::now());
        degraded.insert("a", start, EVERY);
        degraded.insert("b", start, EVERY * 3);
        let probes = |provider: &str, seconds| {
            let now = start + Duration::from_secs(seconds);
            let due = degraded.is_probe_due(provider, now);
            assert_eq!(degraded.acquire_probe(provider, now), due, "{provider} at {seconds}");
            due
        };
        assert!(!probes("a", 9));
        assert!(probes("a", 12));
        assert!(!probes("a", 12), "one call gets it");
        assert!(!probes("a", 21));
        assert!(probes("a", 22));
        degraded.allow_probe("a", start + Duration::from_secs(23));
        assert!(probes("a", 23) && !probes("a", 23), "the one before has succeeded");
        assert!(!probes("b", 22) && probes("b", 30));
        assert!(!probes("c", 100), "it is not degraded");
    }

    #[test]
    fn who_has_no_turn_makes_no_probe_and_has_it_when_it_comes() {
        let (degraded, now) = (DegradedProviders::default(), Instant::now());
        degraded.insert("a", now, EVERY);
        let turn = now + EVERY * 2;
        assert!(degraded.set_turns(move |provider, now| provider == "a" && now >= turn));
        assert!(!degraded.set_turns(|_, _| true), "once");
        assert!(!degraded.acquire_probe("a", now + EVERY));
        // Or a call that does not get it would plan for it again, for ever.
        assert!(!degraded.is_probe_due("a", now + EVERY));
        assert!(degraded.is_probe_due("a", now + EVERY + TURN));
        assert!(degraded.acquire_probe("a", turn) && !degraded.acquire_probe("a", turn));
    }

    #[test]
    fn clones_share_it_and_a_provider_is_in_it_once() {
        let (degraded, now) = (DegradedProviders::default(), Instant::now());
        let clone = degraded.clone();
        degraded.insert("a", now, EVERY);
        degraded.insert("a", now + EVERY, EVERY);
        assert!(!clone.is_probe_due("a", now + EVERY), "it is degraded anew");
        assert_eq!(clone.list(), ["a".into()]);
        degraded.remove("b");
        assert!(!clone.is_empty());
        degraded.remove("a");
        assert!(clone.is_empty() && !clone.contains("a"));
    }
}
