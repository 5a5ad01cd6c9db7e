//! What all services of one layer share, and the handle to it.

use std::{
    borrow::Cow,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use steadfast_core::{BudgetSource, CallContext, Failure, Reason, RetryBudget};

use crate::{
    Decision, RetryPolicy, Situation,
    nudge::{Nudge, Nudging},
};

/// The settings of a layer.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) policy: RetryPolicy,
    pub(crate) nudging: Nudging,
    pub(crate) budget: BudgetSource,
    pub(crate) seed: Option<u64>,
}

/// What all services of one layer share.
#[derive(Debug)]
pub(crate) struct RetryState {
    pub(crate) config: Config,
    budget: RetryBudget,
    rng: Mutex<fastrand::Rng>,
    counters: Arc<Counters>,
}

#[derive(Debug, Default)]
struct Counters {
    calls: AtomicU64,
    retries: [AtomicU64; Reason::ALL.len()],
    recovered: AtomicU64,
    gave_up: AtomicU64,
}

impl RetryState {
    pub(crate) fn new(config: Config) -> Self {
        let budget = match &config.budget {
            BudgetSource::Own(budget) => budget.clone(),
            BudgetSource::Default | BudgetSource::Unlimited => RetryBudget::default(),
        };
        let rng = config.seed.map_or_else(fastrand::Rng::new, fastrand::Rng::with_seed);
        Self { config, budget, rng: Mutex::new(rng), counters: Arc::default() }
    }

    /// These settings, with the counters and the default budget of `other`.
    pub(crate) fn sharing(&self, other: &Self) -> Self {
        let mut new = Self::new(self.config.clone());
        new.counters = other.counters.clone();
        if let (BudgetSource::Default, BudgetSource::Default) =
            (&self.config.budget, &other.config.budget)
        {
            new.budget = other.budget.clone();
        }
        new
    }

    /// The budget a request draws from: the layer's or its own.
    #[inline]
    pub(crate) fn budget<'a>(&'a self, context: &'a CallContext) -> Option<&'a RetryBudget> {
        self.config.budget.of(context, &self.budget)
    }

    pub(crate) fn decide(&self, failure: &Failure, situation: &Situation) -> Decision {
        self.config.policy.decide(failure, situation, &mut self.rng.lock())
    }

    /// `wait` and up to a quarter more: many wait for the same turn, and none before it.
    pub(crate) fn spread(&self, wait: Duration) -> Duration {
        wait + (wait / 4).mul_f64(self.rng.lock().f64())
    }

    pub(crate) fn nudge(&self, nudge: &Nudge) -> Option<Cow<'static, str>> {
        self.config.nudging.text(nudge)
    }

    pub(crate) fn called(&self) {
        self.counters.calls.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn retried(&self, reason: Reason) {
        self.counters.retries[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn recovered(&self) {
        self.counters.recovered.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn gave_up(&self) {
        self.counters.gave_up.fetch_add(1, Ordering::Relaxed);
    }
}

/// Reads and resets the state of a [`RetryBackoffLayer`](crate::RetryBackoffLayer). Cheap to clone;
/// every clone and every service of the layer share one state.
#[derive(Clone)]
pub struct RetryHandle(pub(crate) Arc<RetryState>);

/// What a layer has done so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RetrySnapshot {
    /// Calls made through it.
    pub calls: u64,
    /// Retries made, by the reason of the failure before; reasons that never occurred are left
    /// out.
    pub retries: Vec<(Reason, u64)>,
    /// Calls that were answered after at least one retry.
    pub recovered: u64,
    /// Calls that failed although the layer had retried or could have.
    pub gave_up: u64,
    /// Tokens left in the layer's own retry budget; `None` when it has none. Requests that have a
    /// budget draw from that instead.
    pub budget: Option<u32>,
    /// Calls that wait between their attempts, here and in the other layers that share the budget.
    pub waiting: u32,
}

impl RetrySnapshot {
    /// Retries made, whatever the reason.
    pub fn total_retries(&self) -> u64 {
        self.retries.iter().map(|(_, count)| count).sum()
    }
}

impl RetryHandle {
    /// What the layer has done so far. The numbers are read one after the other, so a call under
    /// way may be in some and not yet in others.
    pub fn snapshot(&self) -> RetrySnapshot {
        let RetryState { config, budget, counters, .. } = &*self.0;
        let retries = Reason::ALL
            .into_iter()
            .zip(&counters.retries)
            .map(|(reason, count)| (reason, count.load(Ordering::Relaxed)))
            .filter(|(_, count)| *count > 0)
            .collect();
        RetrySnapshot {
            calls: counters.calls.load(Ordering::Relaxed),
            retries,
            recovered: counters.recovered.load(Ordering::Relaxed),
            gave_up: counters.gave_up.load(Ordering::Relaxed),
            budget: (!matches!(config.budget, BudgetSource::Unlimited)).then(|| budget.remaining()),
            waiting: budget.waiting(),
        }
    }

    /// Sets the counters to zero and fills the layer's own budget.
    pub fn reset(&self) {
        let RetryState { budget, counters, .. } = &*self.0;
        let Counters { calls, retries, recovered, gave_up } = &**counters;
        for count in retries.iter().chain([calls, recovered, gave_up]) {
            count.store(0, Ordering::Relaxed);
        }
        budget.reset();
    }
}

impl fmt::Debug for RetryHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RetryHandle").field(&self.snapshot()).finish()
    }
}
