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

use crate::{Decision, GiveUp, Nudge, Situation, decide::FailureKind, event, state::RetryState};

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
    /// Attempts that met one of our own time limits.
    hangs: u32,
    /// The last failure of an attempt.
    last: Option<Failure>,
    /// All waits together.
    waited: Duration,
    /// The wait before the attempt under way.
    last_wait: Duration,
    /// What the retries so far have cost.
    spent: Withdrawal,
    /// The retry that has been decided and not been sent yet.
    pending_retry: PendingRetry,
}

#[derive(Default)]
struct PendingRetry {
    cost: Option<Reservation>,
    nudge: Option<Cow<'static, str>>,
    /// Why; taken once a provider has been asked.
    reason: Option<Reason>,
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
            hangs: 0,
            last: None,
            waited: Duration::ZERO,
            last_wait: Duration::ZERO,
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
    pub(crate) fn answered(&mut self) -> Lease {
        if self.retries > 0 {
            self.count_retry();
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
        if failure.attempts() == 0 && self.last.is_some() {
            return self.refused(&failure);
        }
        self.count_retry();
        self.calls = self.calls.saturating_add(failure.attempts());
        let kind = FailureKind::of(&failure);
        self.overloaded = if kind == FailureKind::Overloaded { self.overloaded + 1 } else { 0 };
        self.hangs += u32::from(kind == FailureKind::Hang);
        let context = self.kept.context();
        let failure = match &context.routed {
            Some(routed) if failure.attempts() > 0 => routed.failed(failure, &context.log),
            _ => failure,
        };
        match self.decide(&failure) {
            Ok((wait, cost)) => {
                self.last_wait = wait;
                self.waited += wait;
                self.retries += 1;
                event::retried(self.kept.context(), &failure, self.retries, wait);
                let reason = failure.reason();
                let nudge = self.shared.nudge(&Nudge::new(self.retries, reason, had_reply));
                self.pending_retry = PendingRetry { cost, nudge, reason: Some(reason) };
                self.last = Some(failure);
                NextAction::Retry(wait)
            }
            Err(why) => self.give_up(failure, why),
        }
    }

    /// A retry was refused before a provider was asked. Where the call has nowhere else to go it waits for
    /// its turn; else it ends with what it was retried for.
    fn refused(&mut self, refusal: &Failure) -> NextAction {
        let context = self.kept.context();
        let wait = refusal.retry_after().filter(|_| {
            refusal.reason() == Reason::CircuitOpen
                && context.routed.is_some()
                && context.alternatives == 0
        });
        if let Some(wait) = wait {
            // Many wait for the same turn.
            let wait = self.shared.part_of(wait);
            let ends = context.deadline.is_some_and(|deadline| wait >= deadline.remaining());
            if !ends && self.patience_left().is_none_or(|left| wait <= left) {
                self.waited += wait;
                return NextAction::Retry(wait);
            }
        }
        self.retries -= 1;
        match self.last.take() {
            Some(failure) => self.give_up(failure, GiveUp::Refused),
            None => NextAction::GiveUp(still_refused()),
        }
    }

    fn give_up(&mut self, failure: Failure, why: GiveUp) -> NextAction {
        if self.retries > 0 || why.is_ours() {
            self.shared.gave_up();
            event::gave_up(self.kept.context(), &failure, self.retries, why);
        }
        let failure = failure.with_attempts(self.calls).with_waited(self.waited);
        NextAction::GiveUp(match why {
            GiveUp::Overloaded => failure.with_wants_fallback(),
            _ => failure,
        })
    }

    /// The retry under way has asked a provider.
    fn count_retry(&mut self) {
        if let Some(reason) = self.pending_retry.reason.take() {
            self.shared.retried(reason);
        }
    }

    /// What is left of the time that the call may wait.
    fn patience_left(&self) -> Option<Duration> {
        Some(self.kept.context().patience?.saturating_sub(self.waited))
    }

    /// How long to wait before a retry, and what it costs.
    fn decide(&self, failure: &Failure) -> Result<(Duration, Option<Reservation>), GiveUp> {
        let context = self.kept.context();
        let routed = context.routed.as_ref().filter(|_| context.alternatives > 0);
        let situation = Situation {
            retries: self.retries,
            attempts_left: self.attempts_left(),
            alternatives: context.alternatives,
            rests: routed.is_some_and(|routed| routed.is_probe() || routed.rests()),
            priority: context.priority,
            time_left: context.deadline.map(Deadline::remaining),
            patience: self.patience_left(),
            overloaded: self.overloaded,
            hangs: self.hangs,
            waited: self.last_wait,
        };
        let wait = match self.shared.decide(failure, &situation) {
            Decision::Retry(wait) => wait,
            Decision::GiveUp(why) => return Err(why),
        };
        if let Kept::Context(_) = self.kept {
            return Err(GiveUp::AttemptsSpent);
        }
        let repeat = self.repeats() + 1;
        let reserve = |budget: &RetryBudget| {
            budget.reserve_retry(failure.reason(), repeat).ok_or(GiveUp::Budget)
        };
        let cost = self.shared.budget(context).map(reserve).transpose()?;
        Ok((wait, cost))
    }

    /// How often the call has asked its target again.
    fn repeats(&self) -> u32 {
        let before = self.kept.context().routed.as_ref().map_or(0, |routed| routed.repeats);
        before.saturating_add(self.retries)
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
        let PendingRetry { cost, nudge, .. } = &mut self.pending_retry;
        let cost = cost.take().map(Reservation::spend).unwrap_or_default();
        // Kept: a call that is out of turn is sent again.
        let nudge = nudge.clone();
        self.spent = self.spent.and(cost);
        // Where calls take turns, it may be sent again.
        let takes_turns = self.kept.context().routed.is_some();
        let most = self.shared.config.policy.retries;
        let last = !takes_turns && (self.retries >= most || self.attempts_left() <= 1);
        let request = match &self.kept {
            Kept::Request(request) if !last => Some(request.clone()),
            _ => self.kept.take_last(),
        };
        let (attempts, repeats) = (self.attempts(), self.repeats());
        let (Some(mut request), Some(service)) = (request, &mut self.service) else {
            let text = "a retry was due after the request had been sent for the last time";
            return Poll::Ready(Err(Failure::refused_fixed(Reason::Unknown, text)));
        };
        let context = request.context_mut();
        context.attempts = attempts;
        if let Some(routed) = &mut context.routed {
            routed.repeats = repeats;
        }
        if let Some(text) = &nudge
            && request.nudge(text)
        {
            event::nudged(request.context(), self.retries);
        }
        Poll::Ready(Ok(service.call(request)))
    }
}

fn still_refused() -> Failure {
    let text = "a retry was refused after it had been given up";
    Failure::refused_fixed(Reason::Unknown, text)
}

impl<S, Req> fmt::Debug for CallState<S, Req> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallState")
            .field("calls", &self.calls)
            .field("retries", &self.retries)
            .finish_non_exhaustive()
    }
}
