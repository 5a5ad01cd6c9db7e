//! The state of one call over its attempts.

use std::{
    borrow::Cow,
    fmt,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use steadfast_core::{
    AttemptFailure, BufferLimits, Call, Deadline, Failure, Kept, Lease, Reason, Reservation, Retry,
    RetryBudget, Routed, Spare, Waiting, Withdrawal,
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
    /// Answers that nobody could use.
    unusable: u32,
    /// All waits together.
    waited: Duration,
    /// The wait before the attempt under way.
    last_wait: Duration,
    /// What the retries so far have cost.
    spent: Withdrawal,
    /// The retry that is waited for or under way.
    pending_retry: Option<PendingRetry>,
}

/// A retry, from its decision until it is known whether a provider was asked.
struct PendingRetry {
    /// What it is made for.
    after: Failure,
    nudge: Option<Cow<'static, str>>,
    cost: Cost,
}

/// What a retry costs. Dropped while the retry is under way it is paid, since a provider may have been
/// asked; before that, it goes back into the budget.
struct Cost {
    reserved: Option<Reservation>,
    under_way: bool,
}

impl Cost {
    fn spend(mut self) -> Withdrawal {
        self.reserved.take().map(Reservation::spend).unwrap_or_default()
    }
}

impl Drop for Cost {
    fn drop(&mut self) {
        if self.under_way {
            let _ = self.reserved.take().map(Reservation::spend);
        }
    }
}

/// What follows a failed attempt.
pub(crate) enum NextAction {
    Retry(Wait),
    GiveUp(Failure),
}

/// The time before a retry, and the place that the call has among those that wait.
pub(crate) struct Wait {
    pub(crate) time: Duration,
    pub(crate) slot: Option<Waiting>,
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
            unusable: 0,
            waited: Duration::ZERO,
            last_wait: Duration::ZERO,
            spent: Withdrawal::default(),
            pending_retry: None,
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
        if let Some(retry) = self.pending_retry.take() {
            self.count(retry);
            self.shared.recovered();
        }
        let context = self.kept.context();
        let budget = self.shared.budget(context);
        let lease = budget.map_or_else(Lease::idle, |budget| budget.lease(self.spent));
        lease.with_log(context.log.clone())
    }

    /// An attempt has failed.
    pub(crate) fn failed(
        &mut self,
        AttemptFailure { failure, had_reply }: AttemptFailure,
    ) -> NextAction {
        // For a limit below: all waits of a call together have to be short enough.
        self.waited = self.waited.saturating_add(failure.waited());
        match self.pending_retry.take() {
            Some(retry) if failure.attempts() == 0 => return self.refused(failure, retry),
            Some(retry) => self.count(retry),
            None => {}
        }
        self.calls = self.calls.saturating_add(failure.attempts());
        let kind = FailureKind::of(&failure);
        self.overloaded = if kind == FailureKind::Overloaded { self.overloaded + 1 } else { 0 };
        self.hangs += u32::from(kind == FailureKind::Hang);
        self.unusable += u32::from(kind == FailureKind::Unusable);
        // Before the decision, which depends on what the failure means for the target.
        let context = self.kept.context();
        let failure = match &context.routed {
            Some(routed) if failure.attempts() > 0 => routed.failed(failure, &context.log),
            _ => failure,
        };
        match self.decide(&failure) {
            Ok((wait, reserved)) => {
                self.last_wait = wait.time;
                self.waited = self.waited.saturating_add(wait.time);
                self.retries += 1;
                event::retried(self.kept.context(), &failure, self.retries, wait.time);
                let nudge = Nudge::new(self.retries, failure.reason(), had_reply);
                let nudge = self.shared.nudge(&nudge);
                let cost = Cost { reserved, under_way: false };
                self.pending_retry = Some(PendingRetry { after: failure, nudge, cost });
                NextAction::Retry(wait)
            }
            Err(why) => self.give_up(failure, why),
        }
    }

    /// The retry under way was refused before a provider was asked. It waits for its turn, or the call
    /// ends with what the retry was made for.
    fn refused(&mut self, refusal: Failure, mut retry: PendingRetry) -> NextAction {
        retry.cost.under_way = false;
        if let Some(wait) = self.turn(&refusal) {
            self.waited = self.waited.saturating_add(wait.time);
            self.pending_retry = Some(retry);
            return NextAction::Retry(wait);
        }
        self.retries -= 1;
        // What no layer may retry is not replaced by what one may.
        let (failure, why) = match refusal.retry() {
            Retry::Forbidden => (refusal, GiveUp::Forbidden),
            _ => (retry.after, GiveUp::Refused),
        };
        self.report_end(&failure, why);
        NextAction::GiveUp(self.end(failure))
    }

    /// How long to wait after `refusal` where calls take turns and this one has nowhere else to go.
    fn turn(&self, refusal: &Failure) -> Option<Wait> {
        let turn = refusal.retry_after().filter(|turn| !turn.is_zero())?;
        if refusal.reason() != Reason::CircuitOpen
            || !self.takes_turns()
            || turn > self.shared.config.policy.max_wait
        {
            return None;
        }
        let time = self.shared.spread(turn);
        let in_time = self.time_left().is_none_or(|left| time < left);
        let patient = self.patience_left().is_none_or(|left| time <= left);
        if !in_time || !patient {
            return None;
        }
        self.wait(time).ok()
    }

    /// A wait of this `time`, if there is a place for one more call that waits.
    fn wait(&self, time: Duration) -> Result<Wait, GiveUp> {
        let context = self.kept.context();
        let (budget, held) = (self.shared.budget(context), context.held_bytes);
        let budget = budget.filter(|_| !time.is_zero());
        let slot = budget.map(|budget| budget.wait(held).ok_or(GiveUp::Crowded)).transpose()?;
        Ok(Wait { time, slot })
    }

    fn give_up(&self, failure: Failure, why: GiveUp) -> NextAction {
        if self.retries > 0 || why.is_ours() {
            self.report_end(&failure, why);
        }
        let failure = self.end(failure);
        NextAction::GiveUp(if why == GiveUp::Crowded { failure.with_crowded() } else { failure })
    }

    fn report_end(&self, failure: &Failure, why: GiveUp) {
        self.shared.gave_up();
        event::gave_up(self.kept.context(), failure, self.retries, why);
    }

    /// What the call ends with.
    fn end(&self, failure: Failure) -> Failure {
        let failure = failure.with_attempts(self.calls).with_waited(self.waited);
        let limit = self.shared.config.policy.overloaded_limit;
        if limit > 0 && self.overloaded >= limit { failure.with_wants_fallback() } else { failure }
    }

    /// A retry has asked a provider.
    fn count(&mut self, PendingRetry { after, cost, .. }: PendingRetry) {
        self.shared.retried(after.reason());
        self.spent = self.spent.and(cost.spend());
    }

    /// Whether a retry that is refused may wait for its turn, and so may be sent more than once.
    fn takes_turns(&self) -> bool {
        let context = self.kept.context();
        context.routed.is_some() && context.alternatives == 0
    }

    /// What is left of the deadline.
    fn time_left(&self) -> Option<Duration> {
        self.kept.context().deadline.map(Deadline::remaining)
    }

    /// What is left of the time that the call may wait.
    fn patience_left(&self) -> Option<Duration> {
        Some(self.kept.context().patience?.saturating_sub(self.waited))
    }

    /// How long to wait before a retry, and what it costs.
    fn decide(&self, failure: &Failure) -> Result<(Wait, Option<Reservation>), GiveUp> {
        let context = self.kept.context();
        let routed = context.routed.as_ref().filter(|_| context.alternatives > 0);
        let situation = Situation {
            retries: self.retries,
            attempts_left: self.attempts_left(),
            alternatives: context.alternatives,
            has_downgrade: context.routed.as_ref().is_some_and(|routed| routed.has_downgrade),
            is_downgrade: context.routed.as_ref().is_some_and(|routed| routed.is_downgrade),
            position: context.routed.as_ref().map_or(0, |routed| routed.position),
            answered_lately: context.routed.as_ref().is_some_and(Routed::answered_lately),
            rests: routed.is_some_and(|routed| routed.is_probe() || routed.rests()),
            priority: context.priority,
            time_left: self.time_left(),
            patience: self.patience_left(),
            overloaded: self.overloaded,
            hangs: self.hangs,
            unusable: self.unusable,
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
        let wait = self.wait(wait)?;
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
            return Poll::Ready(Err(self.end(error.into())));
        }
        // The last attempt takes the request itself, unless it may have to be sent again.
        let most = self.shared.config.policy.retries;
        let last = !self.takes_turns() && (self.retries >= most || self.attempts_left() <= 1);
        let request = match &self.kept {
            Kept::Request(request) if !last => Some(request.clone()),
            _ => self.kept.take_last(),
        };
        let (attempts, repeats) = (self.attempts(), self.repeats());
        let patience = self.patience_left();
        let (Some(mut request), Some(service), Some(retry)) =
            (request, &mut self.service, &mut self.pending_retry)
        else {
            let text = "a retry was due after the request had been sent for the last time";
            return Poll::Ready(Err(Failure::refused_fixed(Reason::Unknown, text)));
        };
        let context = request.context_mut();
        context.attempts = attempts;
        context.patience = patience;
        if let Some(routed) = &mut context.routed {
            routed.repeats = repeats;
        }
        if let Some(text) = &retry.nudge
            && request.nudge(text)
        {
            event::nudged(request.context(), self.retries);
        }
        retry.cost.under_way = true;
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
