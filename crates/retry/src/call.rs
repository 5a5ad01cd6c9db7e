//! The state of one call over its attempts.

use std::{
    borrow::Cow,
    fmt,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use steadfast_core::{
    AttemptFailure, BufferLimits, Call, Deadline, Failure, Kept, Lease, Reason, Reservation,
    RetryBudget, Spare, Withdrawal,
};
use tower_service::Service;

use crate::{Decision, GiveUp, Nudge, Situation, event, state::RetryState};

/// The state of one call over its attempts.
pub(crate) struct CallState<S, Req> {
    shared: Arc<RetryState>,
    spare: Spare<S>,
    /// The service that makes retries: a clone of the spare, made when the first retry is due.
    service: Option<S>,
    kept: Kept<Req>,
    /// Attempts made for the request before it reached this layer.
    before: u32,
    /// How often a provider was called since.
    calls: u32,
    retries: u32,
    /// Overloads in a row.
    overloaded: u32,
    /// The wait before the attempt under way.
    waited: Duration,
    /// What the retries so far have cost.
    spent: Withdrawal,
    /// The retry that has been decided and not been sent yet.
    pending_retry: PendingRetry,
}

#[derive(Default)]
struct PendingRetry {
    cost: Option<Reservation>,
    nudge: Option<Cow<'static, str>>,
}

/// What follows a failed attempt.
pub(crate) enum NextAction {
    Retry(Duration),
    GiveUp(Failure),
}

impl<S, Req: Call + Clone> CallState<S, Req> {
    /// Before `request` is sent. When no further attempt can follow, only its context is cloned.
    #[inline]
    pub(crate) fn new(shared: Arc<RetryState>, spare: Spare<S>, request: &Req) -> Self {
        let context = request.context();
        let before = context.attempts;
        let kept = if shared.config.policy.retries == 0 || context.attempts_left() <= 1 {
            Kept::Context(context.clone())
        } else {
            Kept::Request(request.clone())
        };
        Self {
            shared,
            spare,
            service: None,
            kept,
            before,
            calls: 0,
            retries: 0,
            overloaded: 0,
            waited: Duration::ZERO,
            spent: Withdrawal::default(),
            pending_retry: PendingRetry::default(),
        }
    }
}

impl<S, Req: Call> CallState<S, Req> {
    pub(crate) fn limits(&self) -> BufferLimits {
        self.shared.config.policy.buffer
    }

    /// Its answer has content: the lease that refunds its retries when the answer ends successfully.
    #[inline]
    pub(crate) fn answered(&self) -> Lease {
        if self.retries > 0 {
            self.shared.recovered();
        }
        let budget = self.shared.budget(self.kept.context());
        budget.map_or_else(Lease::idle, |budget| budget.lease(self.spent))
    }

    /// An attempt has failed.
    pub(crate) fn failed(
        &mut self,
        AttemptFailure { failure, had_reply }: AttemptFailure,
    ) -> NextAction {
        self.calls = self.calls.saturating_add(failure.attempts());
        self.overloaded =
            if failure.reason() == Reason::Overloaded { self.overloaded + 1 } else { 0 };
        match self.decide(&failure) {
            Ok((wait, cost)) => {
                self.waited = wait;
                self.retries += 1;
                self.shared.retried(failure.reason());
                event::retried(self.kept.context(), &failure, self.retries, wait);
                let nudge = Nudge::new(self.retries, failure.reason(), had_reply);
                let nudge = self.shared.nudge(&nudge);
                self.pending_retry = PendingRetry { cost, nudge };
                NextAction::Retry(wait)
            }
            Err(why) => {
                if self.retries > 0 || why.is_ours() {
                    self.shared.gave_up();
                    event::gave_up(self.kept.context(), &failure, self.retries, why);
                }
                let failure = failure.with_attempts(self.calls);
                NextAction::GiveUp(match why {
                    GiveUp::Overloaded => failure.with_wants_fallback(),
                    _ => failure,
                })
            }
        }
    }

    /// How long to wait before a retry, and what it costs.
    fn decide(&self, failure: &Failure) -> Result<(Duration, Option<Reservation>), GiveUp> {
        let context = self.kept.context();
        let situation = Situation {
            retries: self.retries,
            attempts_left: self.attempts_left(),
            alternatives: context.alternatives,
            priority: context.priority,
            time_left: context.deadline.map(Deadline::remaining),
            overloaded: self.overloaded,
            waited: self.waited,
        };
        let wait = match self.shared.decide(failure, &situation) {
            Decision::Retry(wait) => wait,
            Decision::GiveUp(why) => return Err(why),
        };
        if let Kept::Context(_) = self.kept {
            return Err(GiveUp::AttemptsSpent);
        }
        let reserve = |budget: &RetryBudget| budget.reserve(failure.reason()).ok_or(GiveUp::Budget);
        let cost = self.shared.budget(context).map(reserve).transpose()?;
        Ok((wait, cost))
    }

    fn attempts(&self) -> u32 {
        self.before.saturating_add(self.calls)
    }

    /// Attempts the request may still have.
    fn attempts_left(&self) -> u32 {
        let max = self.kept.context().max_attempts;
        max.map_or(u32::MAX, |max| max.get().saturating_sub(self.attempts()))
    }
}

impl<S, Req> CallState<S, Req>
where
    S: Service<Req> + Clone,
    S::Error: Into<Failure>,
    Req: Call + Clone,
{
    /// Waits for readiness and makes the next attempt. The last one takes the request, without a
    /// clone.
    pub(crate) fn poll_retry(&mut self, cx: &mut Context<'_>) -> Poll<Result<S::Future, Failure>> {
        let service = self.service.get_or_insert_with(|| self.spare.get());
        if let Err(error) = ready!(service.poll_ready(cx)) {
            // The service can take no more calls.
            return Poll::Ready(Err(error.into().with_attempts(self.calls)));
        }
        let PendingRetry { cost, nudge } = std::mem::take(&mut self.pending_retry);
        self.spent = self.spent.and(cost.map(Reservation::spend).unwrap_or_default());
        let last = self.retries >= self.shared.config.policy.retries || self.attempts_left() <= 1;
        let request = match &self.kept {
            Kept::Request(request) if !last => Some(request.clone()),
            _ => self.kept.take_last(),
        };
        let attempts = self.attempts();
        let (Some(mut request), Some(service)) = (request, &mut self.service) else {
            let text = "a retry was due after the request had been sent for the last time";
            return Poll::Ready(Err(Failure::refused_fixed(Reason::Unknown, text)));
        };
        request.context_mut().attempts = attempts;
        if let Some(text) = &nudge
            && request.nudge(text)
        {
            event::nudged(request.context(), self.retries);
        }
        Poll::Ready(Ok(service.call(request)))
    }
}

impl<S, Req> fmt::Debug for CallState<S, Req> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallState")
            .field("calls", &self.calls)
            .field("retries", &self.retries)
            .finish_non_exhaustive()
    }
}
