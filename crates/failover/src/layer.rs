//! The layer, and what can be set about it.

use std::{fmt, num::NonZeroU32, sync::Arc, time::Duration};

use steadfast_core::{
    AtOnce, BufferLimits, DegradedProviders, Failover, Needs, Reason, RecoveryTable, RetryBudget,
    UntilEnd,
};
use tower_layer::Layer;

use crate::{
    FailoverHandle,
    affinity::Sessions,
    chain::Chain,
    choose::OneChain,
    policy::{FailoverPolicy, WhenExhausted},
    registry::HealthRegistry,
    route::Chains,
    service::{CallRules, CooldownFailover, FailoverState},
};

/// Sends each call to the first target of a [`Chain`] that is not cooling, and on to the next when
/// that one fails. See the [crate's documentation](crate).
///
/// The health of the targets belongs to the layer: all services it makes, and its clones, share
/// it. Every setting begins with a fresh state, so take the [`handle`](Self::handle) last.
#[derive(Clone)]
#[must_use = "a layer does nothing until it wraps a service"]
pub struct CooldownFailoverLayer<C = OneChain, T = UntilEnd> {
    settings: Settings,
    choose: C,
    track: T,
    failover: Arc<FailoverState>,
}

/// What a layer is made of; kept to make its state anew when it changes.
#[derive(Clone)]
struct Settings {
    chain: Chain,
    others: Vec<(Arc<str>, Chain)>,
    policy: FailoverPolicy,
    budget: Option<RetryBudget>,
    degraded: Option<DegradedProviders>,
    seed: Option<u64>,
}

impl Settings {
    fn state(&self) -> Arc<FailoverState> {
        let policy = Arc::new(self.policy.clone());
        let sessions = Arc::new(Sessions::new(policy.sessions));
        let registry = Arc::new(HealthRegistry::new(policy.clone()));
        self.state_with(policy, registry, sessions)
    }

    /// The state with what `other` knows of targets and sessions.
    fn sharing(&self, other: &FailoverState) -> Arc<FailoverState> {
        let policy = Arc::new(self.policy.clone());
        other.registry.set_policy(&policy);
        other.sessions.set_capacity(policy.sessions);
        self.state_with(policy, other.registry.clone(), other.sessions.clone())
    }

    fn state_with(
        &self,
        policy: Arc<FailoverPolicy>,
        registry: Arc<HealthRegistry>,
        sessions: Arc<Sessions>,
    ) -> Arc<FailoverState> {
        Arc::new(FailoverState {
            chains: Chains::new(self.chain.clone(), self.others.clone()),
            rules: Arc::new(CallRules::new(
                policy,
                self.budget.clone(),
                self.degraded.clone(),
                self.seed,
            )),
            registry,
            sessions,
        })
    }
}

impl CooldownFailoverLayer {
    /// A layer over `chain`, with the numbers of [`FailoverPolicy::default`].
    pub fn new(chain: Chain) -> Self {
        let policy = FailoverPolicy::default();
        let settings = Settings {
            chain,
            others: Vec::new(),
            policy,
            budget: None,
            degraded: None,
            seed: None,
        };
        let failover = settings.state();
        Self { settings, choose: OneChain, track: UntilEnd, failover }
    }
}

impl<C, T> CooldownFailoverLayer<C, T> {
    /// With these numbers.
    pub fn with_policy(self, policy: FailoverPolicy) -> Self {
        self.with(|settings| settings.policy = policy)
    }

    /// With the policy changed by `change`.
    pub fn tune(self, change: impl FnOnce(&mut FailoverPolicy)) -> Self {
        self.with(|settings| change(&mut settings.policy))
    }

    /// With cooldowns, scopes and directions of this table. A cell that differs from the reason's
    /// default overrides what a failure says of itself.
    pub fn with_table(self, table: RecoveryTable) -> Self {
        self.tune(|policy| policy.table = table)
    }

    /// Goes on to the next target for `reason` too, such as [`Reason::ContentFilter`].
    /// [`Reason::Safety`] is final whatever is asked here.
    pub fn with_failover_on(self, reason: Reason) -> Self {
        self.tune(|policy| {
            let table = std::mem::take(&mut policy.table);
            policy.table = table.with_rule(reason, |rule| rule.failover = Failover::NextTarget);
        })
    }

    /// Calls a target down after this many failures in a row.
    pub fn with_down_after(self, failures: NonZeroU32) -> Self {
        self.tune(|policy| policy.down_after = failures.get())
    }

    /// What happens when every target is cooling, or has failed the call.
    pub fn with_when_exhausted(self, action: WhenExhausted) -> Self {
        self.tune(|policy| policy.when_exhausted = action)
    }

    /// How long a session stays where a failover took it; zero: not at all.
    pub fn with_sticky(self, ttl: Duration) -> Self {
        self.tune(|policy| policy.sticky = ttl)
    }

    /// Lets a smaller model of the same provider stand in for an overloaded one.
    pub fn with_downgrade_on_overload(self) -> Self {
        self.tune(|policy| policy.downgrade_on_overload = true)
    }

    /// Asks one more target when there is no content after this time. The first content wins, the
    /// other call is dropped. Zero: never.
    pub fn with_hedge(self, after: Duration) -> Self {
        self.tune(|policy| policy.hedge = (!after.is_zero()).then_some(after))
    }

    /// How much of an answer is held back while waiting for its first content.
    pub fn with_buffer(self, buffer: BufferLimits) -> Self {
        self.tune(|policy| policy.buffer = buffer)
    }

    /// Draws what calls ask of one target beyond two repetitions from `budget`, and hedges too, and lets the
    /// layers below draw from it.
    /// Without one, the call's own budget is drawn from.
    pub fn with_budget(self, budget: RetryBudget) -> Self {
        self.with(|settings| settings.budget = Some(budget))
    }

    /// Draws from the call's own budget alone, when it brings one.
    pub fn without_budget(self) -> Self {
        self.with(|settings| settings.budget = None)
    }

    /// Asks targets whose provider is in `degraded` after the others, or, by
    /// [`skip_degraded`](FailoverPolicy::skip_degraded), not at all while any other is left: those that
    /// `steadfast-health` finds, whose layer is put inside this one. They are never refused, and from time to
    /// time a call is sent there as if they were well, to see whether they are.
    pub fn with_health(self, degraded: DegradedProviders) -> Self {
        self.with(|settings| settings.degraded = Some(degraded))
    }

    /// Takes no provider as degraded.
    pub fn without_health(self) -> Self {
        self.with(|settings| settings.degraded = None)
    }

    /// Draws the jitter of pauses from this seed, so that the same failures give the same waits.
    pub fn with_seed(self, seed: u64) -> Self {
        self.with(|settings| settings.seed = Some(seed))
    }

    /// Adds a chain that [`with_chain_for`](Self::with_chain_for) can choose, or replaces the one of that
    /// name. The default chain's name is the empty one.
    pub fn with_chain(self, name: impl Into<Arc<str>>, chain: Chain) -> Self {
        let name = name.into();
        self.with(|settings| {
            if name.is_empty() {
                settings.chain = chain;
                return;
            }
            settings.others.retain(|(other, _)| *other != name);
            settings.others.push((name, chain));
        })
    }

    /// Chooses the chain by request; `None` is the default one.
    ///
    /// ```
    /// use steadfast_chat::ChatRequest;
    /// use steadfast_core::Needs;
    /// use steadfast_failover::{Chain, CooldownFailoverLayer};
    ///
    /// let layer = CooldownFailoverLayer::new(Chain::new(["anthropic", "openai"])?)
    ///     .with_chain("large", Chain::new(["google"])?)
    ///     .with_chain_for(|_: &ChatRequest, needs: &Needs| {
    ///         (needs.input_tokens > 180_000).then_some("large")
    ///     });
    /// # Ok::<(), steadfast_failover::ChainError>(())
    /// ```
    pub fn with_chain_for<Req, F>(self, choose: F) -> CooldownFailoverLayer<F, T>
    where
        F: Fn(&Req, &Needs) -> Option<&'static str>,
    {
        self.with_chooser(choose)
    }

    /// Chooses the chain by a type of your own.
    pub fn with_chooser<D>(self, choose: D) -> CooldownFailoverLayer<D, T> {
        let Self { settings, track, failover, .. } = self;
        CooldownFailoverLayer { settings, choose, track, failover }
    }

    /// For replies that are over when they arrive, instead of bodies and streams.
    pub fn at_once(self) -> CooldownFailoverLayer<C, AtOnce> {
        self.with_track(AtOnce)
    }

    /// Learns by `track` when a reply is over.
    pub fn with_track<U>(self, track: U) -> CooldownFailoverLayer<C, U> {
        let Self { settings, choose, failover, .. } = self;
        CooldownFailoverLayer { settings, choose, track, failover }
    }

    /// As this layer is set, with what the layer knows that `handle` is of: the health of targets, with their
    /// cooldowns, and where sessions are. So one provider that is down is down for several layers, whose
    /// chains, patience, hedges and pauses may differ, and a new policy can begin with what is known.
    ///
    /// What belongs to targets goes by this layer's policy from now on, whoever else shares them: when they
    /// cool (`rest_after`, `trusted_for`), for how long (`first_rest`, `rest_growth`, `longest_hint`,
    /// `permanent`, `permanent_cap`), their probes, `down_after`; and how many sessions there are. The budget
    /// is a setting: give each layer the same one, or one of its own.
    ///
    /// The last of the settings: each of the others begins with a fresh state.
    pub fn sharing(mut self, handle: &FailoverHandle) -> Self {
        self.failover = self.settings.sharing(handle.state());
        self
    }

    /// The budget that was set.
    pub fn budget(&self) -> Option<&RetryBudget> {
        self.settings.budget.as_ref()
    }

    /// The policy in force.
    pub fn policy(&self) -> &FailoverPolicy {
        &self.settings.policy
    }

    /// A handle to see and steer what the layer does.
    pub fn handle(&self) -> FailoverHandle {
        FailoverHandle::new(self.failover.clone())
    }

    fn with(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(&mut self.settings);
        self.failover = self.settings.state();
        self
    }
}

impl<S, C: Clone, T: Clone> Layer<S> for CooldownFailoverLayer<C, T> {
    type Service = CooldownFailover<S, C, T>;

    fn layer(&self, inner: S) -> Self::Service {
        let (choose, track) = (self.choose.clone(), self.track.clone());
        CooldownFailover::new(inner, choose, track, self.failover.clone())
    }
}

impl<C, T> fmt::Debug for CooldownFailoverLayer<C, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CooldownFailoverLayer")
            .field("chain", &self.settings.chain)
            .field("others", &self.settings.others)
            .field("policy", &self.settings.policy)
            .field("budget", &self.settings.budget)
            .finish_non_exhaustive()
    }
}
