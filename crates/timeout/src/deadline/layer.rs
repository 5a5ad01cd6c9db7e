//! The layer and its settings.

use std::{fmt, sync::Arc, time::Duration};

use steadfast_core::{AtOnce, Near, UntilEnd};
use tower_layer::Layer;

use crate::{
    DeadlinePolicy, DeadlineService, PolicyError, TimeoutHandle,
    state::{Limits, Shared},
};

/// Gives every call a deadline, which all layers below obey, and ends the call at it.
///
/// The deadline is the caller's own
/// ([`CallContext::deadline`](steadfast_core::CallContext::deadline)) when that is earlier. It
/// runs over the future of the call and over the whole body or event stream of its reply
/// ([`UntilEnd`]), or over the future alone ([`at_once`](Self::at_once)). A call whose deadline
/// has passed when it is made fails without being made.
///
/// Every service made by one layer value, and by its clones, shares one set of counters.
#[must_use = "a layer does nothing until it wraps a service"]
pub struct DeadlineLayer<W = UntilEnd> {
    pipeline: Duration,
    shared: Arc<Shared>,
    watching: W,
}

impl DeadlineLayer {
    /// Limits calls by `policy`.
    ///
    /// # Errors
    ///
    /// When the policy makes no sense; the error says what would.
    pub fn new(policy: DeadlinePolicy) -> Result<Self, PolicyError> {
        policy.validate()?;
        Ok(Self::of(policy))
    }

    /// Limits calls to `pipeline`.
    ///
    /// # Errors
    ///
    /// When it is zero.
    pub fn after(pipeline: Duration) -> Result<Self, PolicyError> {
        Self::new(DeadlinePolicy { pipeline })
    }

    /// Only for policies known to be valid.
    fn of(policy: DeadlinePolicy) -> Self {
        let DeadlinePolicy { pipeline } = policy;
        let limits = Limits { pipeline: Some(pipeline), ..Limits::default() };
        Self { pipeline, shared: Arc::new(Shared::new(limits)), watching: UntilEnd }
    }
}

impl Default for DeadlineLayer {
    /// [`DeadlinePolicy::default`].
    fn default() -> Self {
        Self::of(DeadlinePolicy::default())
    }
}

impl<W> DeadlineLayer<W> {
    /// For replies that are plain values: only the future is limited.
    pub fn at_once(self) -> DeadlineLayer<AtOnce> {
        self.watching(AtOnce)
    }

    /// With another notion of how far the limit reaches.
    pub fn watching<V>(self, watching: V) -> DeadlineLayer<V> {
        DeadlineLayer { pipeline: self.pipeline, shared: self.shared, watching }
    }

    /// The policy in force.
    pub const fn policy(&self) -> DeadlinePolicy {
        DeadlinePolicy { pipeline: self.pipeline }
    }

    /// Looks at the layer's state and resets it.
    pub fn handle(&self) -> TimeoutHandle {
        TimeoutHandle(self.shared.clone())
    }
}

impl<S, W: Clone> Layer<S> for DeadlineLayer<W> {
    type Service = DeadlineService<S, W>;

    fn layer(&self, inner: S) -> Self::Service {
        let shared = Near::new(self.shared.clone());
        DeadlineService::new(inner, self.pipeline, shared, self.watching.clone())
    }
}

impl<W: Clone> Clone for DeadlineLayer<W> {
    fn clone(&self) -> Self {
        Self {
            pipeline: self.pipeline,
            shared: self.shared.clone(),
            watching: self.watching.clone(),
        }
    }
}

impl<W> fmt::Debug for DeadlineLayer<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeadlineLayer").field("pipeline", &self.pipeline).finish_non_exhaustive()
    }
}
