//! The state of a layer: what all its services share, and the counts and compactions of each
//! conversation.

use std::{
    fmt,
    hash::BuildHasher,
    sync::{Arc, OnceLock},
    time::Duration,
};

use foldhash::quality::RandomState;
use parking_lot::Mutex;
use steadfast_chat::{ChatRequest, Message};
use steadfast_core::{
    CallContext, DegradedProviders, Keep, Keyed, KeyedPolicy, SpendLedger, Target,
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};

use crate::{
    Applied, CompactionPolicy, Compactor, ConversationId, CountedHistory, Counter, Models,
    SpendPolicy, SummaryPolicy, TargetFacts,
    fleet::ShareCompactions,
    handle::{CompactionCounts, ConversationSnapshot},
    id,
    measure::TargetInfo,
    summarise::{Summariser, Tenant},
};

/// Conversations that are kept by default.
pub(crate) const REMEMBER: KeyedPolicy =
    KeyedPolicy { capacity: 1_024, idle: Duration::from_secs(3_600) };

/// What is known of a target where its name is not enough.
type Targets = Arc<dyn Fn(&Target) -> TargetFacts + Send + Sync>;

/// Everything that is set.
#[derive(Clone, Default)]
pub(crate) struct Config {
    pub(crate) compactor: Compactor,
    /// Without one of its own a layer has the defaults, and shares what they learn.
    pub(crate) models: Option<Arc<Models>>,
    pub(crate) counter: Option<Arc<Counter>>,
    pub(crate) summaries: SummaryPolicy,
    pub(crate) spend: SpendPolicy,
    pub(crate) ledger: Option<SpendLedger>,
    /// Every request is sent as it is.
    pub(crate) off: bool,
    pub(crate) deferred: bool,
    /// An ambiguous conversation is kept like any other.
    pub(crate) keep_ambiguous: bool,
    pub(crate) targets: Option<Targets>,
    pub(crate) summariser: Option<Arc<Summariser>>,
    /// Which providers are degraded, and who writes summaries where that is not the request's target.
    pub(crate) health: Option<DegradedProviders>,
    pub(crate) summaries_from: Option<Arc<str>>,
    pub(crate) seed: Option<u64>,
    pub(crate) remember: Option<KeyedPolicy>,
}

/// What all services of one layer share.
pub(crate) struct LayerState {
    pub(crate) config: Config,
    pub(crate) models: Arc<Models>,
    pub(crate) counter: Arc<Counter>,
    /// What tenants have spent on summaries.
    pub(crate) ledger: SpendLedger,
    pub(crate) memory: Arc<Memory>,
    /// By a hash of target, model and what is learned: as the configuration has it.
    pub(crate) targets: Keyed<u64, TargetInfo>,
    rng: Mutex<fastrand::Rng>,
}

/// What is remembered; layers of different settings can share it.
pub(crate) struct Memory {
    pub(crate) tenants: Keyed<Box<str>, Tenant>,
    pub(crate) conversations: Keyed<u64, Conversation>,
    /// What was done since the layer was made.
    pub(crate) counts: Mutex<CompactionCounts>,
    pub(crate) hasher: RandomState,
    /// Other processes, when what is remembered here is shared with them.
    pub(crate) fleet: OnceLock<Box<dyn ShareCompactions>>,
}

impl LayerState {
    pub(crate) fn new(config: Config) -> Self {
        let rng = config.seed.map_or_else(fastrand::Rng::new, fastrand::Rng::with_seed);
        let memory = Memory {
            tenants: Keyed::new(KeyedPolicy::default()),
            conversations: Keyed::new(config.remember.unwrap_or(REMEMBER)),
            counts: Mutex::default(),
            hasher: RandomState::default(),
            fleet: OnceLock::new(),
        };
        Self {
            models: config.models.clone().unwrap_or_default(),
            counter: config.counter.clone().unwrap_or_default(),
            ledger: config.ledger.clone().unwrap_or_default(),
            memory: Arc::new(memory),
            targets: Keyed::new(KeyedPolicy::default()),
            rng: Mutex::new(rng),
            config,
        }
    }

    /// These settings with what `other` remembers and has learned.
    pub(crate) fn sharing(&self, other: &Self) -> Self {
        let mut new = Self::new(self.config.clone());
        new.memory = other.memory.clone();
        new.ledger = other.ledger.clone();
        new.models = new.config.models.clone().unwrap_or_else(|| other.models.clone());
        new.counter = new.config.counter.clone().unwrap_or_else(|| other.counter.clone());
        new.memory.conversations.set_policy(new.config.remember.unwrap_or(REMEMBER));
        for (_, tenant) in new.memory.tenants.entries() {
            tenant.breaker.set_policy(new.config.summaries);
        }
        new
    }

    pub(crate) fn policy(&self) -> &CompactionPolicy {
        self.config.compactor.policy()
    }

    /// Whether the provider that would write a summary for a call with this context is degraded.
    pub(crate) fn is_summariser_degraded(&self, context: &CallContext) -> bool {
        let Config { summariser, health, summaries_from, .. } = &self.config;
        let Some(health) = health.as_ref().filter(|health| !health.is_empty()) else {
            return false;
        };
        let target = || context.target.as_ref().map(Target::provider);
        let provider = summaries_from.as_deref().or_else(target);
        summariser.is_some() && provider.is_some_and(|provider| health.contains(provider))
    }

    /// A new generator, so that no call waits for another's.
    pub(crate) fn rng(&self) -> fastrand::Rng {
        self.rng.lock().fork()
    }

    /// The conversation a request belongs to; a new one of which nothing is kept, when that is not
    /// certain.
    pub(crate) fn conversation(&self, request: &ChatRequest) -> Arc<Conversation> {
        let make = |is_kept| Conversation {
            id: ConversationId::of(&request.context),
            owner: self.memory.hasher.hash_one(request.context.tenant()),
            is_kept,
            state: Mutex::default(),
            permits: Arc::new(Semaphore::new(1)),
        };
        if let Some(key) = id::key(request, &self.memory.hasher, !self.config.keep_ambiguous) {
            let now = Instant::now();
            let found = self.memory.conversations.get_or_insert_with(&key, now, || make(true));
            // On a hash collision (once in 2^64) the other conversation's is not used.
            if found.id.is_of(&request.context) {
                return found;
            }
        }
        Arc::new(make(false))
    }
}

impl fmt::Debug for LayerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Config { compactor, summaries, spend, .. } = &self.config;
        let policies = (compactor.policy(), summaries, spend);
        f.debug_struct("LayerState").field("policies", &policies).finish_non_exhaustive()
    }
}

/// One conversation.
#[derive(Debug)]
pub(crate) struct Conversation {
    pub(crate) id: ConversationId,
    /// A hash of its tenant.
    owner: u64,
    /// Whether anything is kept of it for its next request.
    pub(crate) is_kept: bool,
    pub(crate) state: Mutex<ConversationState>,
    /// One request of it is compacted at a time.
    permits: Arc<Semaphore>,
}

impl Keep for Conversation {
    fn owner(&self) -> u64 {
        self.owner
    }
}

/// Permission to compact a conversation; others wait until it is dropped.
#[derive(Debug)]
pub(crate) struct CompactionPermit {
    pub(crate) conversation: Arc<Conversation>,
    /// What was remembered when it was given.
    pub(crate) generation: u64,
    _permit: OwnedSemaphorePermit,
}

impl Conversation {
    /// Permission to compact it, unless another request of it is being compacted.
    pub(crate) fn try_permit(
        self: &Arc<Self>,
        state: &ConversationState,
    ) -> Option<CompactionPermit> {
        let permit = self.permits.clone().try_acquire_owned();
        permit.ok().map(|permit| self.permitted(permit, state.generation))
    }

    /// Permission to compact it, once no other request of it is being compacted.
    pub(crate) async fn permit(self: &Arc<Self>) -> CompactionPermit {
        #[expect(clippy::expect_used, reason = "the message proves that it can not happen")]
        let permit = self.permits.clone().acquire_owned().await.expect("it is never closed");
        let generation = self.state.lock().generation;
        self.permitted(permit, generation)
    }

    fn permitted(
        self: &Arc<Self>,
        permit: OwnedSemaphorePermit,
        generation: u64,
    ) -> CompactionPermit {
        CompactionPermit { conversation: self.clone(), generation, _permit: permit }
    }

    /// Whether it is being compacted.
    pub(crate) fn is_busy(&self) -> bool {
        self.permits.available_permits() == 0
    }
}

/// What is remembered of one conversation.
#[derive(Debug, Default)]
pub(crate) struct ConversationState {
    pub(crate) history: CountedHistory,
    /// The number of the last count.
    pub(crate) counted: u64,
    applied: Option<Arc<Applied>>,
    /// The window it was made for.
    window: u64,
    /// What is used once a compaction is due.
    prepared: Option<Prepared>,
    /// Turns in a row to which it did not apply.
    stale: u32,
    /// Changes when what is remembered is replaced.
    pub(crate) generation: u64,
    /// The last answer reported that the window is filling.
    pub(crate) warned: bool,
    /// What is shown of it.
    pub(crate) snapshot: ConversationSnapshot,
}

/// A compaction that was made before it was due.
#[derive(Debug)]
struct Prepared {
    applied: Arc<Applied>,
    window: u64,
    saved: u64,
}

/// Turns in a row to which a compaction did not apply, after which another may replace it: until then
/// two histories go by one name.
const STALE: u32 = 3;

impl ConversationState {
    /// What replaces the beginning of `history` in a window of this size, if anything does: what was
    /// compacted for a smaller one may have room in a larger.
    pub(crate) fn applied(&mut self, history: &[Message], window: u64) -> Option<Arc<Applied>> {
        let applied = self.applied.clone().filter(|_| window <= self.window)?;
        let covers = applied.covers(history);
        self.stale = if covers { 0 } else { self.stale };
        covers.then_some(applied)
    }

    /// Counts a turn to whose history what is remembered did not apply.
    pub(crate) fn missed(&mut self, history: &[Message]) {
        self.stale = self.stale.saturating_add(u32::from(!self.covers(history)));
    }

    /// Whether what is remembered may be replaced by a compaction of `history`: not while it is of
    /// use to another history.
    pub(crate) fn may_replace(&self, history: &[Message]) -> bool {
        self.stale >= STALE || self.covers(history)
    }

    /// Whether nothing is remembered of another history.
    fn covers(&self, history: &[Message]) -> bool {
        self.applied.as_ref().is_none_or(|applied| applied.covers(history))
    }

    /// Forgets what was compacted.
    pub(crate) fn forget(&mut self) {
        self.replace(None, 0, 0);
    }

    /// Takes over a compaction.
    pub(crate) fn keep(&mut self, applied: Arc<Applied>, window: u64, saved: u64) {
        self.replace(Some(applied), window, saved);
        self.snapshot.compactions += 1;
    }

    /// Whether this is what is remembered.
    pub(crate) fn remembers(&self, applied: &Arc<Applied>) -> bool {
        self.applied.as_ref().is_some_and(|own| Arc::ptr_eq(own, applied))
    }

    /// The window that what is remembered was made for; 0 where there is nothing.
    pub(crate) fn window(&self) -> u64 {
        self.window
    }

    /// Takes over a compaction that is not due yet.
    pub(crate) fn prepare(&mut self, applied: Arc<Applied>, window: u64, saved: u64) {
        self.prepared = Some(Prepared { applied, window, saved });
    }

    /// Whether a compaction of `history` is prepared.
    pub(crate) fn is_prepared(&self, history: &[Message]) -> bool {
        self.prepared.as_ref().is_some_and(|prepared| prepared.applied.covers(history))
    }

    /// Keeps the compaction that is prepared, now that it is due; whether there is one of `history`.
    pub(crate) fn use_prepared(&mut self, history: &[Message]) -> bool {
        if !self.is_prepared(history) {
            return false;
        }
        let Some(Prepared { applied, window, saved }) = self.prepared.take() else { return false };
        self.keep(applied, window, saved);
        true
    }

    fn replace(&mut self, applied: Option<Arc<Applied>>, window: u64, saved: u64) {
        (self.applied, self.window, self.snapshot.saved) = (applied, window, saved);
        self.prepared = None;
        self.stale = 0;
        self.generation += 1;
        self.history.compacted();
    }
}
