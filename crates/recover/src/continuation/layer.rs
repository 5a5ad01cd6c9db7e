//! The layer and its settings.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use steadfast_chat::ChatRequest;
use steadfast_core::Target;
use tower_layer::Layer;
use tower_service::Service;

use super::{
    events::ContinuedEvents,
    policy::{ContinuationPolicy, Limits, OutputLimits},
};
use crate::{
    PolicyError,
    service::{Begun, Recover, RecoverFuture, Recovers},
};

/// Continues answers that were cut off by the output limit. See the [crate's documentation](crate).
///
/// Every service of a layer value, and of its clones, shares its counters. The setters begin a new
/// state: take the [`handle`](Self::handle) last.
#[derive(Clone, Debug)]
#[must_use = "a layer does nothing until it wraps a service"]
pub struct ContinuationLayer {
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) policy: ContinuationPolicy,
    pub(crate) limits: Limits,
    pub(crate) counts: Counts,
}

#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) cut: AtomicU64,
    pub(crate) escalated: AtomicU64,
    pub(crate) continued: AtomicU64,
    pub(crate) truncated: AtomicU64,
}

impl Default for ContinuationLayer {
    fn default() -> Self {
        Self::of(ContinuationPolicy::default(), Limits::default())
    }
}

impl ContinuationLayer {
    /// Passes cut-off answers on as they come.
    pub fn off() -> Self {
        let mut policy = ContinuationPolicy::default();
        (policy.escalate_to, policy.continuations) = (0, 0);
        Self::of(policy, Limits::default())
    }

    /// Continues by `policy`.
    ///
    /// # Errors
    ///
    /// When the policy makes no sense; see [`ContinuationPolicy::validate`].
    pub fn new(policy: ContinuationPolicy) -> Result<Self, PolicyError> {
        policy.validate()?;
        Ok(Self::of(policy, Limits::default()))
    }

    fn of(policy: ContinuationPolicy, limits: Limits) -> Self {
        Self { shared: Arc::new(Shared { policy, limits, counts: Counts::default() }) }
    }

    /// With the policy changed by `change`.
    ///
    /// # Errors
    ///
    /// When it makes no sense any more; see [`ContinuationPolicy::validate`].
    pub fn tune(self, change: impl FnOnce(&mut ContinuationPolicy)) -> Result<Self, PolicyError> {
        let mut policy = self.shared.policy.clone();
        change(&mut policy);
        policy.validate()?;
        Ok(Self::of(policy, self.shared.limits.clone()))
    }

    /// Holds back streamed answers until it is known why they stopped, so that the output limit can
    /// be raised for them too. Their callers then wait for the whole answer.
    pub fn withhold(self, withhold: bool) -> Self {
        let mut policy = self.shared.policy.clone();
        policy.withhold = withhold;
        Self::of(policy, self.shared.limits.clone())
    }

    /// What models can do: a raised limit is never more than the model's own, nor than what its
    /// window leaves. Called with the request and the target that answered, when it is known.
    /// Where nothing is known a limit may be raised too far, and is refused: then the answer is
    /// continued from where it was cut.
    ///
    /// ```
    /// use steadfast_recover::{ContinuationLayer, OutputLimits};
    ///
    /// let layer = ContinuationLayer::default().limits(|request, _| match request.model.as_str() {
    ///     "gpt-4o" => OutputLimits { max_output: Some(16_384), window: Some(128_000) },
    ///     _ => OutputLimits::default(),
    /// });
    /// ```
    pub fn limits(
        self,
        limits: impl Fn(&ChatRequest, Option<&Target>) -> OutputLimits + Send + Sync + 'static,
    ) -> Self {
        Self::of(self.shared.policy.clone(), Limits(Some(Arc::new(limits))))
    }

    /// The policy in force.
    pub fn policy(&self) -> &ContinuationPolicy {
        &self.shared.policy
    }

    /// Looks at what the layer did.
    pub fn handle(&self) -> ContinuationHandle {
        ContinuationHandle(self.shared.clone())
    }
}

/// Continues answers of the inner service that were cut off; see [`ContinuationLayer`].
pub type Continuation<S> = Recover<S, ContinuationLayer>;

/// The future of a call through a [`Continuation`].
pub type ContinuationFuture<S, F> = RecoverFuture<S, F, ContinuationLayer>;

impl Recovers for ContinuationLayer {
    type Events<S: Service<ChatRequest>, E> = ContinuedEvents<S, E>;

    fn begin<S: Service<ChatRequest>, E>(
        events: E,
        begun: Begun<S, Self>,
    ) -> ContinuedEvents<S, E> {
        ContinuedEvents::new(events, begun)
    }
}

impl<S: Clone> Layer<S> for ContinuationLayer {
    type Service = Continuation<S>;

    fn layer(&self, inner: S) -> Continuation<S> {
        Recover::new(inner, self.clone())
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("policy", &self.policy)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

/// Looks at what a [`ContinuationLayer`] did.
#[derive(Clone, Debug)]
pub struct ContinuationHandle(Arc<Shared>);

/// What a [`ContinuationLayer`] did since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ContinuationSnapshot {
    /// Times that the output limit cut something off, continuations included.
    pub cut: u64,
    /// Answers asked for again with a higher limit.
    pub escalated: u64,
    /// Continuations asked for.
    pub continued: u64,
    /// Answers that reached the caller cut off.
    pub truncated: u64,
}

impl ContinuationHandle {
    /// What the layer did so far.
    pub fn snapshot(&self) -> ContinuationSnapshot {
        let Counts { cut, escalated, continued, truncated } = &self.0.counts;
        ContinuationSnapshot {
            cut: cut.load(Ordering::Relaxed),
            escalated: escalated.load(Ordering::Relaxed),
            continued: continued.load(Ordering::Relaxed),
            truncated: truncated.load(Ordering::Relaxed),
        }
    }

    /// Counts from zero again.
    pub fn reset(&self) {
        let Counts { cut, escalated, continued, truncated } = &self.0.counts;
        for count in [cut, escalated, continued, truncated] {
            count.store(0, Ordering::Relaxed);
        }
    }
}
