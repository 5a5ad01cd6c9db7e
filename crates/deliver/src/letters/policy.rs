//! The policies of the queue and of the layer.

use std::time::Duration;

use steadfast_core::{Backoff, Jitter};

use crate::{
    DeliveryKind, PolicyError,
    error::{backoff, positive},
};

/// What a [`DeadLetterLayer`](crate::DeadLetterLayer) keeps of what could not be delivered; plain fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct DeadLetterPolicy {
    /// Replies to users. Off: an answer that comes an hour late, between two others, is worse than none.
    pub keep_replies: bool,
    /// Announcements of results.
    pub keep_announcements: bool,
    /// Notices of failures.
    pub keep_notices: bool,
}

impl Default for DeadLetterPolicy {
    fn default() -> Self {
        Self { keep_replies: false, keep_announcements: true, keep_notices: true }
    }
}

impl DeadLetterPolicy {
    /// Nothing is kept, as by the chat bot `guppy`: what was not delivered after its retries is logged and dropped.
    pub fn guppy() -> Self {
        Self { keep_replies: false, keep_announcements: false, keep_notices: false }
    }

    /// Whether messages of this kind are kept.
    pub const fn keeps(&self, kind: DeliveryKind) -> bool {
        match kind {
            DeliveryKind::Reply => self.keep_replies,
            DeliveryKind::Announcement => self.keep_announcements,
            DeliveryKind::Notice => self.keep_notices,
        }
    }
}

/// How [`DeadLetters`](crate::DeadLetters) are delivered, and how many there may be; plain fields.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct LetterQueuePolicy {
    /// The most retries of a letter by its own backoff. What is drained earlier than that uses none up. 5: what fails five
    /// times in an hour will not be delivered by a sixth.
    pub retries: u32,
    /// How long a letter is kept. 1 h: what is announced later than that is taken for news and is none.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "max_age_s", with = "steadfast_core::config::Seconds")
    )]
    pub max_age: Duration,
    /// The wait after the first failure, counted from the failure; it doubles with each. 90 s: with what is added, the fifth retry
    /// is between 46 and 59 minutes after the first failure, so that an outage of most of an hour is outlasted.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "base_ms", with = "steadfast_core::config::Millis")
    )]
    pub base: Duration,
    /// The longest of these waits. 1 h, which is never reached by default.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "cap_ms", with = "steadfast_core::config::Millis")
    )]
    pub cap: Duration,
    /// The random part of these waits: up to a quarter added.
    pub jitter: Jitter,
    /// How long one attempt may take. 30 s, as for a turn of the parent: it blocks the letters of its own destination alone.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "attempt_timeout_ms", with = "steadfast_core::config::Millis")
    )]
    pub attempt_timeout: Duration,
    /// How many destinations are delivered to at once. 32: a dead channel takes one of them for 30 s at a time. When more than so
    /// many hang, the others wait for that time in each round.
    pub parallel: usize,
    /// The most letters. For one more, the oldest of the destination that has most is given up, in a record. 1,000: people
    /// read no more than that after an outage.
    pub letters: usize,
    /// The most bytes of letters. 16 MiB: a thousand of the longest messages that platforms take.
    pub bytes: usize,
    /// How many letters that have ended are kept for people to read. 200: a screen or two for each outage of a week.
    pub ended: usize,
    /// Whether a letter is tried again when nobody knows if it was sent: the connection broke, or nothing came in time. For
    /// platforms that take our idempotency key. Off by default: such a letter ends in a record that says so, and a person
    /// decides.
    pub resend_unclear: bool,
    /// How often a disk that took nothing is tried again. 5 s: space is made by people or by rotation, within minutes.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "disk_retry_ms", with = "steadfast_core::config::Millis")
    )]
    pub disk_retry: Duration,
    /// How long a caller waits for the disk at most: a letter is then kept in memory until the disk takes it. 5 s: a disk that
    /// is slower than that hangs.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "disk_wait_ms", with = "steadfast_core::config::Millis")
    )]
    pub disk_wait: Duration,
}

impl Default for LetterQueuePolicy {
    fn default() -> Self {
        Self {
            retries: 5,
            max_age: Duration::from_secs(3_600),
            base: Duration::from_secs(90),
            cap: Duration::from_secs(3_600),
            jitter: Jitter::Additive(0.25),
            attempt_timeout: Duration::from_secs(30),
            parallel: 32,
            letters: 1_000,
            bytes: 16 << 20,
            ended: 200,
            resend_unclear: false,
            disk_retry: Duration::from_secs(5),
            disk_wait: Duration::from_secs(5),
        }
    }
}

impl LetterQueuePolicy {
    /// As the agent platform `comis`: five retries, an hour. The default has the same numbers.
    pub fn comis() -> Self {
        Self { retries: 5, max_age: Duration::from_secs(3_600), ..Self::default() }
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
        let Self { base, max_age, attempt_timeout, disk_retry, disk_wait, .. } = self;
        let times = [
            ("max_age", max_age, "set how long letters are kept, such as 1 h"),
            ("base", base, "set the wait before the first retry, such as 90 s"),
            ("attempt_timeout", attempt_timeout, "set how long one attempt may take, such as 30 s"),
            ("disk_retry", disk_retry, "set how often a full disk is tried, such as 5 s"),
            ("disk_wait", disk_wait, "set how long a caller waits for the disk, such as 5 s"),
        ];
        for (field, time, valid) in times {
            positive(field, time, valid)?;
        }
        positive(
            "retries",
            &self.retries,
            "set at least 1; to keep no letters, leave the layer out",
        )?;
        positive("parallel", &self.parallel, "set at least 1 destination at a time")?;
        positive(
            "letters",
            &self.letters,
            "set at least 1 letter; to keep none, leave the layer out",
        )?;
        positive("bytes", &self.bytes, "set how many bytes letters may have, such as 16 MiB")?;
        if base >= max_age {
            return Err(PolicyError::RetryAfterExpiry { first: *base, max_age: *max_age });
        }
        Ok(())
    }
}
