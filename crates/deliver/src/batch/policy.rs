//! Which announcements share a turn.

use std::time::Duration;

use crate::{PolicyError, error::positive};

/// How a [`BatchLayer`](crate::BatchLayer) collects announcements; plain fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct BatchPolicy {
    /// How long the first announcement of a session waits for others. 2 s: subagents that were started together end together,
    /// and nobody notices two seconds of a task of minutes.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "window_ms", with = "steadfast_core::config::Millis")
    )]
    pub window: Duration,
    /// How long a turn may take. 30 s, as for a single announcement.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "turn_timeout_ms", with = "steadfast_core::config::Millis")
    )]
    pub turn_timeout: Duration,
    /// The most announcements of a turn, which then begins at once. 20: more are not read, and cost the parent its window.
    pub announcements: usize,
    /// The most sessions that collect at once; announcements of others do not wait. 1,024: each has a timer and its texts in
    /// memory.
    pub sessions: usize,
}

impl Default for BatchPolicy {
    fn default() -> Self {
        Self {
            window: Duration::from_secs(2),
            turn_timeout: Duration::from_secs(30),
            announcements: 20,
            sessions: 1_024,
        }
    }
}

impl BatchPolicy {
    /// Checks the policy.
    ///
    /// # Errors
    ///
    /// The first invalid value, and what would be valid.
    pub fn validate(&self) -> Result<(), PolicyError> {
        positive(
            "window",
            &self.window,
            "set how long to wait for others, such as 2 s; not to wait, leave the layer out",
        )?;
        positive("turn_timeout", &self.turn_timeout, "set how long a turn may take, such as 30 s")?;
        positive("announcements", &self.announcements, "set at least 1 for a turn")?;
        positive(
            "sessions",
            &self.sessions,
            "set at least 1 session; not to wait, leave the layer out",
        )
    }
}
