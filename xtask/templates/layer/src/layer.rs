//! The layer: owns the state that its services share.

use std::{fmt, sync::Arc};

use steadfast_core::{AtOnce, UntilEnd};
use tower_layer::Layer;

use crate::{PolicyError, {{Pascal}}, {{Pascal}}Handle, {{Pascal}}Policy, state::State};

/// Counts answers and failures of each target. See the [crate's documentation](crate).
///
/// The state belongs to the layer value and its clones: every service they make shares it. `T` decides when
/// a reply is over.
#[derive(Clone)]
#[must_use = "a layer does nothing until it is put around a service"]
pub struct {{Pascal}}Layer<T = UntilEnd> {
    state: Arc<State>,
    track: T,
}

impl {{Pascal}}Layer {
    /// With `policy`; replies are counted when they have ended.
    ///
    /// # Errors
    ///
    /// When the policy is invalid; see [`{{Pascal}}Policy::validate`].
    pub fn new(policy: {{Pascal}}Policy) -> Result<Self, PolicyError> {
        policy.validate()?;
        Ok(Self { state: Arc::new(State::new(policy)), track: UntilEnd })
    }
}

impl Default for {{Pascal}}Layer {
    /// With [`{{Pascal}}Policy::default`].
    fn default() -> Self {
        Self { state: Arc::new(State::new({{Pascal}}Policy::default())), track: UntilEnd }
    }
}

impl<T> {{Pascal}}Layer<T> {
    /// For replies that are over when they arrive, such as plain values.
    pub fn at_once(self) -> {{Pascal}}Layer<AtOnce> {
        self.with_track(AtOnce)
    }

    /// With another [`Track`](steadfast_core::Track), which decides when a reply is over.
    pub fn with_track<U>(self, track: U) -> {{Pascal}}Layer<U> {
        {{Pascal}}Layer { state: self.state, track }
    }

    /// A handle that reads and resets the counts.
    pub fn handle(&self) -> {{Pascal}}Handle {
        {{Pascal}}Handle::new(self.state.clone())
    }

    /// The policy in force.
    pub fn policy(&self) -> &{{Pascal}}Policy {
        &self.state.policy
    }
}

impl<S, T: Clone> Layer<S> for {{Pascal}}Layer<T> {
    type Service = {{Pascal}}<S, T>;

    fn layer(&self, inner: S) -> Self::Service {
        {{Pascal}}::new(inner, self.state.clone(), self.track.clone())
    }
}

impl<T: fmt::Debug> fmt::Debug for {{Pascal}}Layer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("{{Pascal}}Layer")
            .field("policy", &self.state.policy)
            .field("track", &self.track)
            .finish_non_exhaustive()
    }
}
