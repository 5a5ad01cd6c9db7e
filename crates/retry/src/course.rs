//! What one call remembers over its attempts.

use std::{
    borrow::Cow,
    fmt,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use steadfast_core::{Call, CallContext, Failure, Lease, Peek, Reason, RetryBudget, Withdrawal};
use tower_service::Service;

use crate::{Decision, GiveUp, Nudge, Situation, event, service::Own};

/// What one call remembers over its attempts.
pub(crate) struct Course<S, Req> {
    own: Arc<Own<S>>,
    spare: Spare<S, Req>,
    /// Attempts the request had behind it when it came here.
    before: u32,
    /// How often a provider was asked since.
    asked: u32,
    retries: u32,
    /// Overloads in a row.
    overloaded: u32,
    /// The wait before the attempt under way.
    waited: Duration,
    /// What the retries so far have cost.
    spent: Withdrawal,
    /// The retry that has been decided on and not been sent yet.
    pending: Option<Pending>,
}

/// What the next attempt is made of.
pub(crate) enum Spare<S, Req> {
    Kept {
        /// `None` before the first retry.
        service: Option<S>,
        request: Req,
    },
    /// No attempt can follow the one under way. The context is what logs are written to.
    Gone(CallContext),
}

/// A retry that has been decided on. Dropped, it goes back into the budget: nobody was asked.
struct Pending {
    budget: Option<RetryBudget>,
    cost: Withdrawal,
    nudge: Option<Cow<'static, str>>,
}

/// What follows a failed attempt.
pub(crate) enum Next {
    Retry(Duration),
    GiveUp(Failure),
}

impl<S, Req: Call + Clone> Spare<S, Req> {
    /// What later attempts need of `request`, which is sent. Without later ones nothing is cloned but
    /// the context.
    #[inline]
    pub(crate) fn of(request: &Req, own: &Own<S>) -> Self {
        let context = request.context();
        if own.shared.config.policy.retries == 0 || context.attempts_left() <= 1 {
            Spare::Gone(context.clone())
        } else {
            Spare::Kept { service: None, request: request.clone() }
        }
    }
}

impl<S, Req: Call> Course<S, Req> {
    #[inline]
    pub(crate) fn new(own: Arc<Own<S>>, spare: Spare<S, Req>) -> Self {
        Self {
            own,
            before: spare.context().attempts,
            spare,
            asked: 0,
            retries: 0,
            overloaded: 0,
            waited: Duration::ZERO,
            spent: Withdrawal::default(),
            pending: None,
        }
    }
}

impl<S, Req: Call> Course<S, Req> {
    pub(crate) fn peek(&self) -> Peek {
        self.own.shared.config.policy.peek
    }

    /// An answer has begun: the lease that puts back what it cost when it ends well.
    #[inline]
    pub(crate) fn succeeded(&self) -> Lease {
        self.recovered().map_or_else(Lease::idle, |budget| budget.lease(self.spent))
    }

    /// An answer is there and whole.
    #[inline]
    pub(crate) fn succeeded_at_once(&self) {
        if let Some(budget) = self.recovered() {
            budget.refund(self.spent);
        }
    }

    #[inline]
    fn recovered(&self) -> Option<&RetryBudget> {
        if self.retries > 0 {
            self.own.shared.recovered();
        }
        self.own.budget(self.spare.context())
    }

    /// An attempt has failed; `began` says that its answer had begun.
    pub(crate) fn failed(&mut self, failure: Failure, began: bool) -> Next {
        self.asked = self.asked.saturating_add(failure.attempts());
        self.overloaded =
            if failure.reason() == Reason::Overloaded { self.overloaded + 1 } else { 0 };
        match self.decide(&failure) {
            Ok((wait, budget, cost)) => {
                self.waited = wait;
                self.retries += 1;
                self.own.shared.retried(failure.reason());
                event::retried(self.spare.context(), &failure, self.retries, wait);
                let nudge = Nudge::new(self.retries, failure.reason(), began);
                let nudge = self.own.shared.nudge(&nudge);
                self.pending = Some(Pending { budget, cost, nudge });
                Next::Retry(wait)
            }
            Err(why) => {
                if self.retries > 0 || why.is_ours() {
                    self.own.shared.gave_up();
                    event::gave_up(self.spare.context(), &failure, self.retries, why);
                }
                let failure = failure.with_attempts(self.asked);
                Next::GiveUp(match why {
                    GiveUp::Overloaded => failure.with_wants_fallback(),
                    _ => failure,
                })
            }
        }
    }

    fn decide(
        &self,
        failure: &Failure,
    ) -> Result<(Duration, Option<RetryBudget>, Withdrawal), GiveUp> {
        let context = self.spare.context();
        let attempts = self.before.saturating_add(self.asked);
        let situation = Situation {
            retries: self.retries,
            attempts_left: left(context, attempts),
            alternatives: context.alternatives,
            priority: context.priority,
            time_left: context.deadline.map(steadfast_core::Deadline::remaining),
            overloaded: self.overloaded,
            waited: self.waited,
        };
        let wait = match self.own.shared.decide(failure, &situation) {
            Decision::Retry(wait) => wait,
            Decision::GiveUp(why) => return Err(why),
        };
        if let Spare::Gone(_) = self.spare {
            return Err(GiveUp::AttemptsSpent);
        }
        let budget = self.own.budget(context);
        let cost = match budget {
            Some(budget) => budget.withdraw(failure.reason()).ok_or(GiveUp::Budget)?,
            None => Withdrawal::default(),
        };
        Ok((wait, budget.cloned(), cost))
    }
}

impl<S, Req> Course<S, Req>
where
    S: Service<Req> + Clone,
    S::Error: Into<Failure>,
    Req: Call + Clone,
{
    /// Readies the inner service and makes the next attempt.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<S::Future, Failure>> {
        let Spare::Kept { service, request } = &mut self.spare else {
            return Poll::Ready(Err(self.unready(nothing_left())));
        };
        let service = service.get_or_insert_with(|| self.own.spare());
        if let Err(error) = ready!(service.poll_ready(cx)) {
            return Poll::Ready(Err(self.unready(error.into())));
        }
        let nudge = match self.pending.take() {
            Some(mut pending) => {
                self.spent = self.spent.and(std::mem::take(&mut pending.cost));
                pending.nudge.take()
            }
            None => None,
        };
        let retries = self.retries;
        let attempts = self.before.saturating_add(self.asked);
        let last = retries >= self.own.shared.config.policy.retries
            || left(request.context(), attempts) <= 1;
        let dress = |request: &mut Req| {
            request.context_mut().attempts = attempts;
            if let Some(text) = &nudge
                && request.nudge(text)
            {
                event::nudged(request.context(), retries);
            }
        };
        if !last {
            let mut request = request.clone();
            dress(&mut request);
            return Poll::Ready(Ok(service.call(request)));
        }
        let gone = Spare::Gone(request.context().clone());
        let Spare::Kept { service: Some(mut service), mut request } =
            std::mem::replace(&mut self.spare, gone)
        else {
            return Poll::Ready(Err(nothing_left()));
        };
        dress(&mut request);
        Poll::Ready(Ok(service.call(request)))
    }

    /// The inner service can take no more calls.
    fn unready(&self, failure: Failure) -> Failure {
        failure.with_attempts(self.asked)
    }
}

/// Attempts a request may still have after it had so many.
fn left(context: &CallContext, attempts: u32) -> u32 {
    context.max_attempts.map_or(u32::MAX, |max| max.get().saturating_sub(attempts))
}

/// A retry is decided on only while there is something to make it with.
fn nothing_left() -> Failure {
    Failure::refused(Reason::Unknown, "a retry was due and nothing was left to make it with")
}

impl<S, Req: Call> Spare<S, Req> {
    fn context(&self) -> &CallContext {
        match self {
            Spare::Kept { request, .. } => request.context(),
            Spare::Gone(context) => context,
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        // A withdrawal of nothing, put back, would count as a success.
        if let Some(budget) = &self.budget
            && self.cost != Withdrawal::default()
        {
            budget.refund(self.cost);
        }
    }
}

impl<S, Req> fmt::Debug for Course<S, Req> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Course")
            .field("asked", &self.asked)
            .field("retries", &self.retries)
            .finish_non_exhaustive()
    }
}
