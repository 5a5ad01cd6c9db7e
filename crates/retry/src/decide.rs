//! The decision whether a failed attempt is retried, and after which wait: a pure function.

use std::{fmt, time::Duration};

use steadfast_core::{Failure, FaultSide, Priority, Reason, Retry, TimeLimit};

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
    /// Another model of the provider could stand in for the target's.
    pub has_downgrade: bool,
    /// The target's model stands in for another one of the provider.
    pub is_downgrade: bool,
    /// Which provider of its chain the target is; 0 for the first.
    pub position: u32,
    /// The call is better made elsewhere: its target rests, or it was to find out if the target still
    /// has to.
    pub rests: bool,
    /// The target has answered somebody so lately that it is not believed when it asks for a wait longer
    /// than [`max_wait`](RetryPolicy::max_wait).
    pub answered_lately: bool,
    /// The priority of the call.
    pub priority: Priority,
    /// What is left of the deadline; `None` when there is none.
    pub time_left: Option<Duration>,
    /// What is left of the time that the waits of the call may take; `None` without a limit.
    pub patience: Option<Duration>,
    /// How many `overloaded` there have been in a row, this one included.
    pub overloaded: u32,
    /// How many attempts have met one of our own time limits, this one included.
    pub hangs: u32,
    /// How many answers nobody could use, by the model's fault, this one included.
    pub unusable: u32,
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
            has_downgrade: false,
            is_downgrade: false,
            position: 0,
            rests: false,
            answered_lately: false,
            priority: Priority::Interactive,
            time_left: None,
            patience: None,
            overloaded: 0,
            hangs: 0,
            unusable: 0,
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
    /// One of our own refusals: no provider was called, and a retry would be refused again. Or it is the
    /// retry that was refused.
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
    /// One of our own time limits, and another target could take the call.
    HangElsewhere,
    /// The provider asks for a wait that is longer than `failover_wait`, or throttles us and asks for none,
    /// and another target could take the call.
    HintElsewhere,
    /// The target rests, or a circuit breaker would refuse the retry, and another target could take the
    /// call.
    Resting,
    /// The provider asks for a wait that is longer than the policy allows.
    HintTooLong,
    /// The wait would last until the deadline, or the call has waited as long as it may.
    NoTime,
    /// The retry budget is empty.
    Budget,
    /// Too many calls wait already.
    Crowded,
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
            GiveUp::Resting => "resting",
            GiveUp::HintTooLong => "hint_too_long",
            GiveUp::NoTime => "no_time",
            GiveUp::Budget => "budget",
            GiveUp::Crowded => "crowded",
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
                | GiveUp::Resting
                | GiveUp::HintTooLong
                | GiveUp::NoTime
                | GiveUp::Budget
                | GiveUp::Crowded
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
        let hint = failure.retry_after();
        // A wait that nobody can wait for, asked for by somebody who has just answered: no hint at all.
        let doubted = situation.answered_lately
            && failure.reason().is_throttling()
            && hint.is_some_and(|hint| hint > self.max_wait);
        match check(failure) {
            Err(GiveUp::NotRetryable) if doubted || self.waits_longer(failure) => {}
            checked => checked?,
        }
        let kind = FailureKind::of(failure);
        if kind == FailureKind::Overloaded && situation.priority == Priority::Background {
            return Err(GiveUp::Background);
        }
        // A hint of zero is no hint.
        let hint = hint.filter(|hint| !hint.is_zero() && !doubted);
        if situation.is_downgrade && self.downgrades_once {
            return Err(GiveUp::RetriesSpent);
        }
        self.check_overload(kind, situation)?;
        let most = if situation.alternatives == 0 || self.spares_last {
            self.retries_alone(kind, situation)
        } else if situation.rests || failure.opened_circuit() {
            return Err(GiveUp::Resting);
        } else {
            self.retries_with_spare(kind, hint)?
        };
        if situation.retries >= most.min(self.retries) {
            return Err(GiveUp::RetriesSpent);
        }
        if situation.attempts_left == 0 {
            return Err(GiveUp::AttemptsSpent);
        }
        let (wait, least) = match hint {
            Some(hint) if hint > self.max_wait => return Err(GiveUp::HintTooLong),
            Some(hint) => (self.backoff.spread(hint, rng), hint),
            None => {
                let slower = if self.slower_by_position { situation.position } else { 0 };
                let doublings = situation.retries.saturating_add(slower);
                let wait = self.backoff.delay(doublings, situation.waited, rng);
                (wait, wait)
            }
        };
        // A wait that ends at the deadline leaves no time for the attempt.
        if situation.time_left.is_some_and(|left| wait >= left)
            || situation.patience.is_some_and(|left| least > left)
        {
            return Err(GiveUp::NoTime);
        }
        Ok(wait)
    }

    /// Whether `failure` is not worth a retry for nothing but the length of the wait it asks for, and this
    /// policy waits as long.
    fn waits_longer(&self, failure: &Failure) -> bool {
        let waits = |hint| hint > WORTH_WAITING && hint <= self.max_wait;
        failure.reason().is_throttling() && failure.retry_after().is_some_and(waits)
    }

    /// So many overloads in a row are enough where somebody else could serve the call, if only a smaller
    /// model.
    fn check_overload(&self, kind: FailureKind, situation: &Situation) -> Result<(), GiveUp> {
        let limit = self.overloaded_limit;
        let elsewhere = situation.alternatives > 0 || situation.has_downgrade;
        match kind == FailureKind::Overloaded && limit > 0 && situation.overloaded >= limit {
            true if elsewhere => Err(GiveUp::Overloaded),
            _ => Ok(()),
        }
    }

    /// How often a call is retried that no other target can serve.
    fn retries_alone(&self, kind: FailureKind, situation: &Situation) -> u32 {
        match kind {
            FailureKind::Hang if situation.hangs > self.retries_after_hang => 0,
            FailureKind::Unusable if situation.unusable > 1 => 0,
            _ => self.retries,
        }
    }

    /// How often a call is retried in place that another target can serve.
    fn retries_with_spare(&self, kind: FailureKind, hint: Option<Duration>) -> Result<u32, GiveUp> {
        let limit = self.overloaded_limit;
        match kind {
            FailureKind::Hang => Err(GiveUp::HangElsewhere),
            // To ask before the time is in vain, and the spare takes less.
            _ if hint.is_some_and(|hint| hint > self.failover_wait) => Err(GiveUp::HintElsewhere),
            FailureKind::Throttled if hint.is_none() => Err(GiveUp::HintElsewhere),
            FailureKind::Throttled => Ok(1),
            FailureKind::Overloaded if limit > 0 => Ok(limit - 1),
            FailureKind::Overloaded => Ok(self.retries),
            FailureKind::Unusable => Ok(1),
            FailureKind::Other => Ok(self.retries_with_spare),
        }
    }
}

/// A classifier finds no longer wait worth a retry.
const WORTH_WAITING: Duration = Duration::from_secs(60);

/// What came, as far as retries go by it; the status outranks what we make of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureKind {
    /// One of our own time limits.
    Hang,
    Throttled,
    Overloaded,
    /// The model's answer, which has been paid for: once more, and no oftener.
    Unusable,
    Other,
}

impl FailureKind {
    pub(crate) fn of(failure: &Failure) -> Self {
        if failure.time_limit().is_some() {
            return Self::Hang;
        }
        if failure.fault() == FaultSide::Model {
            return Self::Unusable;
        }
        match failure.status().map(|status| status.as_u16()) {
            Some(429) => Self::Throttled,
            Some(498 | 503 | 529) => Self::Overloaded,
            Some(500..) => Self::Other,
            _ => match failure.reason() {
                Reason::RateLimit => Self::Throttled,
                Reason::Overloaded => Self::Overloaded,
                _ => Self::Other,
            },
        }
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
