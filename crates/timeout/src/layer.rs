//! The layers and their settings.

use std::{fmt, marker::PhantomData, sync::Arc, time::Duration};

use steadfast_core::{AtOnce, UntilEnd};
use tower_layer::Layer;

use crate::{
    DeadlinePolicy, PolicyError, StallPolicy, Timeout, TimeoutHandle, policy::TimePolicy,
    state::TimeoutState,
};

/// Ends attempts that hang, that take too long, or that come too slowly; see [`TimeoutLayer`] for
/// what the limits cover.
///
/// With any limits, a call ends at its context's deadline.
pub type StallTimeoutLayer<W = UntilEnd> = TimeoutLayer<StallPolicy, W>;

/// Gives every call a deadline, which all inner layers keep, and ends the call at it; see
/// [`TimeoutLayer`] for what it covers.
///
/// The deadline is the caller's own
/// ([`CallContext::deadline`](steadfast_core::CallContext::deadline)) when that is earlier. A call
/// whose deadline has passed fails without being sent.
pub type DeadlineLayer<W = UntilEnd> = TimeoutLayer<DeadlinePolicy, W>;

/// Puts calls under the time limits of a policy: a [`StallTimeoutLayer`] or a [`DeadlineLayer`].
///
/// The limits run over the future of a call and over the whole body or event stream of its reply
/// ([`UntilEnd`]), or over the future alone ([`at_once`](Self::at_once)).
///
/// Every service made by one layer value, and by its clones, shares one set of counters; the
/// setters create a new one.
#[must_use = "a layer does nothing until it wraps a service"]
pub struct TimeoutLayer<P, W = UntilEnd> {
    policy: P,
    shared: Arc<TimeoutState>,
    reach: PhantomData<fn() -> W>,
}

impl<P: TimePolicy> TimeoutLayer<P> {
    /// Limits calls by `policy`.
    ///
    /// # Errors
    ///
    /// When the policy is invalid; the error says what would be valid.
    pub fn new(policy: P) -> Result<Self, PolicyError> {
        policy.check()?;
        Ok(Self::of(policy))
    }
}

impl DeadlineLayer {
    /// Limits calls to `pipeline`.
    ///
    /// # Errors
    ///
    /// When it is zero.
    pub fn after(pipeline: Duration) -> Result<Self, PolicyError> {
        Self::new(DeadlinePolicy { pipeline })
    }
}

impl<P: TimePolicy> Default for TimeoutLayer<P> {
    /// With the default of its policy.
    fn default() -> Self {
        Self::of(P::default())
    }
}

impl<W> StallTimeoutLayer<W> {
    /// With this stall limit, of which the ceiling is a multiple.
    ///
    /// # Errors
    ///
    /// When it is zero or below the limit of the first content.
    pub fn with_stall(self, stall: Duration) -> Result<Self, PolicyError> {
        let policy = StallPolicy { stall, ..self.policy };
        policy.check()?;
        Ok(Self::of(policy))
    }
}

impl<P: TimePolicy, W> TimeoutLayer<P, W> {
    /// Only for policies known to be valid.
    fn of(policy: P) -> Self {
        Self { policy, shared: Arc::new(TimeoutState::new(policy.limits())), reach: PhantomData }
    }

    /// For replies that are values: only the future is limited.
    pub fn at_once(self) -> TimeoutLayer<P, AtOnce> {
        self.with_reach()
    }

    /// With limits that cover what [`TimeoutReply<V>`](crate::TimeoutReply) defines.
    pub fn with_reach<V>(self) -> TimeoutLayer<P, V> {
        TimeoutLayer { policy: self.policy, shared: self.shared, reach: PhantomData }
    }

    /// As this layer is set, with the counters of the layer that `handle` is of. The last of the settings:
    /// each of the others begins with counters of its own.
    pub fn sharing(mut self, handle: &TimeoutHandle) -> Self {
        self.shared = Arc::new(self.shared.sharing(&handle.0));
        self
    }

    /// The policy in force.
    pub const fn policy(&self) -> &P {
        &self.policy
    }

    /// A handle that reads the layer's state and resets it.
    pub fn handle(&self) -> TimeoutHandle {
        TimeoutHandle(self.shared.clone())
    }
}

impl<S, P, W> Layer<S> for TimeoutLayer<P, W> {
    type Service = Timeout<S, W>;

    fn layer(&self, inner: S) -> Self::Service {
        Timeout::new(inner, self.shared.clone())
    }
}

impl<P: Clone, W> Clone for TimeoutLayer<P, W> {
    fn clone(&self) -> Self {
        Self { policy: self.policy.clone(), shared: self.shared.clone(), reach: PhantomData }
    }
}

impl<P: fmt::Debug, W> fmt::Debug for TimeoutLayer<P, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimeoutLayer").field("policy", &self.policy).finish_non_exhaustive()
    }
}
