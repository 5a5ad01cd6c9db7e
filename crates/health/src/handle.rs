//! Looking at providers, and steering what is known of them.

use std::{fmt, sync::Arc};

#[cfg(feature = "shared")]
use steadfast_core::shared::SharedState;
use steadfast_core::{DegradedProviders, Failure, Outcome};
use tokio::{sync::watch, time::Instant};

use crate::{AgentKey, HealthPolicy, HealthStatus, ProviderSnapshot, state::HealthState};

/// Looks at the providers of one layer, and steers what is known of them. Cheap to clone; works from any thread.
///
/// ```
/// use steadfast_health::{HealthStatus, ProviderHealthLayer};
///
/// let handle = ProviderHealthLayer::default().handle();
/// handle.force("openai", HealthStatus::Degraded);
/// assert!(handle.degraded().contains("openai"));
///
/// handle.reset("openai");
/// assert!(handle.degraded().is_empty());
/// ```
#[derive(Clone)]
pub struct HealthHandle {
    state: Arc<HealthState>,
}

/// All providers as they are.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct HealthSnapshot {
    /// By their names.
    pub providers: Vec<ProviderSnapshot>,
}

impl HealthSnapshot {
    /// The provider of this name, if there has been a call of it.
    pub fn get(&self, provider: &str) -> Option<&ProviderSnapshot> {
        self.providers.iter().find(|known| *known.provider == *provider)
    }

    /// Those that are degraded.
    pub fn degraded(&self) -> impl Iterator<Item = &ProviderSnapshot> {
        self.providers.iter().filter(|provider| provider.status == HealthStatus::Degraded)
    }
}

impl HealthHandle {
    pub(crate) fn new(state: Arc<HealthState>) -> Self {
        Self { state }
    }

    pub(crate) fn state(&self) -> &Arc<HealthState> {
        &self.state
    }

    /// The providers that are degraded, for layers that ask.
    pub fn degraded(&self) -> DegradedProviders {
        self.state.degraded.clone()
    }

    /// All providers as they are. Those that have been idle for an hour may be forgotten, unless they are
    /// degraded or forced.
    pub fn snapshot(&self) -> HealthSnapshot {
        self.state.snapshot()
    }

    /// The provider of this name as it is, if there has been a call of it.
    pub fn get(&self, provider: &str) -> Option<ProviderSnapshot> {
        self.state.find(provider).map(|known| known.snapshot(Instant::now()))
    }

    /// All providers, whenever one of them is degraded or recovers. A watcher that is slow sees the latest
    /// only; [`degradations`](ProviderSnapshot::degradations) says what it has missed. While nobody watches,
    /// nothing is gathered.
    pub fn watch(&self) -> watch::Receiver<HealthSnapshot> {
        self.state.watch()
    }

    /// Sets the status of `provider` until it is [reset](Self::reset); outcomes do not change it meanwhile.
    /// Returns whether that changed it.
    pub fn force(&self, provider: &str, status: HealthStatus) -> bool {
        let now = Instant::now();
        self.state.provider(provider, now).change(now, None, |monitor| monitor.force(status, now))
    }

    /// Takes `provider` as healthy, with nothing counted, and ends a forced status. Calls under way decide
    /// nothing. Returns whether it was degraded.
    pub fn reset(&self, provider: &str) -> bool {
        let now = Instant::now();
        let known = self.state.find(provider);
        known.is_some_and(|known| known.change(now, None, |monitor| monitor.reset(now)))
    }

    /// Resets every provider; how many were degraded.
    pub fn reset_all(&self) -> usize {
        let now = Instant::now();
        let reset = |known: &Arc<crate::state::Provider>| {
            known.change(now, None, |monitor| monitor.reset(now))
        };
        self.state.all().filter(reset).count()
    }

    /// Drops what is known of the providers that `keep` does not want: for those that are configured no more.
    pub fn retain(&self, keep: impl Fn(&str) -> bool) {
        self.state.retain(keep);
    }

    /// The outcome of a probe that was made elsewhere, such as a health check. All probes are those of one agent:
    /// failures of a checker alone degrade a provider when so many follow each other as of any agent.
    pub fn probed(&self, provider: &str, outcome: Result<(), &Failure>) {
        let now = Instant::now();
        self.state.provider(provider, now).change(now, None, |monitor| {
            let call = monitor.began(AgentKey::checker());
            let outcome = match outcome {
                Ok(()) => Outcome::Success,
                Err(failure) => Outcome::Failure(failure),
            };
            monitor.ended(now, &call, outcome, false)
        });
    }

    /// Shares with other processes which providers are degraded: when calls of several agents have failed in one of
    /// them, all know, and when it has recovered, too; one of them at a time sends a probe. Once for a layer, from inside a tokio runtime; whether this was
    /// the first time. What an operator forces holds in its process. See [`shared`](steadfast_core::shared).
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    #[cfg(feature = "shared")]
    pub fn share(&self, state: Arc<dyn SharedState>) -> bool {
        self.share_named(state, |provider| Some(provider.to_owned()))
    }

    /// The same, where each provider has the `name` there that it has in all processes in which it is the same. One
    /// without a name is not shared.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    #[cfg(feature = "shared")]
    pub fn share_named(
        &self,
        state: Arc<dyn SharedState>,
        name: impl Fn(&str) -> Option<String> + Send + Sync + 'static,
    ) -> bool {
        crate::shared::share(&self.state, state, name)
    }

    /// The policy in force.
    pub fn policy(&self) -> HealthPolicy {
        self.state.policy()
    }
}

impl fmt::Debug for HealthHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HealthHandle").field(&self.snapshot()).finish()
    }
}
