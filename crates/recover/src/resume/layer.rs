//! The layer and its settings.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use steadfast_chat::ChatRequest;
use steadfast_core::{Dialect, RetryBudget, Target};
use tower_layer::Layer;
use tower_service::Service;

use super::{events::ResumedEvents, policy::ResumePolicy};
use crate::{
    PolicyError,
    again::Budget,
    follow::Prefill,
    service::{Begun, Recover, RecoverFuture, Recovers},
};

/// Goes on with streams that break after content. See the [crate's documentation](crate).
///
/// Every service of a layer value, and of its clones, shares its counters and its budget. The
/// setters begin a new state: take the [`handle`](Self::handle) last.
#[derive(Clone, Debug)]
#[must_use = "a layer does nothing until it wraps a service"]
pub struct StreamResumeLayer {
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) policy: ResumePolicy,
    pub(crate) prefill: Prefill,
    pub(crate) budget: Budget,
    /// What is drawn from when neither the layer nor the request has one.
    pub(crate) fallback: RetryBudget,
    pub(crate) counts: Counts,
}

#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) broken: AtomicU64,
    pub(crate) resumed: AtomicU64,
    pub(crate) declined: AtomicU64,
    pub(crate) waste: AtomicU64,
}

impl Default for StreamResumeLayer {
    fn default() -> Self {
        Self::of(ResumePolicy::default(), Prefill::default(), Budget::Default)
    }
}

impl StreamResumeLayer {
    /// Passes the failures of broken streams on.
    pub fn off() -> Self {
        let policy = ResumePolicy { resumes: 0, ..ResumePolicy::default() };
        Self::of(policy, Prefill::default(), Budget::Default)
    }

    /// Resumes by `policy`.
    ///
    /// # Errors
    ///
    /// When the policy makes no sense; see [`ResumePolicy::validate`].
    pub fn new(policy: ResumePolicy) -> Result<Self, PolicyError> {
        policy.validate()?;
        Ok(Self::of(policy, Prefill::default(), Budget::Default))
    }

    fn of(policy: ResumePolicy, prefill: Prefill, budget: Budget) -> Self {
        let (fallback, counts) = (RetryBudget::default(), Counts::default());
        Self { shared: Arc::new(Shared { policy, prefill, budget, fallback, counts }) }
    }

    /// With the policy changed by `change`.
    ///
    /// # Errors
    ///
    /// When it makes no sense any more; see [`ResumePolicy::validate`].
    pub fn tune(self, change: impl FnOnce(&mut ResumePolicy)) -> Result<Self, PolicyError> {
        let mut policy = self.shared.policy.clone();
        change(&mut policy);
        policy.validate()?;
        Ok(Self::of(policy, self.shared.prefill.clone(), self.shared.budget.clone()))
    }

    /// Which targets go on with a last message of the model's own. By default none do, and a
    /// message of the user asks for the last words to be repeated. `accepts` is called with the
    /// target that answers, when it is known, and its dialect. It is never relied on while the
    /// request asks the model to think, nor when another target than the one that broke answers
    /// that does not accept it: then the seam is looked for all the same.
    ///
    /// ```
    /// use steadfast_recover::StreamResumeLayer;
    ///
    /// let layer = StreamResumeLayer::default().prefill(|target, _| {
    ///     target.and_then(|target| target.model()).is_some_and(|model| model.starts_with("claude-3"))
    /// });
    /// ```
    pub fn prefill(
        self,
        accepts: impl Fn(Option<&Target>, Dialect) -> bool + Send + Sync + 'static,
    ) -> Self {
        let Shared { policy, budget, .. } = &*self.shared;
        Self::of(policy.clone(), Prefill::new(accepts), budget.clone())
    }

    /// Draws every resume from `budget`, whatever a request brings along. Without this a request's
    /// own is drawn from, else one of the layer's.
    pub fn budget(self, budget: RetryBudget) -> Self {
        let Shared { policy, prefill, .. } = &*self.shared;
        Self::of(policy.clone(), prefill.clone(), Budget::Own(budget))
    }

    /// Draws from no budget.
    pub fn without_budget(self) -> Self {
        let Shared { policy, prefill, .. } = &*self.shared;
        Self::of(policy.clone(), prefill.clone(), Budget::Unlimited)
    }

    /// The policy in force.
    pub fn policy(&self) -> &ResumePolicy {
        &self.shared.policy
    }

    /// Looks at what the layer did.
    pub fn handle(&self) -> ResumeHandle {
        ResumeHandle(self.shared.clone())
    }
}

/// Goes on with streams of the inner service that break; see [`StreamResumeLayer`].
pub type StreamResume<S> = Recover<S, StreamResumeLayer>;

/// The future of a call through a [`StreamResume`].
pub type ResumeFuture<S, F> = RecoverFuture<S, F, StreamResumeLayer>;

impl Recovers for StreamResumeLayer {
    type Events<S: Service<ChatRequest>, E> = ResumedEvents<S, E>;

    fn begin<S: Service<ChatRequest>, E>(events: E, begun: Begun<S, Self>) -> ResumedEvents<S, E> {
        ResumedEvents::new(events, begun)
    }
}

impl<S: Clone> Layer<S> for StreamResumeLayer {
    type Service = StreamResume<S>;

    fn layer(&self, inner: S) -> StreamResume<S> {
        Recover::new(inner, self.clone())
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("policy", &self.policy)
            .field("prefill", &self.prefill)
            .field("budget", &self.budget)
            .finish_non_exhaustive()
    }
}

/// Looks at what a [`StreamResumeLayer`] did.
#[derive(Clone, Debug)]
pub struct ResumeHandle(Arc<Shared>);

/// What a [`StreamResumeLayer`] did since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ResumeSnapshot {
    /// Streams that broke, resumed ones that broke again included.
    pub broken: u64,
    /// Streams whose seam was found.
    pub resumed: u64,
    /// Failures passed on.
    pub declined: u64,
    /// Tokens the broken parts are known or estimated to have used, of streams that were gone on
    /// with.
    pub wasted_tokens: u64,
}

impl ResumeHandle {
    /// What the layer did so far.
    pub fn snapshot(&self) -> ResumeSnapshot {
        let Counts { broken, resumed, declined, waste } = &self.0.counts;
        ResumeSnapshot {
            broken: broken.load(Ordering::Relaxed),
            resumed: resumed.load(Ordering::Relaxed),
            declined: declined.load(Ordering::Relaxed),
            wasted_tokens: waste.load(Ordering::Relaxed),
        }
    }

    /// Counts from zero again.
    pub fn reset(&self) {
        let Counts { broken, resumed, declined, waste } = &self.0.counts;
        for count in [broken, resumed, declined, waste] {
            count.store(0, Ordering::Relaxed);
        }
    }
}
