//! The layer and its settings.

use std::sync::Arc;

use steadfast_chat::{ChatRequest, ChatResponse, Events, Message};
use steadfast_core::{DegradedProviders, Failure, KeyedPolicy, SpendLedger, Target};
use tower_layer::Layer;
use tower_service::Service;

use crate::{
    Compaction, CompactionHandle, CompactionPolicy, Counter, Models, PolicyError, SpendPolicy,
    SummaryPolicy, TargetFacts,
    state::{Config, LayerState},
    summarise::Summariser,
};

/// Keeps conversations inside the window of the model behind it. See the
/// [crate's documentation](crate).
///
/// Every service of a layer value, and of its clones, shares its state. The setters begin a new state:
/// take the [`handle`](Self::handle) last.
#[derive(Clone, Debug)]
#[must_use = "a layer does nothing until it wraps a service"]
pub struct CompactionLayer {
    state: Arc<LayerState>,
}

impl Default for CompactionLayer {
    /// The same as [`rules_only`](Self::rules_only).
    fn default() -> Self {
        Self::rules_only()
    }
}

impl CompactionLayer {
    /// With summaries of `summariser` instead of older messages (tiers 1 to 4): any service for
    /// chats, with any layers; this layer has its own breaker and budget around it. It
    /// is called on behalf of the tenant, without a session, and with
    /// [background](steadfast_core::Priority::Background) priority. Its requests name no model: a
    /// client needs a target of its own, or a layer that selects one.
    pub fn new<S, E>(summariser: S) -> Self
    where
        S: Service<ChatRequest, Response = ChatResponse<E>, Error: Into<Failure>, Future: Send>
            + Clone
            + Send
            + 'static,
        E: Events + Unpin + Send + 'static,
    {
        let summariser = Some(Arc::new(Summariser::new(summariser)));
        Self::rules_only().with(|config| config.summariser = summariser)
    }

    /// Without a summariser: markers (tier 1), and lists of facts (tier 4).
    pub fn rules_only() -> Self {
        Self::of(Config::default())
    }

    /// Sends every request as it is.
    pub fn off() -> Self {
        Self::rules_only().with(|config| config.off = true)
    }

    fn of(config: Config) -> Self {
        Self { state: Arc::new(LayerState::new(config)) }
    }

    fn with(self, change: impl FnOnce(&mut Config)) -> Self {
        let mut config = self.state.config.clone();
        change(&mut config);
        Self::of(config)
    }

    /// With this policy.
    ///
    /// # Errors
    ///
    /// When it contradicts itself.
    pub fn with_policy(self, policy: CompactionPolicy) -> Result<Self, PolicyError> {
        let compactor = self.state.config.compactor.clone().with_policy(policy)?;
        Ok(self.with(|config| config.compactor = compactor))
    }

    /// Calls the summariser by this policy.
    ///
    /// # Errors
    ///
    /// When it contradicts itself.
    pub fn with_summaries(self, policy: SummaryPolicy) -> Result<Self, PolicyError> {
        policy.validate()?;
        Ok(self.with(|config| config.summaries = policy))
    }

    /// Spends at most this on the summaries of one tenant.
    pub fn with_spend(self, policy: SpendPolicy) -> Self {
        self.with(|config| config.spend = policy)
    }

    /// Charges summaries to this ledger, which others share: that of the spend limit, so that what a tenant spends
    /// is one number. A `Stack` gives the layer its own.
    ///
    /// Whoever calls the summariser's providers with a [`CallSpend`](steadfast_core::CallSpend) in the context, as a
    /// stack of this ledger does, charges each attempt to it: to the
    /// [summaries](steadfast_core::SpendAccount::Summaries) of the tenant, under the
    /// [cap](Self::with_spend) on them, and to whatever the call is charged to that needs the summary. Otherwise what
    /// the answers report is charged.
    ///
    /// What the layer remembers is kept; a handle that was taken before shows the ledger of before.
    pub fn with_ledger(self, ledger: SpendLedger) -> Self {
        let mut state = self.state.sharing(&self.state);
        state.ledger = ledger.clone();
        state.config.ledger = Some(ledger);
        Self { state: Arc::new(state) }
    }

    /// Without summaries while their provider is in `degraded`, those that `steadfast-health` finds: rules alone
    /// compact what does not fit, and nothing is summarised in advance. Their provider is
    /// [the one that is named](Self::with_summaries_from), else that of the request's target.
    ///
    /// What the layer remembers is kept, and its handles stay valid.
    pub fn with_health(self, degraded: DegradedProviders) -> Self {
        let handle = self.handle();
        self.with(|config| config.health = Some(degraded)).sharing(&handle)
    }

    /// Which provider the summariser asks, where it is not that of the request's target.
    pub fn with_summaries_from(self, provider: impl Into<Arc<str>>) -> Self {
        let provider = provider.into();
        self.with(|config| config.summaries_from = Some(provider))
    }

    /// With these windows. They can be shared by layers, with what they learn.
    pub fn with_models(self, models: impl Into<Arc<Models>>) -> Self {
        let models = models.into();
        self.with(|config| config.models = Some(models))
    }

    /// With this counter. It can be shared by layers, with what it learns.
    pub fn with_counter(self, counter: impl Into<Arc<Counter>>) -> Self {
        let counter = counter.into();
        self.with(|config| config.counter = Some(counter))
    }

    /// What the layer has to know of a target, where its name is not enough. Called once for each target
    /// and model, and again when a window is learned. For requests that name no target, as those of a
    /// service without failover, it is called with one whose provider is empty and whose model is the
    /// request's.
    ///
    /// ```
    /// use steadfast_compact::{CompactionLayer, TokenLimits, TargetFacts};
    /// use steadfast_core::Dialect;
    ///
    /// let layer = CompactionLayer::rules_only().with_targets(|target| match target.provider() {
    ///     "house" => TargetFacts::default()
    ///         .with_dialect(Dialect::OpenAi)
    ///         .with_limits(TokenLimits::new(32_768).with_output(4_096)),
    ///     _ => TargetFacts::default(),
    /// });
    /// ```
    pub fn with_targets(
        self,
        targets: impl Fn(&Target) -> TargetFacts + Send + Sync + 'static,
    ) -> Self {
        self.with(|config| config.targets = Some(Arc::new(targets)))
    }

    /// Keeps every message for which `pinned` returns true.
    pub fn with_pins(self, pinned: impl Fn(&Message) -> bool + Send + Sync + 'static) -> Self {
        let compactor = self.state.config.compactor.clone().with_pins(pinned);
        self.with(|config| config.compactor = compactor)
    }

    /// Compacts in the background for the next turn, as long as the request fits as it is. Off by
    /// default: it takes a task, and the turn before is sent with all of its history.
    pub fn with_deferred(self, deferred: bool) -> Self {
        self.with(|config| config.deferred = deferred)
    }

    /// Whether a conversation whose tenant, agent or session is malformed, or whose session is used by
    /// two histories at a time, is compacted without anything being kept of it. On by default: the
    /// alternative is to put one conversation's summary into another.
    pub fn with_fail_closed_rollover(self, fail_closed: bool) -> Self {
        self.with(|config| config.keep_ambiguous = !fail_closed)
    }

    /// Remembers so many conversations, for so long. 1,024, and an hour: those that are long enough to be
    /// counted hold on to their messages, or to hashes of what was read from the wire, so that a thousand
    /// of half a megabyte are the most that a process should spend on it.
    pub fn with_conversations(self, policy: KeyedPolicy) -> Self {
        self.with(|config| config.remember = Some(policy))
    }

    /// Makes the delimiters of summaries from this seed. For tests: with a known seed the end of a
    /// summary can be forged.
    pub fn with_seed(self, seed: u64) -> Self {
        self.with(|config| config.seed = Some(seed))
    }

    /// As this layer is set, with what the layer remembers that `handle` is of: its conversations, what
    /// tenants have spent, the summariser's breakers, and what was learned of models, unless this layer was
    /// given others. The last of the settings: each of the others begins a new state.
    pub fn sharing(self, handle: &CompactionHandle) -> Self {
        Self { state: Arc::new(self.state.sharing(&handle.0)) }
    }

    /// Shows the layer's state and resets it.
    pub fn handle(&self) -> CompactionHandle {
        CompactionHandle(self.state.clone())
    }
}

impl<S: Clone> Layer<S> for CompactionLayer {
    type Service = Compaction<S>;

    fn layer(&self, inner: S) -> Compaction<S> {
        Compaction::new(inner, self.state.clone())
    }
}
