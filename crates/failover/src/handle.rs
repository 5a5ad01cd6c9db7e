//! Looking at targets, and steering them.

use std::{sync::Arc, time::Duration};

use steadfast_core::{RetryBudget, Scope, Target};
use tokio::{sync::watch, time::Instant};

use crate::{chain::Chain, service::FailoverState, snapshot::FailoverSnapshot};

/// Looks at the targets of a layer and steers them. Cheap to clone; works from any thread.
///
/// A target is named by the parts that are meant: `Target::new("openai")` is the whole provider,
/// with a model it is that model there, with a credential that key.
#[derive(Clone, Debug)]
pub struct FailoverHandle {
    failover: Arc<FailoverState>,
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
        let scope = match (target.model(), target.credential()) {
            (None, None) => Scope::Provider,
            (Some(_), None) => Scope::Model,
            (None, Some(_)) => Scope::Credential,
            (Some(_), Some(_)) => Scope::ModelCredential,
        };
        let registry = &self.failover.registry;
        let record = registry.record(target, scope);
        registry.change(&record, Instant::now(), |health, now| health.force(now, wait));
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

    /// Lets a session go wherever the chain says with its next call. Returns whether it was known.
    pub fn forget_session(&self, tenant: Option<&str>, session: &str) -> bool {
        self.failover.sessions.forget(tenant, session)
    }

    /// How many sessions are remembered.
    pub fn sessions(&self) -> usize {
        self.failover.sessions.len()
    }
}
