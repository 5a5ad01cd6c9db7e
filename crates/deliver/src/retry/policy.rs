//! The policy of retries.

use std::time::Duration;

use steadfast_core::{Backoff, Jitter};

use crate::{
    PolicyError,
    error::{backoff, positive},
};

/// How a [`DeliveryRetryLayer`](crate::DeliveryRetryLayer) retries; plain fields.
///
/// ```
/// use steadfast_deliver::{DeliveryRetryLayer, DeliveryRetryPolicy};
///
/// // The platform takes our key and sends a message once, however often it is asked.
/// let policy = DeliveryRetryPolicy { resend_unclear: true, ..DeliveryRetryPolicy::default() };
/// let layer = DeliveryRetryLayer::new(policy)?;
/// # Ok::<(), steadfast_deliver::PolicyError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct DeliveryRetryPolicy {
    /// The most retries of a message; 0 for none. The first attempt is not counted. 3: with the waits below seven seconds,
    /// which outlast a hiccup of the platform and not the patience of a user.
    pub retries: u32,
    /// The wait before the first retry, when the platform named none; it doubles with each: 1, 2 and 4 s.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "base_ms", with = "steadfast_core::config::Millis")
    )]
    pub base: Duration,
    /// The longest of these waits. 32 s, for more retries than there are by default.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "cap_ms", with = "steadfast_core::config::Millis")
    )]
    pub cap: Duration,
    /// The random part of these waits: up to a quarter added, so that agents which failed together do not come back together.
    pub jitter: Jitter,
    /// The longest wait a platform may ask for. For a longer one the message fails now, with that wait: it is never sent
    /// earlier than the platform asked. 60 s: a user does not wait longer, and the dead letters do.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "max_wait_ms", with = "steadfast_core::config::Millis")
    )]
    pub max_wait: Duration,
    /// Whether a message is sent again when nobody knows if it was sent, because the connection broke or nothing came in
    /// time. For platforms that take our idempotency key. Off by default: people would read it twice. A connection that could
    /// not be made is retried in any case.
    pub resend_unclear: bool,
}

impl Default for DeliveryRetryPolicy {
    fn default() -> Self {
        Self {
            retries: 3,
            base: Duration::from_secs(1),
            cap: Duration::from_secs(32),
            jitter: Jitter::Additive(0.25),
            max_wait: Duration::from_secs(60),
            resend_unclear: false,
        }
    }
}

impl DeliveryRetryPolicy {
    /// As the chat bot `guppy` sends its replies: rate limits, 5xx and every error of the connection, three times.
    pub fn guppy() -> Self {
        Self { resend_unclear: true, ..Self::default() }
    }

    /// The waits. Only of a policy that is valid.
    pub(crate) fn backoff(&self) -> Backoff {
        backoff(self.base, self.cap, self.jitter).unwrap_or_default()
    }

    /// Checks the policy.
    ///
    /// # Errors
    ///
    /// The first invalid value, and what would be valid.
    pub fn validate(&self) -> Result<(), PolicyError> {
        backoff(self.base, self.cap, self.jitter)?;
        positive(
            "base",
            &self.base,
            "set the wait before the first retry, such as 1 s; for no retry, set `retries` to 0",
        )?;
        positive("max_wait", &self.max_wait, "set how long a platform's hint may be, such as 60 s")
    }
}
