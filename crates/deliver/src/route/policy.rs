//! How long the parent has.

use std::time::Duration;

use crate::{PolicyError, error::positive};

/// When a [`RouteFallbackLayer`](crate::RouteFallbackLayer) gives the parent up; plain fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct RoutePolicy {
    /// How long the parent has for an announcement, the wait for others of its session included. 30 s: a turn of an agent that
    /// works takes less, and the user waits for one that does not.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "parent_timeout_ms", with = "steadfast_core::config::Millis")
    )]
    pub parent_timeout: Duration,
}

impl Default for RoutePolicy {
    fn default() -> Self {
        Self { parent_timeout: Duration::from_secs(30) }
    }
}

impl RoutePolicy {
    /// As the agent platform `comis`: the parent's announcement within 30,000 ms. The default has the same number.
    pub fn comis() -> Self {
        Self { parent_timeout: Duration::from_millis(30_000) }
    }

    /// Checks the policy.
    ///
    /// # Errors
    ///
    /// The first invalid value, and what would be valid.
    pub fn validate(&self) -> Result<(), PolicyError> {
        positive(
            "parent_timeout",
            &self.parent_timeout,
            "set how long the parent has, such as 30 s; to go to the channel at once, leave the layer out",
        )
    }
}
