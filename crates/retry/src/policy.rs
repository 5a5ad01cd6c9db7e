//! The policy of retries.

use std::time::Duration;

use steadfast_core::{Backoff, BufferLimits, Jitter};

use crate::PolicyError;

/// How a [`RetryBackoffLayer`](crate::RetryBackoffLayer) retries; plain fields.
///
/// ```
/// use std::time::Duration;
/// use steadfast_retry::{RetryBackoffLayer, RetryPolicy};
///
/// let policy = RetryPolicy { retries: 4, ..RetryPolicy::transient() };
/// assert_eq!(policy.backoff.base(), Duration::from_millis(500));
/// let layer = RetryBackoffLayer::new(policy)?;
/// # Ok::<(), steadfast_retry::PolicyError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(default))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct RetryPolicy {
    /// The most retries of a call that no other target can serve, and of any call; 0 for none. The first
    /// attempt is not counted.
    pub retries: u32,
    /// The most retries of a call that another target can serve. 1: it costs half a second, which is
    /// where we put the price of the prompt cache that a change of target throws away. Throttling goes by
    /// [`failover_wait`](Self::failover_wait) instead, a lack of capacity by
    /// [`overloaded_limit`](Self::overloaded_limit), and after one of our own time limits there is none.
    pub retries_with_spare: u32,
    /// The most retries after one of our own time limits, of a call that no other target can serve. 1: a
    /// hang has cost its whole limit already.
    pub retries_after_hang: u32,
    /// The wait before each retry, when the provider named none.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub backoff: Backoff,
    /// The longest wait a provider may ask for; a call that would have to wait longer fails now,
    /// with the provider's hint. 60 s: every large provider's rate window is a minute wide.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "max_wait_ms", with = "steadfast_core::config::Millis")
    )]
    pub max_wait: Duration,
    /// The longest wait a provider may ask for while another target could take the call, whatever it
    /// failed with; at most [`max_wait`](Self::max_wait). A throttled provider is waited for once, and
    /// without a hint not at all. 1 s: up to that, waiting is cheaper than the prompt cache that a change
    /// of provider throws away.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "failover_wait_ms", with = "steadfast_core::config::Millis")
    )]
    pub failover_wait: Duration,
    /// After how many `overloaded` in a row a failure asks for a fallback model, and the retries end when
    /// another target can serve the call, if only a smaller model; 0 for no such limit. 3: a provider without capacity for three
    /// attempts usually has none for minutes, but when there is nobody else that is no reason to give up.
    pub overloaded_limit: u32,
    /// Retries in place come before other targets: each call is retried as if no other target could serve
    /// it, and also while its target rests. Off by default: a healthy spare is there at once, and a wait
    /// is not.
    pub spares_last: bool,
    /// Each position of the target in its chain doubles the waits once more, as each retry does. Off by
    /// default: a call has waited before it comes to a second provider.
    pub slower_by_position: bool,
    /// A model that stands in for another one of its provider is asked once, without retries. Off by
    /// default: it fails for the same passing reasons as any other.
    pub downgrades_once: bool,
    /// Whether a retried request gets a short message that says why it is sent again: a
    /// [`nudge`](crate::Nudge).
    pub nudge: bool,
    /// Whether a request that is retried after throttling gets one too. Off by default: the provider had
    /// not begun to answer, so there is nothing to say.
    pub nudge_throttled: bool,
    /// Limits of the buffer in which the first content of an answer is waited for. Up to that, a broken
    /// answer is retried unnoticed.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub buffer: BufferLimits,
}

impl Default for RetryPolicy {
    /// [`in_stack`](Self::in_stack).
    fn default() -> Self {
        Self::in_stack()
    }
}

impl RetryPolicy {
    /// For calls of a model: 10 retries from 500 ms doubling to 32 s, up to a quarter added. Long
    /// enough, at about three minutes, to outlast a deploy of the provider. One retry where another target
    /// can serve the call.
    pub fn transient() -> Self {
        Self {
            retries: 10,
            retries_with_spare: 1,
            retries_after_hang: 1,
            backoff: Backoff::default(),
            max_wait: Duration::from_secs(60),
            failover_wait: Duration::from_secs(1),
            overloaded_limit: 3,
            spares_last: false,
            slower_by_position: false,
            downgrades_once: false,
            nudge: false,
            nudge_throttled: false,
            buffer: BufferLimits::default(),
        }
    }

    /// For a stack whose failover goes round the targets: [`transient`](Self::transient) with waits of
    /// at most 10 s, since all waits of a call together have half a minute, or a minute when it is alone.
    pub fn in_stack() -> Self {
        Self { backoff: up_to(10_000), ..Self::transient() }
    }

    /// For streams that a user watches: 2 retries after 1.5 s and 3 s (6 s would follow), with a
    /// nudge. A stream that broke has already cost its time, so there are few.
    pub fn stream() -> Self {
        Self { retries: 2, backoff: from(1_500), nudge: true, ..Self::transient() }
    }

    /// For whole operations of an application: 3 retries after 2, 4 and 8 s.
    pub fn application() -> Self {
        Self { retries: 3, backoff: from(2_000), ..Self::transient() }
    }

    /// For handing over a finished result: 3 retries after 1, 2 and 4 s.
    pub fn delivery() -> Self {
        Self { retries: 3, backoff: from(1_000), ..Self::transient() }
    }

    /// With the longest delay of [`in_stack`](Self::in_stack), or the first where that is longer.
    #[must_use]
    pub fn with_default_cap(self) -> Self {
        let (base, cap) = (self.backoff.base(), Self::in_stack().backoff.cap());
        let backoff = Backoff::new(base, cap.max(base)).unwrap_or_default();
        match backoff.with_jitter(self.backoff.jitter()) {
            Ok(backoff) => Self { backoff, ..self },
            // It is invalid, and `validate` says why.
            Err(_) => self,
        }
    }

    /// With delays from `base` doubling to `cap`, and this jitter.
    ///
    /// # Errors
    ///
    /// When `base` is zero or above `cap`, or the jitter's fraction is not between 0 and 1.
    pub fn with_delays(
        self,
        base: Duration,
        cap: Duration,
        jitter: Jitter,
    ) -> Result<Self, PolicyError> {
        let policy = Self { backoff: Backoff::new(base, cap)?.with_jitter(jitter)?, ..self };
        policy.validate()?;
        Ok(policy)
    }

    /// Checks the policy.
    ///
    /// # Errors
    ///
    /// The first invalid value, and what would be valid.
    pub fn validate(&self) -> Result<(), PolicyError> {
        let Self { backoff, max_wait, failover_wait, buffer, .. } = *self;
        backoff.validate()?;
        if backoff.base().is_zero() {
            return Err(PolicyError::ZeroBase);
        }
        if max_wait.is_zero() {
            return Err(PolicyError::ZeroMaxWait);
        }
        if failover_wait > max_wait {
            return Err(PolicyError::FailoverWaitAboveMaxWait { failover_wait, max_wait });
        }
        if buffer.bytes == 0 || buffer.time.is_zero() {
            return Err(PolicyError::ZeroBufferLimits);
        }
        Ok(())
    }
}

/// The default backoff from another base. Only for bases below the default cap.
fn from(base_ms: u64) -> Backoff {
    let default = Backoff::default();
    Backoff::new(Duration::from_millis(base_ms), default.cap()).unwrap_or(default)
}

/// The default backoff up to another cap. Only for caps above the default base.
fn up_to(cap_ms: u64) -> Backoff {
    let default = Backoff::default();
    Backoff::new(default.base(), Duration::from_millis(cap_ms)).unwrap_or(default)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_wait_as_documented() {
        let mut rng = fastrand::Rng::with_seed(0);
        for (policy, retries, cap, delays) in [
            (RetryPolicy::transient(), 10, 32, [500, 1_000, 2_000, 4_000]),
            (RetryPolicy::in_stack(), 10, 10, [500, 1_000, 2_000, 4_000]),
            (RetryPolicy::stream(), 2, 32, [1_500, 3_000, 6_000, 12_000]),
            (RetryPolicy::application(), 3, 32, [2_000, 4_000, 8_000, 16_000]),
            (RetryPolicy::delivery(), 3, 32, [1_000, 2_000, 4_000, 8_000]),
        ] {
            policy.validate().unwrap();
            assert_eq!(policy.retries, retries);
            let plain = policy.backoff.with_jitter(Jitter::None).unwrap();
            for (retry, expected) in (0..).zip(delays) {
                let delay = plain.delay(retry, Duration::ZERO, &mut rng);
                assert_eq!(delay, Duration::from_millis(expected));
            }
            assert_eq!(policy.backoff.cap(), Duration::from_secs(cap));
            assert_eq!((policy.retries_with_spare, policy.retries_after_hang), (1, 1));
        }
        assert!(RetryPolicy::stream().nudge && !RetryPolicy::default().nudge);
    }

    #[test]
    fn invalid_policies_are_refused_with_a_message() {
        let good = RetryPolicy::default();
        let second = Duration::from_secs(1);
        let instant = Backoff::new(Duration::ZERO, second).unwrap();
        for (policy, message) in [
            (RetryPolicy { backoff: instant, ..good }, "at least a few milliseconds"),
            (RetryPolicy { max_wait: Duration::ZERO, ..good }, "such as 60 s"),
            (RetryPolicy { max_wait: second / 2, ..good }, "lower it to at most that"),
            (
                RetryPolicy { buffer: BufferLimits { bytes: 0, ..good.buffer }, ..good },
                "above zero",
            ),
            (
                RetryPolicy {
                    buffer: BufferLimits { time: Duration::ZERO, ..good.buffer },
                    ..good
                },
                "above zero",
            ),
        ] {
            let error = policy.validate().unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }

        let inverted = good.with_delays(second * 2, second, Jitter::None).unwrap_err();
        assert!(inverted.to_string().contains("above its cap"), "{inverted}");
        let no_number = good.with_delays(second, second, Jitter::Additive(f64::NAN)).unwrap_err();
        assert!(no_number.to_string().contains("between 0 and 1"), "{no_number}");
    }
}
