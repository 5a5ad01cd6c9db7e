//! Looking at targets, and steering them.

use std::{sync::Arc, time::Duration};

#[cfg(feature = "shared")]
use steadfast_core::shared::SharedState;
use steadfast_core::{Call, Profile, RetryBudget, Target, Witness, circuit::Restored};
use tokio::{sync::watch, time::Instant};

use crate::{
    affinity::Session, call::CallState, chain::Chain, registry::scope, saved::SavedHealth,
    service::FailoverState, snapshot::FailoverSnapshot,
};

/// Looks at the targets of a layer and steers them. Cheap to clone; works from any thread.
///
/// A target is named by the parts that are meant: `Target::new("openai")` is the whole provider,
/// with a model it is that model there, with a credential that key.
#[derive(Clone, Debug)]
pub struct FailoverHandle {
    failover: Arc<FailoverState>,
}

/// Where a call would go first.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NextTarget {
    /// The target, and what a request is fitted to there.
    pub profile: Profile,
    /// Neither does it cool, nor is its provider degraded.
    pub is_well: bool,
}

impl FailoverHandle {
    pub(crate) fn new(failover: Arc<FailoverState>) -> Self {
        Self { failover }
    }

    pub(crate) fn state(&self) -> &FailoverState {
        &self.failover
    }

    /// What the layer draws from for further rounds and hedges, when it was given one.
    pub fn budget(&self) -> Option<&RetryBudget> {
        self.failover.rules.budget.as_ref()
    }

    /// Where a call with `request` would go now by the chain called `chain`, or by the default one. Nothing is
    /// taken or noted for it: this is for a question beside calls, such as how many tokens a request has.
    pub fn next_target<Req: Call>(&self, chain: Option<&str>, request: &Req) -> NextTarget {
        let failover = &self.failover;
        let context = request.context();
        let route = failover.chains.route(chain, request.model(), failover);
        let session = Session::of(failover, request);
        let witness = Witness::of(context, request.prompt_digest());
        let is_whole = request.is_whole().unwrap_or(false);
        let call = CallState::new(route, context, (witness, is_whole), request.needs(), session);
        let (profile, is_well) = call.first();
        NextTarget { profile: profile.clone(), is_well }
    }

    /// The health of everything that has been used.
    pub fn snapshot(&self) -> FailoverSnapshot {
        self.failover.registry.snapshot()
    }

    /// The same, whenever a failure, a recovery or an operator changes it. While nobody watches,
    /// nothing is gathered.
    pub fn watch(&self) -> watch::Receiver<FailoverSnapshot> {
        self.failover.registry.watch()
    }

    /// Leaves `target` alone for `wait`: it is not asked meanwhile, not even by a call that has no other
    /// target. A cooldown that ends later stays.
    pub fn cool(&self, target: &Target, wait: Duration) {
        let registry = &self.failover.registry;
        let record = registry.record(target, scope(target));
        registry.change(&record, Instant::now(), |health, now| health.force(now, wait));
    }

    /// Takes `target` out until it is [put back](Self::put_back) or [reset](Self::reset): it is not asked, not even by a
    /// call that has no other target, nor to see whether it is well. Calls under way there end undisturbed. It
    /// holds in this process. Returns whether that changed anything.
    pub fn take_out(&self, target: &Target) -> bool {
        let registry = &self.failover.registry;
        let record = registry.record(target, scope(target));
        registry.change(&record, Instant::now(), |health, now| health.set_out(now.at, true))
    }

    /// Ends that: `target` is asked as what is known of it allows. Returns whether it was out.
    pub fn put_back(&self, target: &Target) -> bool {
        let registry = &self.failover.registry;
        let Some(record) = registry.find(target) else { return false };
        registry.change(&record, Instant::now(), |health, now| health.set_out(now.at, false))
    }

    /// Forgets what happened to `target`, exactly these parts of it: it is healthy again. Call it
    /// when a key has been renewed or a bill paid. Calls under way decide nothing any more.
    /// Returns whether anything was known.
    pub fn reset(&self, target: &Target) -> bool {
        self.failover.registry.reset(target)
    }

    /// Forgets what happened to all targets.
    pub fn reset_all(&self) {
        self.failover.registry.reset_all();
    }

    /// The default chain.
    pub fn chain(&self) -> Chain {
        let mut chains = self.failover.chains.list();
        chains.swap_remove(0).1
    }

    /// Every chain by name; the default one comes first and has an empty name.
    pub fn chains(&self) -> Vec<(Arc<str>, Chain)> {
        self.failover.chains.list()
    }

    /// Puts `chain` in place of the default one, for calls that begin from now on.
    ///
    /// What is known of a provider, model list or credential that is gone is dropped, of a
    /// provider that changed it is reset (a permanent failure too), and the rest is kept. Two
    /// lists of the same provider that differ in credentials alone keep what is known of the
    /// provider and of the credentials that stay. A key renewed under its old name looks
    /// unchanged: [`reset`](Self::reset) it.
    pub fn replace_chain(&self, chain: Chain) {
        self.replace_named("", chain);
    }

    /// The same for the chain called `name`, which is added when there is none.
    pub fn replace_named(&self, name: &str, chain: Chain) {
        self.failover.chains.replace(name, chain, &self.failover.registry);
    }

    /// Drops what is known of the targets that `keep` does not want: for targets that are configured no
    /// more. Calls under way keep what they have, and decide nothing any more.
    pub fn retain(&self, keep: impl Fn(&Target) -> bool) {
        self.failover.registry.retain(keep);
    }

    /// What cools, for another process to go on with; see
    /// [`SavedCircuit`](steadfast_core::circuit::SavedCircuit). In no order. Sessions, and shares of failures, are not
    /// in it, nor is what rests for single callers alone.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use steadfast_core::Target;
    /// use steadfast_failover::{Chain, CooldownFailoverLayer, TargetSpec};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let chain = Chain::new([TargetSpec::new("openai"), TargetSpec::new("anthropic")])?;
    /// let handle = CooldownFailoverLayer::new(chain.clone()).handle();
    /// handle.cool(&Target::new("openai"), Duration::from_secs(60));
    /// handle.cool(&Target::new("gone"), Duration::from_secs(60));
    /// let saved = handle.save();
    ///
    /// // After a restart, before the first call. What is configured no more is left out.
    /// let handle = CooldownFailoverLayer::new(chain.clone()).handle();
    /// let known = |target: &Target| chain.iter().any(|spec| spec.provider == target.provider());
    /// let counts = handle.restore(&saved, known);
    /// assert_eq!((counts.restored, counts.unknown), (1, 1));
    /// assert_eq!(handle.snapshot().cooling().count(), 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn save(&self) -> Vec<SavedHealth> {
        self.failover.registry.save()
    }

    /// Goes on with the cooldowns of `saved` whose target is `known`, for what is left of them. What cools already is
    /// left as it is.
    pub fn restore(&self, saved: &[SavedHealth], known: impl Fn(&Target) -> bool) -> Restored {
        self.failover.registry.restore(saved, known)
    }

    /// Shares what cools with other processes: a target that one of them has found unwell is left alone by all, one that
    /// is well again is asked by all, and of those that could see whether it is back one does. And a conversation that one of
    /// them has moved to another target goes on there, whichever has its next turn. Once for a
    /// layer, from inside a tokio runtime; whether this was the first time. See [`shared`](steadfast_core::shared).
    ///
    /// Nothing waits for the store but the call of a conversation that this process does not know, while others have moved
    /// some within [`sticky`](crate::FailoverPolicy::sticky): for 20 ms at most, then without. Dropping it meanwhile leaves
    /// nothing behind. Names of tenants and sessions are not sent, but digests of them. A health that names a provider, model and credential is taken to be of
    /// the same ones in all processes; where names may stand for others, [say so](Self::share_named).
    ///
    /// ```
    /// use std::{sync::Arc, time::Duration};
    ///
    /// use steadfast_core::{Target, shared::EmbeddedStore};
    /// use steadfast_failover::{Chain, CooldownFailoverLayer, TargetSpec};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = EmbeddedStore::new();
    /// let node = |name| {
    ///     let chain = Chain::new([TargetSpec::new("openai"), TargetSpec::new("anthropic")]).unwrap();
    ///     let handle = CooldownFailoverLayer::new(chain).handle();
    ///     assert!(handle.share(Arc::new(store.join(name))));
    ///     handle
    /// };
    /// let (one, other) = (node("one"), node("other"));
    /// one.cool(&Target::new("openai"), Duration::from_secs(60));
    /// tokio::time::sleep(Duration::from_millis(1)).await;
    /// assert_eq!(other.snapshot().cooling().count(), 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    #[cfg(feature = "shared")]
    pub fn share(&self, state: Arc<dyn SharedState>) -> bool {
        self.share_named(state, |target| Some(target.to_string()))
    }

    /// The same, where each target has the `name` there that it has in all processes in which it is the same: with a
    /// mark of its address and key, for example. One without a name is not shared.
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
        crate::shared::share(&self.failover, state, name)
    }

    /// Lets a session go wherever the chain says with its next call. Returns whether it was known.
    pub fn forget_session(&self, tenant: Option<&str>, session: &str) -> bool {
        let sticky = self.failover.rules.policy.sticky;
        self.failover.sessions.forget(tenant, session, sticky)
    }

    /// How many sessions are remembered.
    pub fn sessions(&self) -> usize {
        self.failover.sessions.len()
    }
}
