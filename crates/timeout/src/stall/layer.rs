//! The layer and its settings.

use std::{fmt, sync::Arc, time::Duration};

use steadfast_core::{AtOnce, Near, UntilEnd};
use tower_layer::Layer;

use crate::{
    PolicyError, StallPolicy, StallTimeout, TimeoutHandle,
    state::{Limits, Shared},
};

/// Ends attempts that hang, that take too long, or that come too slowly.
///
/// The limits run over the future of a call and over the whole body or event stream of its reply
/// ([`UntilEnd`]), or over the future alone ([`at_once`](Self::at_once)). Whatever they are, a
/// call ends at its context's deadline.
///
/// Every service made by one layer value, and by its clones, shares one set of counters; the
/// setters begin a new one.
#[must_use = "a layer does nothing until it wraps a service"]
pub struct StallTimeoutLayer<W = UntilEnd> {
    policy: StallPolicy,
    shared: Arc<Shared>,
    watching: W,
}

impl StallTimeoutLayer {
    /// Limits attempts by `policy`.
    ///
    /// # Errors
    ///
    /// When the policy makes no sense; the error says what would.
    pub fn new(policy: StallPolicy) -> Result<Self, PolicyError> {
        policy.validate()?;
        Ok(Self::of(policy))
    }

    /// Only for policies known to be valid.
    fn of(policy: StallPolicy) -> Self {
        let shared = Arc::new(Shared::new(Limits::from(&policy)));
        Self { policy, shared, watching: UntilEnd }
    }
}

impl Default for StallTimeoutLayer {
    /// [`StallPolicy::default`].
    fn default() -> Self {
        Self::of(StallPolicy::default())
    }
}

impl<W> StallTimeoutLayer<W> {
    /// With this stall limit; the ceiling follows it.
    ///
    /// # Errors
    ///
    /// When it is zero or below the limit of the first content.
    pub fn with_stall(self, stall: Duration) -> Result<Self, PolicyError> {
        let policy = StallPolicy { stall, ..self.policy };
        policy.validate()?;
        Ok(Self {
            policy,
            shared: Arc::new(Shared::new(Limits::from(&policy))),
            watching: self.watching,
        })
    }

    /// For replies that are plain values: only the future is limited.
    pub fn at_once(self) -> StallTimeoutLayer<AtOnce> {
        self.watching(AtOnce)
    }

    /// With another notion of how far the limits reach.
    pub fn watching<V>(self, watching: V) -> StallTimeoutLayer<V> {
        StallTimeoutLayer { policy: self.policy, shared: self.shared, watching }
    }

    /// The policy in force.
    pub const fn policy(&self) -> &StallPolicy {
        &self.policy
    }

    /// Looks at the layer's state and resets it.
    pub fn handle(&self) -> TimeoutHandle {
        TimeoutHandle(self.shared.clone())
    }
}

impl<S, W: Clone> Layer<S> for StallTimeoutLayer<W> {
    type Service = StallTimeout<S, W>;

    fn layer(&self, inner: S) -> Self::Service {
        StallTimeout::new(inner, Near::new(self.shared.clone()), self.watching.clone())
    }
}

impl<W: Clone> Clone for StallTimeoutLayer<W> {
    fn clone(&self) -> Self {
        Self { policy: self.policy, shared: self.shared.clone(), watching: self.watching.clone() }
    }
}

impl<W> fmt::Debug for StallTimeoutLayer<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StallTimeoutLayer").field("policy", &self.policy).finish_non_exhaustive()
    }
}
