//! The bounds of a ledger.

use std::time::Duration;

use crate::{PolicyError, error::positive};

/// How much a [`DeliveryLedger`](crate::DeliveryLedger) remembers; plain fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct LedgerPolicy {
    /// The most keys; the oldest goes first. 10,000: a message every nine seconds for a day, in two megabytes.
    pub keys: usize,
    /// How long a key is remembered. 24 h: many times as long as any retry or letter lives.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "age_s", with = "steadfast_core::config::Seconds")
    )]
    pub age: Duration,
    /// How long a send may take before it is given up, and nobody knows whether it was sent. 5 min: longer than any platform
    /// takes; whoever waits for it has shorter limits, and a send goes on without them.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "send_limit_ms", with = "steadfast_core::config::Millis")
    )]
    pub send_limit: Duration,
    /// How long [closing](crate::DeliveryLedger::close) waits for sends under way at most. 10 s: most platforms answer in less, and an
    /// orderly shutdown has 90 s by systemd's default, of which the deliveries under way take 30.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "close_wait_ms", with = "steadfast_core::config::Millis")
    )]
    pub close_wait: Duration,
    /// How often a disk that took nothing is tried again. 5 s: space is made by people or by rotation, within minutes.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "disk_retry_ms", with = "steadfast_core::config::Millis")
    )]
    pub disk_retry: Duration,
}

impl Default for LedgerPolicy {
    fn default() -> Self {
        Self {
            keys: 10_000,
            age: Duration::from_secs(24 * 3_600),
            send_limit: Duration::from_secs(300),
            close_wait: Duration::from_secs(10),
            disk_retry: Duration::from_secs(5),
        }
    }
}

impl LedgerPolicy {
    /// Checks the policy.
    ///
    /// # Errors
    ///
    /// The first invalid value, and what would be valid.
    pub fn validate(&self) -> Result<(), PolicyError> {
        positive("keys", &self.keys, "set how many keys are remembered, such as 10,000")?;
        positive("age", &self.age, "set how long a key is remembered, such as 24 h")?;
        positive("send_limit", &self.send_limit, "set how long a send may take, such as 5 min")?;
        positive("disk_retry", &self.disk_retry, "set how often a full disk is tried, such as 5 s")
    }
}
