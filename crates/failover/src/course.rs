//! One call's way through its candidates: what was tried, what is left, how it ends.

mod ending;
mod trouble;

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use smallvec::SmallVec;
use steadfast_core::{
    Call, CallContext, Deadline, Failover, Failure, Lease, Needs, Reason, RecoveryLog, RetryBudget,
};
use tokio::time::Instant;

use self::trouble::Trouble;
use crate::{
    event,
    policy::{FailoverPolicy, WhenExhausted},
    route::Route,
    select::{self, Limits, Plan, Set, Skip, View},
    slot::{self, Slot},
    sticky::{Session, Stay},
    straight,
};

const NO_ATTEMPTS: &str = "the request has had all the attempts it may have";

/// One call's way through its candidates.
#[derive(Debug)]
pub(crate) struct Course {
    route: Arc<Route>,
    needs: Needs,
    log: RecoveryLog,
    /// The call's own; what the layer has goes before it.
    budget: Option<RetryBudget>,
    deadline: Option<Deadline>,
    /// Attempts made before the call came here.
    before: u32,
    /// The most attempts it may have in all.
    max_attempts: u32,
    session: Session,
    /// It has been looked for a target to ask as well; that is done once.
    hedged: bool,
    /// Made when the first thing goes wrong.
    trouble: Option<Box<Trouble>>,
}

/// What to do next.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Next {
    Go(Choice),
    Wait(Duration),
    End,
}

/// Where to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) slot: u8,
    /// The probe's number; 0 is none.
    mark: u64,
    /// Other providers that could still take the call.
    alternatives: u32,
    /// Attempts under way at the same time.
    beside: u32,
    /// Nothing can come after it, so it may have the request itself.
    pub(crate) last: bool,
}

impl Course {
    pub(crate) fn new(
        route: Arc<Route>,
        context: &CallContext,
        needs: Needs,
        session: Session,
    ) -> Self {
        Self {
            needs,
            session,
            log: context.log.clone(),
            budget: context.budget.clone(),
            deadline: context.deadline,
            before: context.attempts,
            max_attempts: context.max_attempts.map_or(u32::MAX, |max| max.get()),
            hedged: false,
            trouble: None,
            route,
        }
    }

    pub(crate) fn policy(&self) -> &FailoverPolicy {
        self.route.policy()
    }

    fn slot(&self, at: u8) -> &Slot {
        self.route.slot(at)
    }

    /// What is drawn from: the layer's budget, or the call's.
    fn budget(&self) -> Option<&RetryBudget> {
        self.route.budget(self.budget.as_ref())
    }

    fn trouble(&mut self) -> &mut Trouble {
        self.trouble.get_or_insert_default()
    }

    fn attempts(&self) -> u32 {
        self.trouble.as_ref().map_or(0, |trouble| trouble.attempts)
    }

    fn attempts_left(&self) -> u32 {
        self.max_attempts.saturating_sub(self.before.saturating_add(self.attempts()))
    }

    /// Where the call goes now.
    pub(crate) fn next(&mut self) -> Next {
        match &self.trouble {
            None => {
                if self.attempts_left() == 0 {
                    return self.stop(NO_ATTEMPTS);
                }
            }
            Some(trouble) => {
                if trouble.stopped.is_some() || trouble.is_final() {
                    return Next::End;
                }
                if trouble.owed.is_some() {
                    if self.attempts_left() == 0 {
                        return self.stop(NO_ATTEMPTS);
                    }
                    if self.deadline.is_some_and(Deadline::is_past) {
                        return self.stop("the deadline of the call has passed");
                    }
                }
            }
        }
        match self.straight() {
            Some(choice) => self.go(&[], choice),
            None => self.select(),
        }
    }

    /// The first candidate that has not failed, when nothing cools and nothing asks for another: the
    /// usual case, without weighing all of them and without looking at the clock.
    fn straight(&self) -> Option<Choice> {
        let route = &*self.route;
        let limits = self.trouble.as_ref().map(|trouble| &trouble.limits);
        let elsewhere = |stay: &Stay| limits.is_some() || !stay.seats(&route.slots[0].target);
        if route.choosy
            || limits.is_some_and(|limits| limits.floor.is_some() || !limits.downgrade.is_empty())
            || straight::stay(&self.session).is_some_and(elsewhere)
            || route.may_cool()
        {
            return None;
        }
        let left = |at: u8| limits.is_none_or(|limits| !limits.excluded.has(at));
        let numbered = || (0u8..).zip(&route.slots).filter(|(at, _)| left(*at));
        let (slot, own) = numbered().find(|(_, slot)| slot.rank == 0)?;
        let mut others = Set::default();
        numbered()
            .filter(|(_, other)| other.rank == 0)
            .for_each(|(_, other)| others.add(other.spec));
        others.drop(own.spec);
        let last = !self.may_wait() && numbered().all(|(at, _)| at == slot);
        Some(Choice { slot, mark: 0, alternatives: others.len(), beside: 0, last })
    }

    fn may_wait(&self) -> bool {
        self.policy().may_wait()
    }

    fn views(&self, now: Instant) -> SmallVec<[View; 8]> {
        self.route.slots.iter().map(|slot| slot.view(&self.needs, now)).collect()
    }

    fn limits(&self, now: Instant) -> Limits {
        let mut limits = self.trouble.as_ref().map_or_else(Limits::default, |own| own.limits);
        if let Some(stay) = straight::stay(&self.session) {
            limits.seat = (0u8..)
                .zip(&self.route.slots)
                .find(|(_, slot)| slot.rank == 0 && stay.is_at(&slot.target, now))
                .map(|(at, _)| at);
        }
        limits
    }

    fn select(&mut self) -> Next {
        let now = Instant::now();
        let views = self.views(now);
        let limits = self.limits(now);
        let plan = select::plan(&views, now, &limits);
        for pick in &plan.order {
            let mark = match pick.probe {
                false => Some(0),
                true => self.slot(pick.slot).claim(now),
            };
            if let Some(mark) = mark {
                self.pass_over(&plan, pick.slot);
                let choice = self.choice(&views, &plan, &limits, pick.slot, mark, 0);
                return self.go(&views, choice);
            }
        }
        self.exhausted(now, &views, &plan, limits)
    }

    /// Pays for the attempt.
    fn go(&mut self, views: &[View], choice: Choice) -> Next {
        let Choice { slot, mark, .. } = choice;
        if let Some(reason) = self.trouble.as_ref().and_then(|trouble| trouble.owed) {
            if !self.withdraw(reason) {
                self.slot(slot).release(mark);
                return self.stop("the retry budget is used up");
            }
            self.trouble().owed = None;
        }
        if mark != 0 {
            event::probe(&self.log, &self.slot(slot).target);
        }
        self.tell_where(views, slot);
        Next::Go(choice)
    }

    fn choice(
        &self,
        views: &[View],
        plan: &Plan,
        limits: &Limits,
        slot: u8,
        mark: u64,
        beside: u32,
    ) -> Choice {
        let own = views[usize::from(slot)].spec;
        let mut others = Set::default();
        for pick in &plan.order {
            others.add(views[usize::from(pick.slot)].spec);
        }
        others.drop(own);
        let alone = !self.may_wait()
            && (0u8..)
                .zip(views)
                .all(|(other, _)| other == slot || !select::possible(views, other, limits));
        Choice { slot, mark, alternatives: others.len(), beside, last: alone }
    }

    /// Nothing is left that is not cooling.
    fn exhausted(&mut self, now: Instant, views: &[View], plan: &Plan, mut limits: Limits) -> Next {
        let policy = self.policy();
        match policy.when_exhausted {
            WhenExhausted::Fail => Next::End,
            WhenExhausted::Wait(max) => {
                if let Some(trouble) = &self.trouble {
                    limits.excluded.remove(trouble.resting);
                }
                let waited = self.trouble.as_ref().map_or(Duration::ZERO, |own| own.waited);
                match select::soonest(views, now, &limits, |_| true) {
                    Some((slot, rest)) => {
                        // It may be probed before it is back.
                        let at = if rest.probe_from > now { rest.probe_from } else { rest.until };
                        self.wait(slot, at - now, max.saturating_sub(waited))
                    }
                    None => Next::End,
                }
            }
            WhenExhausted::TrySoonest => {
                let waited = self.trouble.as_ref().map_or(Duration::ZERO, |own| own.waited);
                let soft = policy.soft_wait.saturating_sub(waited);
                if self.trouble.as_ref().is_some_and(|trouble| trouble.insisted) {
                    return Next::End;
                }
                if let Some((slot, rest)) = select::soonest(views, now, &limits, |rest| !rest.asked)
                {
                    event::insisted(&self.log, &self.slot(slot).target, rest.reason);
                    self.trouble().insisted = true;
                    self.pass_over(plan, slot);
                    let choice = self.choice(views, plan, &limits, slot, 0, 0);
                    return self.go(views, choice);
                }
                match select::soonest(views, now, &limits, |_| true) {
                    Some((slot, rest)) => self.wait(slot, rest.until - now, soft),
                    None => Next::End,
                }
            }
        }
    }

    fn wait(&mut self, slot: u8, wait: Duration, longest: Duration) -> Next {
        let time = self.deadline.map_or(Duration::MAX, Deadline::remaining);
        if wait > longest || wait >= time {
            return Next::End;
        }
        event::waited(&self.log, &self.slot(slot).target, wait);
        let trouble = self.trouble();
        trouble.waited = trouble.waited.saturating_add(wait);
        Next::Wait(wait)
    }

    /// The wait is over: what rested may be asked once more.
    pub(crate) fn wake(&mut self) {
        if !self.may_wait() {
            return;
        }
        let trouble = self.trouble();
        trouble.limits.excluded.remove(trouble.resting);
        trouble.again.join(trouble.resting);
        trouble.resting = Set::default();
    }

    /// One more target beside `main`, which has not begun to answer. The request is to be cloned.
    pub(crate) fn hedge(&mut self, main: u8) -> Option<Choice> {
        self.hedged = true;
        let after = self.policy().hedge?;
        if self.attempts_left() < 2 || self.deadline.is_some_and(Deadline::is_past) {
            return None;
        }
        let now = Instant::now();
        let views = self.views(now);
        let mut limits = self.limits(now);
        // A slow provider is not asked twice.
        let slow = self.slot(main).spec;
        limits.exclude(&views, |view| view.spec == slow);
        let plan = select::plan(&views, now, &limits);
        let pick = plan.order.iter().find(|pick| !pick.probe)?;
        if !self.withdraw(Reason::Timeout) {
            event::stopped(&self.log, "the retry budget has nothing for a hedge");
            return None;
        }
        event::hedged(&self.log, &self.slot(pick.slot).target, after);
        Some(Choice { last: false, ..self.choice(&views, &plan, &limits, pick.slot, 0, 1) })
    }

    /// The answer of `winner` came before that of `loser`.
    pub(crate) fn outrun(&self, loser: u8) {
        event::outrun(&self.log, &self.slot(loser).target);
    }

    fn withdraw(&mut self, reason: Reason) -> bool {
        let Some(budget) = self.budget() else { return true };
        let Some(taken) = budget.withdraw(reason) else { return false };
        let trouble = self.trouble();
        trouble.withdrawn = Some(trouble.withdrawn.map_or(taken, |before| before.and(taken)));
        true
    }

    fn stop(&mut self, why: &'static str) -> Next {
        event::stopped(&self.log, why);
        self.trouble().stopped = Some(why);
        Next::End
    }

    /// Enters what was passed over on the way to `slot`.
    fn pass_over(&mut self, plan: &Plan, slot: u8) {
        if plan.skipped.iter().all(|(at, _)| *at > slot) {
            return;
        }
        let now = Instant::now();
        for (at, skip) in plan.skipped.iter().filter(|(at, _)| *at < slot) {
            self.skip(*at, skip, now);
        }
    }

    fn skip(&mut self, at: u8, skip: &Skip, now: Instant) {
        if self.trouble().skip(at, skip, now) {
            event::skipped(&self.log, &self.slot(at).target, skip.reason());
        }
    }

    /// Says where the call goes when that is not where it was, or not what was asked for.
    fn tell_where(&self, views: &[View], slot: u8) {
        let to = self.slot(slot);
        let last = self.trouble.as_ref().and_then(|trouble| trouble.last.as_ref());
        match last {
            Some(last) => {
                let (from, reason) = (self.slot(last.slot), last.failure.reason());
                if from.spec == to.spec && from.rank != to.rank {
                    event::downgraded(&self.log, &from.target, &to.target, reason);
                } else {
                    event::switched(&self.log, &from.target, &to.target, reason);
                }
            }
            None if to.rank > 0 => {
                let asked = self.route.slots.iter().position(|slot| slot.spec == to.spec);
                if let Some(asked) = asked {
                    let reason = views[asked].rest.map_or(Reason::Cooling, |rest| rest.reason);
                    let from = &self.route.slots[asked].target;
                    event::downgraded(&self.log, from, &to.target, reason);
                }
            }
            None => {}
        }
    }

    /// Fits `request` to where it goes, and takes a place in that target's books.
    ///
    /// # Errors
    ///
    /// When the request can not be made to fit.
    pub(crate) fn prepare<Req: Call>(
        &self,
        choice: Choice,
        request: &mut Req,
    ) -> Result<Lease, Failure> {
        let slot = self.slot(choice.slot);
        let withdrawn = self.trouble.as_ref().and_then(|trouble| trouble.withdrawn);
        // Before anything can go wrong: it gives the probe's place back.
        // The generation after a probe's claim: taking over a lost probe's place moves it on.
        let admitted = (slot.book.admit(), choice.mark);
        let refund = slot::refund(self.budget(), withdrawn);
        let route = self.route.clone();
        let lease = slot::lease(route, choice.slot, admitted, self.log.clone(), refund);
        let context = request.context_mut();
        context.target = Some(slot.target.clone());
        context.attempts = self.before.saturating_add(self.attempts() + choice.beside);
        if let Some(max) = self.share(choice, context.attempts) {
            context.max_attempts = NonZeroU32::new(max);
        }
        context.alternatives = choice.alternatives;
        if context.budget.is_none() {
            // A success counts here; the layers below put back what they have drawn.
            context.budget = self.route.budget.as_ref().map(RetryBudget::drawing);
        }
        request.adapt(slot.profile(self.is_foreign(slot)))?;
        Ok(lease)
    }

    /// Up to which attempt the layers below may go for `choice`, when that is less than for the
    /// whole call. Of two attempts at once neither sees what the other one spends: so one is set
    /// aside for the second as long as there may be one, and the second has no more than that.
    fn share(&self, choice: Choice, attempts: u32) -> Option<u32> {
        if self.max_attempts == u32::MAX {
            return None;
        }
        if choice.beside > 0 {
            return Some(attempts.saturating_add(1));
        }
        let two = self.policy().hedge.is_some() && !self.hedged && self.route.providers > 1;
        (two && !choice.last && self.attempts_left() > 1).then(|| self.max_attempts - 1)
    }

    /// Whether the history was written by somebody else. Without a session it is taken to be the
    /// first choice's.
    fn is_foreign(&self, slot: &Slot) -> bool {
        match straight::stay(&self.session) {
            Some(stay) => !stay.reads(&slot.target),
            None => slot.spec != 0 || slot.rank != 0,
        }
    }

    /// Nothing may come after what has happened, not even an answer that is under way.
    pub(crate) fn is_forbidden(&self) -> bool {
        let last = self.trouble.as_ref().and_then(|trouble| trouble.last.as_ref());
        last.is_some_and(|last| last.go == Failover::Forbidden)
    }

    /// The attempt at `at` answered.
    pub(crate) fn answered(&self, at: u8) {
        if let Some(session) = &self.session {
            session.answered(&self.slot(at).target);
        }
    }

    /// The request could not be made to fit `at`.
    pub(crate) fn unfit(&mut self, at: u8, failure: Failure) {
        let failure = self.place(at, failure);
        event::skipped(&self.log, &self.slot(at).target, failure.reason());
        self.trouble().unfit(at, failure);
    }

    /// The attempt at `at` failed; its lease knows already.
    pub(crate) fn fail(&mut self, at: u8, failure: Failure) {
        let failure = self.place(at, failure);
        let verdict = self.policy().verdict(&failure);
        let trouble = self.trouble.get_or_insert_default();
        trouble.fail(at, failure, &verdict, &self.route.slots);
    }

    /// `failure` with its target, when it does not say so itself.
    fn place(&self, at: u8, failure: Failure) -> Failure {
        match failure.target() {
            Some(_) => failure,
            None => failure.with_target(self.slot(at).target.clone()),
        }
    }
}
