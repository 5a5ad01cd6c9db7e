//! The layers and their settings.

use std::{fmt, marker::PhantomData, sync::Arc, time::Duration};

use steadfast_core::{AtOnce, UntilEnd};
use tower_layer::Layer;

use crate::{
    DeadlinePolicy, PolicyError, StallPolicy, TimeLimited, TimeoutHandle, policy::TimePolicy,
    state::Shared,
};

/// Ends attempts that hang, that take too long, or that come too slowly; see
/// [`TimeLimitLayer`] for how far the limits reach.
///
/// Whatever the limits are, a call ends at its context's deadline.
pub type StallTimeoutLayer<W = UntilEnd> = TimeLimitLayer<StallPolicy, W>;

/// Gives every call a deadline, which all layers below obey, and ends the call at it; see
/// [`TimeLimitLayer`] for how far it reaches.
///
/// The deadline is the caller's own
/// ([`CallContext::deadline`](steadfast_core::CallContext::deadline)) when that is earlier. A call
/// whose deadline has passed when it is made fails without being made.
pub type DeadlineLayer<W = UntilEnd> = TimeLimitLayer<DeadlinePolicy, W>;

/// Puts calls under the time limits of a policy: a [`StallTimeoutLayer`] or a [`DeadlineLayer`].
///
/// The limits run over the future of a call and over the whole body or event stream of its reply
/// ([`UntilEnd`]), or over the future alone ([`at_once`](Self::at_once)).
///
/// Every service made by one layer value, and by its clones, shares one set of counters; the
/// setters begin a new one.
#[must_use = "a layer does nothing until it wraps a service"]
pub struct TimeLimitLayer<P, W = UntilEnd> {
    policy: P,
    shared: Arc<Shared>,
    reach: PhantomData<fn() -> W>,
}

impl<P: TimePolicy> TimeLimitLayer<P> {
    /// Limits calls by `policy`.
    ///
    /// # Errors
    ///
    /// When the policy makes no sense; the error says what would.
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

impl<P: TimePolicy> Default for TimeLimitLayer<P> {
    /// With the default of its policy.
    fn default() -> Self {
        Self::of(P::default())
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
        policy.check()?;
        Ok(Self::of(policy))
    }
}

impl<P: TimePolicy, W> TimeLimitLayer<P, W> {
    /// Only for policies known to be valid.
    fn of(policy: P) -> Self {
        Self { policy, shared: Arc::new(Shared::new(policy.limits())), reach: PhantomData }
    }

    /// For replies that are values: only the future is limited.
    pub fn at_once(self) -> TimeLimitLayer<P, AtOnce> {
        self.reaching()
    }

    /// With another notion of how far the limits reach: that of
    /// [`TimeLimitedReply<V>`](crate::TimeLimitedReply).
    pub fn reaching<V>(self) -> TimeLimitLayer<P, V> {
        TimeLimitLayer { policy: self.policy, shared: self.shared, reach: PhantomData }
    }

    /// The policy in force.
    pub const fn policy(&self) -> &P {
        &self.policy
    }

    /// Looks at the layer's state and resets it.
    pub fn handle(&self) -> TimeoutHandle {
        TimeoutHandle(self.shared.clone())
    }
}

impl<S, P, W> Layer<S> for TimeLimitLayer<P, W> {
    type Service = TimeLimited<S, W>;

    fn layer(&self, inner: S) -> Self::Service {
        TimeLimited::new(inner, self.shared.clone())
    }
}

impl<P: Clone, W> Clone for TimeLimitLayer<P, W> {
    fn clone(&self) -> Self {
        Self { policy: self.policy.clone(), shared: self.shared.clone(), reach: PhantomData }
    }
}

impl<P: fmt::Debug, W> fmt::Debug for TimeLimitLayer<P, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimeLimitLayer").field("policy", &self.policy).finish_non_exhaustive()
    }
}
