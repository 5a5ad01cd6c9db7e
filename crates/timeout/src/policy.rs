//! The time limits of the two layers.

use std::time::Duration;

use crate::{PolicyError, error::positive, limits::TimeLimits};

/// A policy that can be made into limits. Sealed.
pub trait TimePolicy: Copy + Default {
    /// `validate`, of any policy.
    fn check(&self) -> Result<(), PolicyError>;

    fn limits(&self) -> TimeLimits;
}

impl TimePolicy for StallPolicy {
    fn check(&self) -> Result<(), PolicyError> {
        self.validate()
    }

    fn limits(&self) -> TimeLimits {
        let Self { stall, attempt, attempt_to_end, whole, first_content, floor, .. } = *self;
        let (stall, makespan, pipeline) = (Some(stall), self.makespan(), None);
        TimeLimits {
            stall,
            first_content,
            makespan,
            attempt,
            attempt_to_end,
            whole,
            pipeline,
            floor,
        }
    }
}

impl TimePolicy for DeadlinePolicy {
    fn check(&self) -> Result<(), PolicyError> {
        self.validate()
    }

    fn limits(&self) -> TimeLimits {
        TimeLimits { pipeline: Some(self.pipeline), ..TimeLimits::default() }
    }
}

const NONE_IS_OFF: &str = ", or `None` for no limit";

/// The limits of one attempt, for a [`StallTimeoutLayer`](crate::StallTimeoutLayer).
///
/// ```
/// use std::time::Duration;
/// use steadfast_timeout::{StallPolicy, StallTimeoutLayer};
///
/// let layer = StallTimeoutLayer::new(StallPolicy {
///     stall: Duration::from_secs(60),
///     first_content: Some(Duration::from_secs(20)),
///     ..StallPolicy::default()
/// })?;
/// # Ok::<(), steadfast_timeout::PolicyError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct StallPolicy {
    /// The longest time without content, from the call on; every piece of content restarts it.
    /// Pings, comments and empty pieces are no content. 180 s: models that think without output do so
    /// for up to two minutes, and rarely for three.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "stall_ms", with = "steadfast_core::config::Millis")
    )]
    pub stall: Duration,
    /// How many times [`stall`](Self::stall) the whole answer may take, even with steady content.
    /// 10, half an hour: longer than any useful answer, so that only loops reach it. Off: no such
    /// limit.
    #[cfg_attr(feature = "serde", serde(with = "steadfast_core::config::ZeroIsOff"))]
    pub ceiling: Option<u32>,
    /// The longest time to the first content of a call that is not the first attempt of its request, by
    /// its [`attempts`](steadfast_core::CallContext::attempts). 60 s: the caller has waited for an attempt
    /// already. It ends with the first content, or it would break healthy streams. Off: no such limit.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "attempt_ms", with = "steadfast_core::config::Millis")
    )]
    pub attempt: Option<Duration>,
    /// That limit is for the whole answer of such a call, whether streamed or not, and not only for the
    /// time to its first content. Off by default: it would break streams that are well.
    pub attempt_to_end: bool,
    /// The longest time an attempt may take whose answer comes whole, by
    /// [`is_whole`](steadfast_core::Call::is_whole): none of the limits on silence applies to it. Off by
    /// default: such an answer is silent until it is complete, and has what is left of the deadline.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "whole_ms", with = "steadfast_core::config::Millis")
    )]
    pub whole: Option<Duration>,
    /// The longest time to the first content; at most [`stall`](Self::stall). Off by default, because
    /// the time that models think differs.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "first_content_ms", with = "steadfast_core::config::Millis")
    )]
    pub first_content: Option<Duration>,
    /// The slowest rate at which an answer may begin. Off by default.
    pub floor: Option<Floor>,
}

impl Default for StallPolicy {
    fn default() -> Self {
        Self {
            stall: Duration::from_secs(180),
            ceiling: Some(10),
            attempt: Some(Duration::from_secs(60)),
            attempt_to_end: false,
            whole: None,
            first_content: None,
            floor: None,
        }
    }
}

/// The slowest rate at which an answer may begin, for streams that are too slow to be useful.
///
/// From its first content on an answer is held back until it has the characters that the rate requires
/// for a whole window; a stream of usual speed is held back only briefly. One that does not have them
/// at the end of the window fails before anything is delivered, so that it can be retried. After that
/// nothing is held back or measured.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Floor {
    /// Characters of text, thinking and tool arguments a second; bytes, for an HTTP body. People
    /// read about 20 a second.
    pub min_chars_per_s: f64,
    /// The time over which the rate is measured.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "window_ms", with = "steadfast_core::config::Millis")
    )]
    pub window: Duration,
}

impl StallPolicy {
    /// `ceiling x stall`.
    pub fn makespan(&self) -> Option<Duration> {
        self.ceiling.map(|ceiling| self.stall.saturating_mul(ceiling))
    }

    /// Checks the policy.
    ///
    /// # Errors
    ///
    /// The first invalid value, and what would be valid.
    pub fn validate(&self) -> Result<(), PolicyError> {
        let Self { stall, attempt, whole, first_content, floor, .. } = *self;
        positive("stall", Some(stall), "")?;
        positive("ceiling", self.makespan(), NONE_IS_OFF)?;
        positive("attempt", attempt, NONE_IS_OFF)?;
        positive("whole", whole, NONE_IS_OFF)?;
        positive("first_content", first_content, NONE_IS_OFF)?;
        if let Some(first_content) = first_content
            && first_content > stall
        {
            return Err(PolicyError::FirstContentAboveStall { first_content, stall });
        }
        if let Some(Floor { min_chars_per_s, window }) = floor {
            if !(min_chars_per_s.is_finite() && min_chars_per_s > 0.0) {
                return Err(PolicyError::Rate(min_chars_per_s));
            }
            positive("floor.window", Some(window), "")?;
        }
        Ok(())
    }
}

/// The limit of a call with everything that is done for it, for a
/// [`DeadlineLayer`](crate::DeadlineLayer).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct DeadlinePolicy {
    /// The longest time of a call with all its retries, fallbacks and the whole answer, unless the
    /// caller's deadline is earlier. 600 s: the timeout of the large providers' SDKs.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "pipeline_ms", with = "steadfast_core::config::Millis")
    )]
    pub pipeline: Duration,
}

impl Default for DeadlinePolicy {
    fn default() -> Self {
        Self { pipeline: Duration::from_secs(600) }
    }
}

impl DeadlinePolicy {
    /// Checks the policy.
    ///
    /// # Errors
    ///
    /// The first invalid value, and what would be valid.
    pub fn validate(&self) -> Result<(), PolicyError> {
        positive("pipeline", Some(self.pipeline), "")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_policies_are_refused_with_a_message() {
        let good = StallPolicy::default();
        good.validate().unwrap();
        let zero = Some(Duration::ZERO);
        let floor = |min_chars_per_s, secs| {
            Some(Floor { min_chars_per_s, window: Duration::from_secs(secs) })
        };
        for (policy, reason) in [
            (StallPolicy { stall: Duration::ZERO, ..good }, "`stall` is zero"),
            (StallPolicy { ceiling: Some(0), ..good }, "`None` for no limit"),
            (StallPolicy { attempt: zero, ..good }, "`attempt` is zero"),
            (StallPolicy { first_content: zero, ..good }, "`first_content` is zero"),
            (
                StallPolicy { first_content: Some(Duration::from_secs(181)), ..good },
                "could never fire; lower it or raise `stall`",
            ),
            (StallPolicy { floor: floor(0.0, 1), ..good }, "above 0, such as 5"),
            (StallPolicy { floor: floor(-1.0, 1), ..good }, "above 0, such as 5"),
            (StallPolicy { floor: floor(f64::NAN, 1), ..good }, "above 0, such as 5"),
            (StallPolicy { floor: floor(f64::INFINITY, 1), ..good }, "above 0, such as 5"),
            (StallPolicy { floor: floor(5.0, 0), ..good }, "`floor.window` is zero"),
        ] {
            let error = policy.validate().unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
        let none = StallPolicy { ceiling: None, attempt: None, floor: floor(5.0, 10), ..good };
        none.validate().unwrap();
        assert_eq!((good.makespan(), none.makespan()), (Some(Duration::from_secs(1_800)), None));
        assert!(DeadlinePolicy { pipeline: Duration::ZERO }.validate().is_err());
        DeadlinePolicy::default().validate().unwrap();
    }
}
