//! The decision whether a failed attempt is retried, and after which wait: a pure function.

use std::{fmt, time::Duration};

use steadfast_core::{Failure, Priority, Reason, Retry, TimeLimit};

use crate::RetryPolicy;

/// What is known about a call when one of its attempts has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Situation {
    /// Retries made so far.
    pub retries: u32,
    /// Attempts the request may still have, over all layers; [`u32::MAX`] without a limit.
    pub attempts_left: u32,
    /// Other targets that could take the call.
    pub alternatives: u32,
    /// The priority of the call.
    pub priority: Priority,
    /// What is left of the deadline; `None` when there is none.
    pub time_left: Option<Duration>,
    /// How many `overloaded` there have been in a row, this one included.
    pub overloaded: u32,
    /// The wait before the attempt that failed; zero for the first.
    pub waited: Duration,
}

impl Default for Situation {
    /// The first attempt of a call without limits.
    fn default() -> Self {
        Self {
            retries: 0,
            attempts_left: u32::MAX,
            alternatives: 0,
            priority: Priority::Interactive,
            time_left: None,
            overloaded: 0,
            waited: Duration::ZERO,
        }
    }
}

/// What to do after a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Decision {
    /// Retry after this wait.
    Retry(Duration),
    /// Return the failure.
    GiveUp(GiveUp),
}

/// Why a failure is returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GiveUp {
    /// Content had reached the caller, who would get it twice.
    Delivered,
    /// The failure must not be retried by any layer.
    Forbidden,
    /// One of our own refusals: no provider was called, and a retry would be refused again.
    Refused,
    /// The same request would fail the same way.
    NotRetryable,
    /// An overload, in a background call.
    Background,
    /// So many overloads in a row that a fallback model is asked for.
    Overloaded,
    /// No retries left.
    RetriesSpent,
    /// No attempts left, counted over all layers.
    AttemptsSpent,
    /// A timeout, and another target could take the call.
    HangElsewhere,
    /// The provider asks for a wait that is longer than `failover_wait`, and another target could
    /// take the call.
    HintElsewhere,
    /// The provider asks for a wait that is longer than the policy allows.
    HintTooLong,
    /// The wait would last until the deadline.
    NoTime,
    /// The retry budget is empty.
    Budget,
}

impl GiveUp {
    /// The name used in logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            GiveUp::Delivered => "delivered",
            GiveUp::Forbidden => "forbidden",
            GiveUp::Refused => "refused",
            GiveUp::NotRetryable => "not_retryable",
            GiveUp::Background => "background",
            GiveUp::Overloaded => "overloaded",
            GiveUp::RetriesSpent => "retries_spent",
            GiveUp::AttemptsSpent => "attempts_spent",
            GiveUp::HangElsewhere => "hang_elsewhere",
            GiveUp::HintElsewhere => "hint_elsewhere",
            GiveUp::HintTooLong => "hint_too_long",
            GiveUp::NoTime => "no_time",
            GiveUp::Budget => "budget",
        }
    }

    /// Whether the failure might have been retried under other circumstances: giving up was decided
    /// by this layer, not by the kind of failure.
    pub(crate) const fn is_ours(self) -> bool {
        matches!(
            self,
            GiveUp::Background
                | GiveUp::Overloaded
                | GiveUp::AttemptsSpent
                | GiveUp::HangElsewhere
                | GiveUp::HintElsewhere
                | GiveUp::HintTooLong
                | GiveUp::NoTime
                | GiveUp::Budget
        )
    }
}

impl fmt::Display for GiveUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl RetryPolicy {
    /// What to do after `failure`. The retry budget is checked afterwards, and only for a retry.
    pub fn decide(
        &self,
        failure: &Failure,
        situation: &Situation,
        rng: &mut fastrand::Rng,
    ) -> Decision {
        match self.wait(failure, situation, rng) {
            Ok(wait) => Decision::Retry(wait),
            Err(why) => Decision::GiveUp(why),
        }
    }

    fn wait(
        &self,
        failure: &Failure,
        situation: &Situation,
        rng: &mut fastrand::Rng,
    ) -> Result<Duration, GiveUp> {
        check(failure)?;
        let reason = failure.reason();
        if reason == Reason::Overloaded {
            if situation.priority == Priority::Background {
                return Err(GiveUp::Background);
            }
            if self.overloaded_limit > 0 && situation.overloaded >= self.overloaded_limit {
                return Err(GiveUp::Overloaded);
            }
        }
        if situation.retries >= self.retries {
            return Err(GiveUp::RetriesSpent);
        }
        if situation.attempts_left == 0 {
            return Err(GiveUp::AttemptsSpent);
        }
        let elsewhere = situation.alternatives > 0;
        if reason == Reason::Timeout && elsewhere {
            return Err(GiveUp::HangElsewhere);
        }
        // A hint of zero is no hint.
        let wait = match failure.retry_after().filter(|hint| !hint.is_zero()) {
            Some(hint) if hint > self.max_wait => return Err(GiveUp::HintTooLong),
            Some(hint) if hint > self.failover_wait && elsewhere => {
                return Err(GiveUp::HintElsewhere);
            }
            Some(hint) => self.backoff.spread(hint, rng),
            None => self.backoff.delay(situation.retries, situation.waited, rng),
        };
        // A wait that ends at the deadline leaves no time for the attempt.
        if situation.time_left.is_some_and(|left| wait >= left) {
            return Err(GiveUp::NoTime);
        }
        Ok(wait)
    }
}

/// Whether the failure itself may be retried, apart from the situation.
fn check(failure: &Failure) -> Result<(), GiveUp> {
    if failure.retry() == Retry::Forbidden {
        Err(GiveUp::Forbidden)
    } else if failure.is_delivered() {
        Err(GiveUp::Delivered)
    } else if failure.reason().is_refusal() {
        Err(GiveUp::Refused)
    } else if failure.retry() != Retry::Yes || failure.time_limit() == Some(TimeLimit::Pipeline) {
        Err(GiveUp::NotRetryable)
    } else {
        Ok(())
    }
}
