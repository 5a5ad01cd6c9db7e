//! The numbers: of the watchdog, of the sweep, of the mailboxes.

use std::{num::NonZeroU32, time::Duration};

use crate::PolicyError;
use crate::error::positive;

/// How long a run may take, for a [`WatchdogLayer`](crate::WatchdogLayer).
///
/// ```
/// use std::{num::NonZeroU32, time::Duration};
/// use steadfast_supervise::WatchdogPolicy;
///
/// let policy = WatchdogPolicy::default();
/// assert_eq!(policy.limit(NonZeroU32::new(4)), Duration::from_secs(240));
/// assert_eq!(policy.limit(NonZeroU32::new(50)), Duration::from_secs(600));
/// assert_eq!(policy.limit(None), Duration::from_secs(600));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct WatchdogPolicy {
    /// The longest time of a run, whatever it waits for. 600 s: as long as a prompt's whole run, of which it is a part.
    #[cfg_attr(
        feature = "serde",
        serde(
            rename = "max_run_timeout_ms",
            alias = "maxRunTimeoutMs",
            with = "steadfast_core::config::Millis"
        )
    )]
    pub max_run_timeout: Duration,
    /// The time for each step of a run whose number of steps is known; what it takes in all, its children's time not counted. 60 s:
    /// one call of a model and one of a tool that are both slow.
    #[cfg_attr(
        feature = "serde",
        serde(
            rename = "per_step_timeout_ms",
            alias = "perStepTimeoutMs",
            with = "steadfast_core::config::Millis"
        )
    )]
    pub per_step_timeout: Duration,
}

impl Default for WatchdogPolicy {
    fn default() -> Self {
        Self {
            max_run_timeout: Duration::from_secs(600),
            per_step_timeout: Duration::from_secs(60),
        }
    }
}

impl WatchdogPolicy {
    /// `min(max_steps x per_step_timeout, max_run_timeout)`, or `max_run_timeout` without steps.
    pub fn limit(&self, max_steps: Option<NonZeroU32>) -> Duration {
        max_steps.map_or(self.max_run_timeout, |steps| {
            self.per_step_timeout.saturating_mul(steps.get()).min(self.max_run_timeout)
        })
    }

    /// Checks the policy.
    ///
    /// # Errors
    ///
    /// The first invalid value, and what would be valid.
    pub fn validate(&self) -> Result<(), PolicyError> {
        positive("max_run_timeout", self.max_run_timeout)?;
        positive("per_step_timeout", self.per_step_timeout)
    }
}

/// When a run that is still marked as running is given up, for a [`GhostSweep`](crate::GhostSweep).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct GhostPolicy {
    /// How long after its start. 720 s: the watchdog's longest run and two minutes, so that the watchdog is always first.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "grace_ms", with = "steadfast_core::config::Millis")
    )]
    pub grace: Duration,
    /// The time between two sweeps; there is one at the start as well. 300 s: a ghost is found within 17 minutes of its start.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "every_ms", with = "steadfast_core::config::Millis")
    )]
    pub every: Duration,
    /// Runs of an earlier process are given up at the start, without grace. Off: a program that resumes its runs after a restart needs
    /// the time to do that.
    pub orphans_at_once: bool,
}

impl Default for GhostPolicy {
    fn default() -> Self {
        Self::after(&WatchdogPolicy::default())
    }
}

impl GhostPolicy {
    /// What the grace is beyond the longest run.
    pub const MARGIN: Duration = Duration::from_secs(120);

    /// With the grace that fits this watchdog: its longest run and [`MARGIN`](Self::MARGIN).
    pub fn after(watchdog: &WatchdogPolicy) -> Self {
        Self {
            grace: watchdog.max_run_timeout.saturating_add(Self::MARGIN),
            every: Duration::from_secs(300),
            orphans_at_once: false,
        }
    }

    /// Checks the policy.
    ///
    /// # Errors
    ///
    /// The first invalid value, and what would be valid.
    pub fn validate(&self) -> Result<(), PolicyError> {
        positive("grace", self.grace)?;
        positive("every", self.every)
    }
}

/// The mailboxes of threads, for [`Actors`](crate::Actors).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct ActorsPolicy {
    /// How many prompts of one thread wait, beside the one that runs; as many steering messages wait until they are read. 20: more than
    /// a person writes before an answer comes, and few enough that the last is still of interest.
    pub mailbox: usize,
    /// The longest time of a prompt's whole run: models, tools and reply. 600 s.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "pipeline_ms", with = "steadfast_core::config::Millis")
    )]
    pub pipeline: Duration,
    /// The longest time in which a fixed text is sent to a thread, before its next prompt runs. 30 s.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "notice_ms", with = "steadfast_core::config::Millis")
    )]
    pub notice: Duration,
    /// How long the mailbox of a thread without prompts is kept. 300 s: most answers to an answer come sooner.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "idle_ms", with = "steadfast_core::config::Millis")
    )]
    pub idle: Duration,
    /// The most threads that have a mailbox; beyond it the longest idle go first. 16,384, so that memory is bounded though callers choose the
    /// names.
    pub threads: usize,
}

impl Default for ActorsPolicy {
    fn default() -> Self {
        Self {
            mailbox: 20,
            pipeline: Duration::from_secs(600),
            notice: Duration::from_secs(30),
            idle: Duration::from_secs(300),
            threads: 16_384,
        }
    }
}

impl ActorsPolicy {
    /// Checks the policy.
    ///
    /// # Errors
    ///
    /// The first invalid value, and what would be valid.
    pub fn validate(&self) -> Result<(), PolicyError> {
        for (field, number) in [("mailbox", self.mailbox), ("threads", self.threads)] {
            if number == 0 {
                return Err(PolicyError::NoRoom(field));
            }
        }
        positive("pipeline", self.pipeline)?;
        positive("notice", self.notice)?;
        positive("idle", self.idle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_exact() {
        let limit = |steps| WatchdogPolicy::default().limit(NonZeroU32::new(steps)).as_millis();
        for (steps, ms) in [(0, 600_000), (1, 60_000), (9, 540_000), (10, 600_000)] {
            assert_eq!(limit(steps), ms, "{steps} steps");
        }
        assert_eq!((limit(11), limit(u32::MAX)), (600_000, 600_000));
        let ghost = GhostPolicy::default();
        assert_eq!((ghost.grace.as_millis(), ghost.every.as_millis()), (720_000, 300_000));
    }

    #[test]
    fn invalid_policies_are_refused_with_a_message() {
        let zero = Duration::ZERO;
        let (watchdog, ghost) = (WatchdogPolicy::default(), GhostPolicy::default());
        let actors = ActorsPolicy::default();
        for (result, reason) in [
            (WatchdogPolicy { max_run_timeout: zero, ..watchdog }.validate(), "`max_run_timeout`"),
            (
                WatchdogPolicy { per_step_timeout: zero, ..watchdog }.validate(),
                "`per_step_timeout`",
            ),
            (GhostPolicy { grace: zero, ..ghost }.validate(), "`grace`"),
            (GhostPolicy { every: zero, ..ghost }.validate(), "`every`"),
            (ActorsPolicy { mailbox: 0, ..actors }.validate(), "`mailbox` is 0"),
            (ActorsPolicy { threads: 0, ..actors }.validate(), "`threads` is 0"),
            (ActorsPolicy { pipeline: zero, ..actors }.validate(), "`pipeline`"),
            (ActorsPolicy { notice: zero, ..actors }.validate(), "`notice`"),
            (ActorsPolicy { idle: zero, ..actors }.validate(), "`idle`"),
        ] {
            let error = result.unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
        watchdog.validate().unwrap();
        ghost.validate().unwrap();
        actors.validate().unwrap();
    }

    #[cfg(feature = "serde")]
    #[test]
    fn both_spellings_are_read() {
        let policy = WatchdogPolicy {
            max_run_timeout: Duration::from_secs(90),
            per_step_timeout: Duration::from_secs(7),
        };
        for text in [
            r#"{"max_run_timeout_ms":90000,"per_step_timeout_ms":7000}"#,
            r#"{"maxRunTimeoutMs":90000,"perStepTimeoutMs":7000}"#,
        ] {
            assert_eq!(serde_json::from_str::<WatchdogPolicy>(text).unwrap(), policy);
        }
        let written = serde_json::to_string(&policy).unwrap();
        assert_eq!(written, r#"{"max_run_timeout_ms":90000,"per_step_timeout_ms":7000}"#);
        assert!(serde_json::from_str::<WatchdogPolicy>(r#"{"maxRunTimeout":1}"#).is_err());
    }
}
