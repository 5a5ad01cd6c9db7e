//! What the layers of a stack know, shared with other processes.

use std::sync::Arc;

use steadfast_core::{CapSharing, Target, shared::SharedState};

use crate::Handles;

impl Handles {
    /// Shares with other processes what cools, which breakers are open and which providers are degraded: what one of
    /// them has found, all know. And the windows that providers state, the rate limits of targets, and the spend caps of tenants and
    /// keys: together they keep to them ([`CapSharing::Share`]; for caps that are never exceeded call
    /// [`spend.share`](steadfast_core::SpendLedger::share) with `Strict` before). A conversation whose next turn comes to another
    /// process goes where failover has moved it, with its compaction, and has the thinking back that its caller does not have.
    /// Once, from inside a tokio runtime; further calls change nothing. See [`shared`](steadfast_core::shared) for what that means,
    /// and `steadfast-redis` for a state of several machines.
    ///
    /// ```
    /// use std::{sync::Arc, time::Duration};
    ///
    /// use steadfast::{Stack, Target, failover::{Chain, TargetSpec}, shared::EmbeddedStore};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = EmbeddedStore::new();
    /// let chain = Chain::new([TargetSpec::new("openai"), TargetSpec::new("anthropic")])?;
    /// let [one, other] = ["one", "other"].map(|name| {
    ///     let handles = Stack::new(chain.clone()).handles();
    ///     handles.share(Arc::new(store.join(name)));
    ///     handles
    /// });
    /// one.failover.cool(&Target::new("openai"), Duration::from_secs(60));
    /// tokio::time::sleep(Duration::from_millis(1)).await;
    /// assert_eq!(other.failover.snapshot().cooling().count(), 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn share(&self, state: Arc<dyn SharedState>) {
        self.share_named(state, |target| Some(target.to_string()));
    }

    /// The same, where each target has the `name` there that it has in all processes in which it is the same: with a
    /// mark of its address and key, for example. A provider is a target without a model. One without a name is
    /// not shared.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn share_named(
        &self,
        state: Arc<dyn SharedState>,
        name: impl Fn(&Target) -> Option<String> + Clone + Send + Sync + 'static,
    ) {
        self.spend.share(state.clone(), CapSharing::default());
        self.failover.share_named(state.clone(), name.clone());
        let of = name.clone();
        self.breaker.share_named(state.clone(), move |key| key.as_ref().and_then(&of));
        self.compaction.share(state.clone());
        self.rate_limit.share_named(state.clone(), name.clone());
        self.thinking.share_named(state.clone(), name.clone());
        self.health.share_named(state, move |provider| name(&Target::new(provider)));
    }
}
