//! What all services of one layer share.

use std::{
    collections::HashMap,
    fmt,
    hash::BuildHasher,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use foldhash::quality::RandomState;
use parking_lot::{Mutex, RwLock};
use steadfast_chat::{ChatRequest, transcript::Rules};
use steadfast_core::{Dialect, Keyed, KeyedPolicy, Target};
use tokio::time::Instant;

use crate::{
    Compactor, ConversationId, Counter, Limits, Models, Policy, Scheme, SpendCap, SpendPolicy,
    SummaryPolicy,
    gate::Gate,
    memory::Conversation,
    scope,
    summariser::{Summariser, Tenant},
};

/// Targets whose facts are remembered by a service, at most.
const TARGETS: usize = 1_024;

/// What the layer has to know of a target, where its name does not tell.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TargetFacts {
    /// What it speaks; `None` to go by its name, the request, and the model's name.
    pub dialect: Option<Dialect>,
    /// Its window and output limit; `None` for those of its model in [`Models`].
    pub limits: Option<Limits>,
    /// Whether it reads images.
    pub vision: bool,
}

impl Default for TargetFacts {
    fn default() -> Self {
        Self { dialect: None, limits: None, vision: true }
    }
}

impl TargetFacts {
    /// With this dialect.
    #[must_use]
    pub fn with_dialect(mut self, dialect: Dialect) -> Self {
        self.dialect = Some(dialect);
        self
    }

    /// With these limits.
    #[must_use]
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = Some(limits);
        self
    }

    /// Says whether it reads images.
    #[must_use]
    pub fn with_vision(mut self, vision: bool) -> Self {
        self.vision = vision;
        self
    }
}

type Targets = Arc<dyn Fn(&Target) -> TargetFacts + Send + Sync>;

/// Everything that is set.
#[derive(Clone)]
pub(crate) struct Config {
    pub(crate) compactor: Compactor,
    pub(crate) models: Arc<Models>,
    pub(crate) counter: Arc<Counter>,
    pub(crate) summaries: SummaryPolicy,
    pub(crate) spend: SpendPolicy,
    /// Nothing is looked at, and nothing done.
    pub(crate) off: bool,
    pub(crate) deferred: bool,
    pub(crate) fail_closed_rollover: bool,
    pub(crate) targets: Option<Targets>,
    pub(crate) summariser: Option<Arc<Summariser>>,
    pub(crate) seed: Option<u64>,
    pub(crate) remember: KeyedPolicy,
}

/// What all services of one layer share.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) gate: Mutex<Gate>,
    pub(crate) tenants: Keyed<Box<str>, Tenant>,
    pub(crate) conversations: Keyed<u64, Conversation>,
    pub(crate) counts: Counts,
    hasher: RandomState,
    rng: Mutex<fastrand::Rng>,
}

/// What was done since the layer was made.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) warned: AtomicU64,
    pub(crate) compacted: AtomicU64,
    pub(crate) summarised: AtomicU64,
    pub(crate) degraded: AtomicU64,
    pub(crate) ineffective: AtomicU64,
    pub(crate) overflows: AtomicU64,
    pub(crate) too_large: AtomicU64,
}

pub(crate) fn add(count: &AtomicU64) {
    count.fetch_add(1, Ordering::Relaxed);
}

impl Shared {
    pub(crate) fn new(config: Config) -> Self {
        let gate = Mutex::new(Gate::new(config.summaries.gate()));
        let rng = config.seed.map_or_else(fastrand::Rng::new, fastrand::Rng::with_seed);
        let conversations = config.remember;
        Self {
            gate,
            tenants: Keyed::new(KeyedPolicy::default()),
            conversations: Keyed::new(conversations),
            counts: Counts::default(),
            hasher: RandomState::default(),
            rng: Mutex::new(rng),
            config,
        }
    }

    pub(crate) fn policy(&self) -> &Policy {
        self.config.compactor.policy()
    }

    /// A generator of its own, so that nobody waits for another's.
    pub(crate) fn rng(&self) -> fastrand::Rng {
        self.rng.lock().fork()
    }

    pub(crate) fn tenant(&self, name: Option<&str>, now: Instant) -> Arc<Tenant> {
        let name: Box<str> = name.unwrap_or_default().into();
        let make = || Tenant(Mutex::new(SpendCap::new(self.config.spend, now)));
        self.tenants.get_or_insert_with(&name, now, make)
    }

    /// The conversation a request belongs to; `None` when that can not be told for certain.
    pub(crate) fn conversation(&self, request: &ChatRequest) -> Option<Arc<Conversation>> {
        let strict = self.config.fail_closed_rollover;
        let key = scope::key(request, &self.hasher, strict)?;
        let make = || Conversation::new(ConversationId::of(&request.context));
        let found = self.conversations.get_or_insert_with(&key, Instant::now(), make);
        // Two names with one hash: once in 2^64, and then not the other's.
        found.id.is_of(&request.context).then_some(found)
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("config", &self.config).finish_non_exhaustive()
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("policy", self.compactor.policy())
            .field("summaries", &self.summaries)
            .field("spend", &self.spend)
            .field("deferred", &self.deferred)
            .field("fail_closed_rollover", &self.fail_closed_rollover)
            .field("summariser", &self.summariser.is_some())
            .finish_non_exhaustive()
    }
}

/// What is known of where a request goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    pub(crate) limits: Limits,
    /// Somebody knows them.
    pub(crate) is_known: bool,
    pub(crate) scheme: Scheme,
    /// As far as the provider's name tells, and as the model's does.
    dialect: Option<Dialect>,
    of_model: Option<Dialect>,
    vision: bool,
    /// A hash of the model.
    pub(crate) model: u64,
}

impl Facts {
    pub(crate) fn dialect(&self, request: &ChatRequest) -> Dialect {
        self.dialect.or_else(|| request.dialect()).or(self.of_model).unwrap_or(Dialect::OpenAi)
    }

    /// Whether the output asked for counts towards the window.
    pub(crate) fn output_counts(&self, request: &ChatRequest) -> bool {
        self.dialect(request) == Dialect::Anthropic
    }

    /// What the target accepts.
    pub(crate) fn rules(&self, request: &ChatRequest) -> Rules {
        let mut rules = Rules::for_dialect(self.dialect(request));
        rules.images.vision = self.vision;
        rules
    }
}

/// The model that will answer: the target's, or the one asked for.
pub(crate) fn model(request: &ChatRequest) -> &str {
    request.context.target.as_ref().and_then(Target::model).unwrap_or(&request.model)
}

/// What a provider or model of this name speaks, as far as the name tells.
fn spoken_by(name: &str) -> Option<Dialect> {
    const NAMES: [(&str, Dialect); 6] = [
        ("anthropic", Dialect::Anthropic),
        ("claude", Dialect::Anthropic),
        ("gemini", Dialect::Gemini),
        ("google", Dialect::Gemini),
        ("vertex", Dialect::Gemini),
        ("openai", Dialect::OpenAi),
    ];
    let holds = |part: &str| {
        name.as_bytes().windows(part.len()).any(|at| at.eq_ignore_ascii_case(part.as_bytes()))
    };
    NAMES.iter().find(|(part, _)| holds(part)).map(|(_, dialect)| *dialect)
}

/// What a service and its clones have in common, apart from those of the same layer: what every call
/// reads is written here, where cores that use services of their own do not meet.
pub(crate) struct Own<S> {
    pub(crate) shared: Arc<Shared>,
    /// What repeated calls are made with clones of. Locked for the cloning.
    spare: Mutex<S>,
    facts: RwLock<Known>,
}

/// What was found out of targets.
#[derive(Default)]
struct Known {
    epoch: u64,
    found: HashMap<u64, Found, foldhash::fast::RandomState>,
}

struct Found {
    target: Option<Target>,
    model: Box<str>,
    facts: Facts,
}

impl<S> Own<S> {
    pub(crate) fn new(shared: Arc<Shared>, spare: S) -> Self {
        Self { shared, spare: Mutex::new(spare), facts: RwLock::default() }
    }

    /// What is known of where `request` goes.
    pub(crate) fn facts(&self, request: &ChatRequest) -> Facts {
        let (target, model) = (request.context.target.as_ref(), model(request));
        let epoch = self.shared.config.models.epoch();
        let key = self.shared.hasher.hash_one((target, model));
        let known = self.facts.read();
        if known.epoch == epoch
            && let Some(found) = known.found.get(&key)
            && found.target.as_ref() == target
            && *found.model == *model
        {
            return found.facts;
        }
        drop(known);
        self.find(request, key, epoch)
    }

    #[cold]
    fn find(&self, request: &ChatRequest, key: u64, epoch: u64) -> Facts {
        let facts = self.shared.facts(request);
        let mut known = self.facts.write();
        if known.epoch != epoch || known.found.len() >= TARGETS {
            *known = Known { epoch, ..Known::default() };
        }
        let target = request.context.target.clone();
        known.found.insert(key, Found { target, model: model(request).into(), facts });
        facts
    }
}

impl<S: Clone> Own<S> {
    pub(crate) fn spare(&self) -> S {
        self.spare.lock().clone()
    }
}

impl Shared {
    fn facts(&self, request: &ChatRequest) -> Facts {
        let config = &self.config;
        let target = request.context.target.as_ref();
        let given = match (target, &config.targets) {
            (Some(target), Some(targets)) => targets(target),
            _ => TargetFacts::default(),
        };
        let model = model(request);
        let known = config.models.get(model);
        // What was learned of the model is less than what it is said to have.
        let limits = match (given.limits, known) {
            (Some(given), Some(known)) if config.models.is_learned(model) => {
                Limits { window: given.window.min(known.window), ..given }
            }
            (Some(given), _) => given,
            (None, known) => known.unwrap_or(crate::UNKNOWN),
        };
        Facts {
            limits,
            is_known: given.limits.or(known).is_some(),
            scheme: config.counter.scheme(model),
            dialect: given.dialect.or_else(|| target.and_then(|one| spoken_by(one.provider()))),
            of_model: spoken_by(model),
            vision: given.vision,
            model: self.hasher.hash_one(model),
        }
    }
}
