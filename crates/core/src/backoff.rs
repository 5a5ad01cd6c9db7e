//! How long to wait before the next attempt.

use std::time::Duration;

/// What is added to, or drawn from, a computed delay so that callers who failed at the same time do
/// not retry at the same time.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub enum Jitter {
    /// `delay + uniform(0..fraction x delay)`: never earlier than computed.
    Additive(f64),
    /// `uniform(0..delay)`: spreads best, and may retry at once.
    Full,
    /// `uniform(base..3 x previous)`, capped: grows by chance instead of by count.
    Decorrelated,
    /// The delay itself.
    None,
}

/// `min(base x 2^attempt, cap)` and jitter.
///
/// Default: 500 ms, doubling, capped at 32 s, up to a quarter added. These are what the SDKs of
/// the large providers start with, with a cap long enough to outlast a deploy on their side.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(from = "keys::BackoffKeys", into = "keys::BackoffKeys"))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Backoff {
    base: Duration,
    cap: Duration,
    jitter: Jitter,
}

/// A [`Backoff`] that is not valid.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum BackoffError {
    /// The base is above the cap.
    #[error("backoff base {base:?} is above its cap {cap:?}; raise the cap or lower the base")]
    BaseAboveCap {
        /// The base given.
        base: Duration,
        /// The cap given.
        cap: Duration,
    },
    /// The fraction of additive jitter is negative or no number, or above 1.
    #[error("jitter fraction {0} is not between 0 and 1")]
    Fraction(f64),
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            base: Duration::from_millis(500),
            cap: Duration::from_secs(32),
            jitter: Jitter::Additive(0.25),
        }
    }
}

impl Backoff {
    /// Starts at `base`, doubles, and stays at `cap`.
    ///
    /// # Errors
    ///
    /// When `base` is above `cap`.
    pub fn new(base: Duration, cap: Duration) -> Result<Self, BackoffError> {
        if base > cap {
            return Err(BackoffError::BaseAboveCap { base, cap });
        }
        Ok(Self { base, cap, ..Self::default() })
    }

    /// Checks the numbers, which may come from a configuration.
    ///
    /// # Errors
    ///
    /// As for [`new`](Self::new) and [`with_jitter`](Self::with_jitter).
    pub fn validate(&self) -> Result<(), BackoffError> {
        Self::new(self.base, self.cap)?.with_jitter(self.jitter).map(drop)
    }

    /// With this jitter.
    ///
    /// # Errors
    ///
    /// When an additive fraction is not between 0 and 1.
    pub fn with_jitter(mut self, jitter: Jitter) -> Result<Self, BackoffError> {
        if let Jitter::Additive(fraction) = jitter
            && !(0.0..=1.0).contains(&fraction)
        {
            return Err(BackoffError::Fraction(fraction));
        }
        self.jitter = jitter;
        Ok(self)
    }

    /// The first delay.
    pub const fn base(&self) -> Duration {
        self.base
    }

    /// The longest delay before jitter.
    pub const fn cap(&self) -> Duration {
        self.cap
    }

    /// What is added to each delay, or drawn from it.
    pub const fn jitter(&self) -> Jitter {
        self.jitter
    }

    /// The longest a delay can be, jitter included.
    pub fn longest(&self) -> Duration {
        match self.jitter {
            Jitter::Additive(fraction) => self.cap.saturating_add(scale(self.cap, fraction)),
            Jitter::Full | Jitter::Decorrelated | Jitter::None => self.cap,
        }
    }

    /// The delay before retry number `retry` (0 is the first); `previous` is the delay before the
    /// previous one.
    pub fn delay(&self, retry: u32, previous: Duration, rng: &mut fastrand::Rng) -> Duration {
        let factor = 1u32.checked_shl(retry).unwrap_or(u32::MAX);
        let delay = self.base.saturating_mul(factor).min(self.cap);
        match self.jitter {
            Jitter::None => delay,
            Jitter::Additive(fraction) => delay.saturating_add(scale(delay, fraction * rng.f64())),
            Jitter::Full => scale(delay, rng.f64()),
            Jitter::Decorrelated => {
                let high = previous.max(self.base).saturating_mul(3).min(self.cap);
                let span = high.saturating_sub(self.base);
                self.base.saturating_add(scale(span, rng.f64()))
            }
        }
    }

    /// A wait that the provider asked for, with jitter; never shorter than the hint.
    pub fn spread(&self, hint: Duration, rng: &mut fastrand::Rng) -> Duration {
        match self.jitter {
            Jitter::None => hint,
            Jitter::Additive(fraction) => {
                // Bounded by the base: a hint is exact, the jitter only separates callers.
                hint.saturating_add(scale(hint.min(self.base), fraction * rng.f64()))
            }
            Jitter::Full | Jitter::Decorrelated => {
                hint.saturating_add(scale(hint.min(self.base), 0.25 * rng.f64()))
            }
        }
    }
}

/// The keys of a configuration.
#[cfg(feature = "serde")]
mod keys {
    use std::time::Duration;

    use super::{Backoff, Jitter};
    use crate::config::Millis;

    #[derive(serde::Deserialize, serde::Serialize)]
    #[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
    #[serde(default, deny_unknown_fields)]
    pub(super) struct BackoffKeys {
        /// The wait before the first retry, where the provider named none; it doubles with each.
        #[serde(rename = "base_ms", with = "Millis")]
        base: Duration,
        /// The longest of these waits; at least the first.
        #[serde(rename = "cap_ms", with = "Millis")]
        cap: Option<Duration>,
        /// The random part of a wait: `{ additive = SHARE }`, `"full"`, `"decorrelated"` or `"none"`.
        jitter: Jitter,
    }

    impl Default for BackoffKeys {
        fn default() -> Self {
            let Backoff { base, jitter, .. } = Backoff::default();
            Self { base, cap: None, jitter }
        }
    }

    impl From<BackoffKeys> for Backoff {
        fn from(BackoffKeys { base, cap, jitter }: BackoffKeys) -> Self {
            let cap = cap.unwrap_or_else(|| Backoff::default().cap.max(base));
            Self { base, cap, jitter }
        }
    }

    impl From<Backoff> for BackoffKeys {
        fn from(Backoff { base, cap, jitter }: Backoff) -> Self {
            Self { base, cap: Some(cap), jitter }
        }
    }
}

/// `duration x fraction`, rounded down to nanoseconds, so that a fraction below 1 stays below the
/// whole. Saturates at five centuries.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "casts of floats saturate, and a random delay need not be exact"
)]
fn scale(duration: Duration, fraction: f64) -> Duration {
    Duration::from_nanos((duration.as_nanos() as f64 * fraction) as u64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn doubles_up_to_the_cap() {
        let backoff = Backoff::default().with_jitter(Jitter::None).unwrap();
        let mut rng = fastrand::Rng::with_seed(1);
        let delays: Vec<_> =
            (0..9).map(|retry| backoff.delay(retry, ms(0), &mut rng).as_millis()).collect();
        assert_eq!(delays, [500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 32_000, 32_000]);
    }

    #[test]
    fn invalid_numbers_are_refused_with_a_message() {
        assert!(Backoff::new(ms(2), ms(1)).unwrap_err().to_string().contains("above its cap"));
        for fraction in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
            assert!(Backoff::default().with_jitter(Jitter::Additive(fraction)).is_err());
        }
    }

    proptest! {
        #[test]
        fn stays_in_bounds(
            base in 0u64..100_000,
            extra in 0u64..100_000,
            retry in any::<u32>(),
            previous in 0u64..1_000_000,
            seed in any::<u64>(),
            kind in 0u8..4,
        ) {
            let jitter = [Jitter::Additive(0.25), Jitter::Full, Jitter::Decorrelated, Jitter::None]
                [usize::from(kind)];
            let backoff = Backoff::new(ms(base), ms(base + extra)).unwrap().with_jitter(jitter).unwrap();
            let mut rng = fastrand::Rng::with_seed(seed);
            let delay = backoff.delay(retry, ms(previous), &mut rng);
            let plain = ms(base).saturating_mul(1u32.checked_shl(retry).unwrap_or(u32::MAX)).min(ms(base + extra));
            prop_assert!(delay <= backoff.longest());
            match jitter {
                Jitter::Additive(_) => prop_assert!(delay >= plain && delay <= plain.mul_f64(1.25) + ms(1)),
                Jitter::Full => prop_assert!(delay <= plain),
                Jitter::Decorrelated => prop_assert!(delay >= ms(base)),
                Jitter::None => prop_assert_eq!(delay, plain),
            }
            let hint = ms(previous);
            let spread = backoff.spread(hint, &mut rng);
            prop_assert!(spread >= hint && spread <= hint + ms(base));
        }
    }
}
