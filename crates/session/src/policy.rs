//! How many threads are open, and for how long.

use std::time::Duration;

use crate::PolicyError;

/// How many threads a store has open, and for how long; plain fields.
///
/// ```
/// use steadfast_session::{SessionPolicy, SessionStore};
///
/// let policy = SessionPolicy { max_open: 32, ..SessionPolicy::default() };
/// let sessions = SessionStore::with_policy("sessions", policy)?;
/// # Ok::<(), steadfast_session::PolicyError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct SessionPolicy {
    /// The most threads that are open at once. Beyond it the one that was not used for longest is closed; when all are in use, or have
    /// turns that could not be saved, another is refused.
    ///
    /// Default 256: an open thread takes two descriptors and its history, and half of the usual limit of 1,024 descriptors is left to
    /// connections.
    pub max_open: usize,
    /// A thread that was not used for so long is closed and unlocked when another is used.
    ///
    /// Default 600 s, the longest run of a prompt: whoever reads the answer of one is not kept waiting for the files.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "idle_s", with = "steadfast_core::config::Seconds")
    )]
    pub idle: Duration,
    /// The most callers that wait for their turn in one thread; a further one is refused.
    ///
    /// Default 20, as many as a mailbox of an agent takes.
    pub max_waiting: usize,
    /// How many idempotency keys of a thread are remembered, the latest ones.
    ///
    /// Default 256: retries of a prompt come within minutes, and within minutes no thread has as many prompts.
    pub keys: usize,
}

impl Default for SessionPolicy {
    fn default() -> Self {
        Self { max_open: 256, idle: Duration::from_secs(600), max_waiting: 20, keys: 256 }
    }
}

impl SessionPolicy {
    /// Checks the policy.
    ///
    /// # Errors
    ///
    /// The first invalid value, and what would be valid.
    pub fn validate(&self) -> Result<(), PolicyError> {
        for (field, value) in
            [("max_open", self.max_open), ("max_waiting", self.max_waiting), ("keys", self.keys)]
        {
            if value == 0 {
                return Err(PolicyError::Zero(field));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_policies_are_refused_with_a_message() {
        let good = SessionPolicy::default();
        good.validate().unwrap();
        for (policy, field) in [
            (SessionPolicy { max_open: 0, ..good }, "max_open"),
            (SessionPolicy { max_waiting: 0, ..good }, "max_waiting"),
            (SessionPolicy { keys: 0, ..good }, "keys"),
        ] {
            assert_eq!(policy.validate(), Err(PolicyError::Zero(field)));
        }
        SessionPolicy { idle: Duration::ZERO, ..good }.validate().unwrap();
    }
}
