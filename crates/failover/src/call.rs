//! One call's way through its candidates: what was tried, what is left, what comes next.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use smallvec::SmallVec;
use steadfast_core::{
    Call, CallContext, Deadline, Failover, Failure, Lease, Needs, Permit, Reason, RecoveryLog,
    Reservation, RetryBudget,
};
use tokio::time::Instant;

use crate::{
    affinity::{Affinity, Session},
    candidate::{self, Candidate},
    event,
    history::History,
    policy::{FailoverPolicy, WhenExhausted},
    route::Route,
    select::{self, CandidateSet, CandidateView, Exclusions, Plan, Skip},
};

const NO_ATTEMPTS: &str = "the request has had all the attempts it may have";

/// One call's way through its candidates.
#[derive(Debug)]
pub(crate) struct CallState {
    pub(crate) route: Arc<Route>,
    needs: Needs,
    pub(crate) log: RecoveryLog,
    /// The call's own; what the layer has goes before it.
    budget: Option<RetryBudget>,
    deadline: Option<Deadline>,
    /// Attempts made before the call came here.
    before: u32,
    /// The most attempts it may have in all.
    max_attempts: u32,
    witness: Option<u64>,
    session: Option<Session>,
    /// It has been looked for a target to ask as well; that is done once.
    hedged: bool,
    /// Made when the first thing goes wrong.
    pub(crate) history: Option<Box<History>>,
}

/// What to do next.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NextAction {
    Ask(Selection),
    Wait(Duration),
    End,
}

/// Which candidate is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Selection {
    pub(crate) candidate: u8,
    permit: Permit,
    /// Other providers that could still take the call.
    alternatives: u32,
    /// Attempts under way at the same time.
    beside: u32,
    /// Nothing can come after it, so it may have the request itself.
    pub(crate) last: bool,
}

impl CallState {
    #[inline]
    pub(crate) fn new(
        route: Arc<Route>,
        context: &CallContext,
        needs: Needs,
        session: Option<Session>,
    ) -> Self {
        Self {
            needs,
            session,
            log: context.log.clone(),
            budget: context.budget.clone(),
            deadline: context.deadline,
            before: context.attempts,
            max_attempts: context.max_attempts.map_or(u32::MAX, |max| max.get()),
            witness: context.witness,
            hedged: false,
            history: None,
            route,
        }
    }

    pub(crate) fn policy(&self) -> &FailoverPolicy {
        self.route.policy()
    }

    pub(crate) fn candidate(&self, at: u8) -> &Candidate {
        self.route.candidate(at)
    }

    /// What is drawn from: the layer's budget, or the call's.
    fn budget(&self) -> Option<&RetryBudget> {
        self.route.budget(self.budget.as_ref())
    }

    fn history(&mut self) -> &mut History {
        self.history.get_or_insert_default()
    }

    fn affinity(&self) -> Option<&Affinity> {
        self.session.as_ref()?.affinity.as_ref()
    }

    fn attempts(&self) -> u32 {
        self.history.as_ref().map_or(0, |history| history.attempts)
    }

    fn attempts_left(&self) -> u32 {
        self.max_attempts.saturating_sub(self.before.saturating_add(self.attempts()))
    }

    /// Where the call goes now.
    pub(crate) fn next(&mut self) -> NextAction {
        match &self.history {
            None => {
                if self.attempts_left() == 0 {
                    return self.stop(NO_ATTEMPTS);
                }
            }
            Some(history) => {
                if history.stopped.is_some() || history.is_final() {
                    return NextAction::End;
                }
                if history.owed.is_some() {
                    if self.attempts_left() == 0 {
                        return self.stop(NO_ATTEMPTS);
                    }
                    if self.deadline.is_some_and(Deadline::is_past) {
                        return self.stop("the deadline of the call has passed");
                    }
                }
            }
        }
        self.select()
    }

    fn may_wait(&self) -> bool {
        self.policy().may_wait()
    }

    pub(crate) fn views(&self, now: Instant) -> SmallVec<[CandidateView; 4]> {
        self.route.candidates.iter().map(|candidate| candidate.view(&self.needs, now)).collect()
    }

    pub(crate) fn exclusions(&self, now: Instant) -> Exclusions {
        let mut exclusions = self.history.as_ref().map(|own| own.exclusions).unwrap_or_default();
        if let Some(affinity) = self.affinity() {
            exclusions.preferred = (0u8..)
                .zip(&self.route.candidates)
                .find(|(_, candidate)| {
                    candidate.rank == 0 && affinity.is_at(&candidate.target, now)
                })
                .map(|(at, _)| at);
        }
        exclusions
    }

    fn select(&mut self) -> NextAction {
        if let Some(selection) = self.undisputed() {
            return NextAction::Ask(selection);
        }
        let now = Instant::now();
        let views = self.views(now);
        let exclusions = self.exclusions(now);
        let plan = select::plan(&views, now, &exclusions);
        for planned in &plan.order {
            let candidate = self.candidate(planned.slot);
            let permit = match planned.probe {
                false => Some(candidate.permit()),
                true => candidate.probe(now),
            };
            if let Some(permit) = permit {
                self.pass_over(&plan, planned.slot, now);
                let selection = self.selection(&views, &plan, &exclusions, planned.slot, permit);
                return self.ask(&views, selection, planned.probe);
            }
        }
        self.exhausted(now, &views, &plan, exclusions)
    }

    /// The first candidate, when nothing is known against any: what a plan would come to, without
    /// the time and the memory that one takes.
    fn undisputed(&self) -> Option<Selection> {
        let Route { candidates, choosy, providers, .. } = &*self.route;
        let plain = self.history.is_none() && self.affinity().is_none() && !choosy;
        (plain && !candidates.iter().any(Candidate::is_degraded)).then(|| Selection {
            candidate: 0,
            permit: Permit { witness: self.witness, ..candidates[0].permit() },
            alternatives: providers - 1,
            beside: 0,
            last: candidates.len() == 1 && !self.may_wait(),
        })
    }

    /// Pays for the attempt.
    fn ask(&mut self, views: &[CandidateView], selection: Selection, probe: bool) -> NextAction {
        let at = selection.candidate;
        if let Some(reason) = self.history.as_ref().and_then(|history| history.owed) {
            if !self.withdraw(reason) {
                self.candidate(at).release(&selection.permit);
                return self.stop("the retry budget is used up");
            }
            self.history().owed = None;
        }
        if probe {
            event::probe(&self.log, &self.candidate(at).target);
        }
        self.report_target(views, at);
        NextAction::Ask(selection)
    }

    fn selection(
        &self,
        views: &[CandidateView],
        plan: &Plan,
        exclusions: &Exclusions,
        candidate: u8,
        permit: Permit,
    ) -> Selection {
        let own = views[usize::from(candidate)].spec;
        let mut others = CandidateSet::default();
        for planned in &plan.order {
            others.add(views[usize::from(planned.slot)].spec);
        }
        others.drop(own);
        let last = !self.may_wait()
            && (0u8..)
                .zip(views)
                .all(|(at, _)| at == candidate || !select::possible(views, at, exclusions));
        let permit = Permit { witness: self.witness, ..permit };
        Selection { candidate, permit, alternatives: others.len(), beside: 0, last }
    }

    /// Nothing is left that is not cooling.
    fn exhausted(
        &mut self,
        now: Instant,
        views: &[CandidateView],
        plan: &Plan,
        mut exclusions: Exclusions,
    ) -> NextAction {
        let policy = self.policy();
        let history = self.history.as_ref();
        let waited = history.map_or(Duration::ZERO, |own| own.waited);
        match policy.when_exhausted {
            WhenExhausted::Fail => NextAction::End,
            WhenExhausted::Wait(max) => {
                if let Some(history) = history {
                    exclusions.excluded.remove(history.resting);
                }
                match select::soonest(views, now, &exclusions, |_| true) {
                    Some((at, rest)) => {
                        // It may be probed before it is back.
                        let back = if rest.probe_from > now { rest.probe_from } else { rest.until };
                        self.wait(at, back - now, max.saturating_sub(waited))
                    }
                    None => NextAction::End,
                }
            }
            WhenExhausted::TrySoonest => {
                let longest = policy.soft_wait.saturating_sub(waited);
                if history.is_some_and(|history| history.insisted) {
                    return NextAction::End;
                }
                let soonest = select::soonest(views, now, &exclusions, |rest| !rest.hinted);
                if let Some((at, rest)) = soonest {
                    event::insisted(&self.log, &self.candidate(at).target, rest.reason);
                    self.history().insisted = true;
                    self.pass_over(plan, at, now);
                    let permit = self.candidate(at).permit();
                    let selection = self.selection(views, plan, &exclusions, at, permit);
                    return self.ask(views, selection, false);
                }
                match select::soonest(views, now, &exclusions, |_| true) {
                    Some((at, rest)) => self.wait(at, rest.until - now, longest),
                    None => NextAction::End,
                }
            }
        }
    }

    fn wait(&mut self, at: u8, wait: Duration, longest: Duration) -> NextAction {
        let time = self.deadline.map_or(Duration::MAX, Deadline::remaining);
        if wait > longest || wait >= time {
            return NextAction::End;
        }
        event::waited(&self.log, &self.candidate(at).target, wait);
        let history = self.history();
        history.waited = history.waited.saturating_add(wait);
        NextAction::Wait(wait)
    }

    /// The wait is over: what rested may be asked once more.
    pub(crate) fn wake(&mut self) {
        if !self.may_wait() {
            return;
        }
        let history = self.history();
        history.exclusions.excluded.remove(history.resting);
        history.again.join(history.resting);
        history.resting = CandidateSet::default();
    }

    /// One more target beside `main`, which has not begun to answer. The request is to be cloned.
    pub(crate) fn hedge(&mut self, main: u8) -> Option<Selection> {
        self.hedged = true;
        let after = self.policy().hedge?;
        if self.attempts_left() < 2 || self.deadline.is_some_and(Deadline::is_past) {
            return None;
        }
        let now = Instant::now();
        let views = self.views(now);
        let mut exclusions = self.exclusions(now);
        // A slow provider is not asked twice.
        let slow = self.candidate(main).spec;
        exclusions.exclude(&views, |view| view.spec == slow);
        let plan = select::plan(&views, now, &exclusions);
        let at = plan.order.iter().find(|planned| !planned.probe)?.slot;
        if !self.withdraw(Reason::Timeout) {
            event::stopped(&self.log, "the retry budget has nothing for a hedge");
            return None;
        }
        event::hedged(&self.log, &self.candidate(at).target, after);
        let permit = self.candidate(at).permit();
        let selection = self.selection(&views, &plan, &exclusions, at, permit);
        Some(Selection { last: false, beside: 1, ..selection })
    }

    /// The answer of another candidate came before that of `loser`.
    pub(crate) fn outrun(&self, loser: u8) {
        event::outrun(&self.log, &self.candidate(loser).target);
    }

    fn withdraw(&mut self, reason: Reason) -> bool {
        let Some(budget) = self.budget() else { return true };
        let Some(taken) = budget.reserve(reason).map(Reservation::spend) else { return false };
        let history = self.history();
        history.withdrawn = Some(history.withdrawn.map_or(taken, |before| before.and(taken)));
        true
    }

    fn stop(&mut self, why: &'static str) -> NextAction {
        event::stopped(&self.log, why);
        self.history().stopped = Some(why);
        NextAction::End
    }

    /// Notes what was passed over on the way to candidate `at`.
    fn pass_over(&mut self, plan: &Plan, at: u8, now: Instant) {
        for (skipped, skip) in plan.skipped.iter().filter(|(skipped, _)| *skipped < at) {
            self.skip(*skipped, skip, now);
        }
    }

    pub(crate) fn skip(&mut self, at: u8, skip: &Skip, now: Instant) {
        if self.history().skip(at, skip, now) {
            event::skipped(&self.log, &self.candidate(at).target, skip.reason());
        }
    }

    /// Reports where the call goes when that is not where it was, or not what was asked for.
    fn report_target(&self, views: &[CandidateView], at: u8) {
        let to = self.candidate(at);
        let last = self.history.as_ref().and_then(|history| history.last.as_ref());
        match last {
            Some(last) => {
                let (from, reason) = (self.candidate(last.candidate), last.failure.reason());
                if from.spec == to.spec && from.rank != to.rank {
                    event::downgraded(&self.log, &from.target, &to.target, reason);
                } else {
                    event::switched(&self.log, &from.target, &to.target, reason);
                }
            }
            None if to.rank > 0 => {
                let asked = self.route.candidates.iter().position(|one| one.spec == to.spec);
                if let Some(asked) = asked {
                    let reason = views[asked].rest.map_or(Reason::Cooling, |rest| rest.reason);
                    let from = &self.route.candidates[asked].target;
                    event::downgraded(&self.log, from, &to.target, reason);
                }
            }
            None => {}
        }
    }

    /// Fits `request` to where it goes; the lease is the attempt's on that target's health.
    ///
    /// # Errors
    ///
    /// When the request can not be made to fit.
    #[inline]
    pub(crate) fn prepare<Req: Call>(
        &self,
        selection: Selection,
        request: &mut Req,
    ) -> Result<Lease, Failure> {
        let Selection { candidate: at, permit, alternatives, .. } = selection;
        let candidate = self.candidate(at);
        let withdrawn = self.history.as_ref().and_then(|history| history.withdrawn);
        // Before anything can go wrong: dropping it releases the probe's permit.
        let lease =
            candidate::lease(&self.route, at, permit, self.log.clone(), self.budget(), withdrawn);
        let context = request.context_mut();
        context.target = Some(candidate.target.clone());
        context.attempts = self.before.saturating_add(self.attempts() + selection.beside);
        if let Some(max) = self.share(selection, context.attempts) {
            context.max_attempts = NonZeroU32::new(max);
        }
        context.alternatives = alternatives;
        if context.budget.is_none() {
            // A success counts here; the layers below put back what they have drawn.
            context.budget = self.route.budget.as_ref().map(RetryBudget::drawing);
        }
        request.adapt(candidate.profile(self.is_foreign(candidate)))?;
        Ok(lease)
    }

    /// Up to which attempt the layers below may go for `selection`, when that is less than for the
    /// whole call. Of two attempts at once neither sees what the other one spends: so one is set
    /// aside for the second as long as there may be one, and the second has no more than that.
    fn share(&self, selection: Selection, attempts: u32) -> Option<u32> {
        if self.max_attempts == u32::MAX {
            return None;
        }
        if selection.beside > 0 {
            return Some(attempts.saturating_add(1));
        }
        let two = self.policy().hedge.is_some() && !self.hedged && self.route.providers > 1;
        (two && !selection.last && self.attempts_left() > 1).then(|| self.max_attempts - 1)
    }

    /// Whether the history was written by somebody else. Without a session it is taken to be the
    /// first selection's.
    fn is_foreign(&self, candidate: &Candidate) -> bool {
        match self.affinity() {
            Some(affinity) => !affinity.reads(&candidate.target),
            None => candidate.spec != 0 || candidate.rank != 0,
        }
    }

    /// Nothing may come after what has happened, not even an answer that is under way.
    pub(crate) fn is_forbidden(&self) -> bool {
        let last = self.history.as_ref().and_then(|history| history.last.as_ref());
        last.is_some_and(|last| last.go == Failover::Forbidden)
    }

    /// Whether the last failure leaves nothing to be sent.
    pub(crate) fn is_final(&self) -> bool {
        self.history.as_ref().is_some_and(|history| history.is_final())
    }

    /// The attempt at `at` answered, or failed; whether it answered.
    pub(crate) fn ended(&mut self, at: u8, outcome: Result<(), Failure>) -> bool {
        let answered = outcome.is_ok();
        match outcome {
            Err(failure) => self.fail(at, failure),
            Ok(()) => {
                if let Some(session) = &self.session {
                    session.answered(&self.candidate(at).target);
                }
            }
        }
        answered
    }

    /// The request could not be made to fit `at`.
    pub(crate) fn unfit(&mut self, at: u8, failure: Failure) {
        let failure = self.with_target(at, failure);
        event::skipped(&self.log, &self.candidate(at).target, failure.reason());
        self.history().unfit(at, failure);
    }

    /// The attempt at `at` failed; its lease knows already.
    pub(crate) fn fail(&mut self, at: u8, failure: Failure) {
        let failure = self.with_target(at, failure);
        let verdict = self.policy().verdict(&failure);
        let candidates = &self.route.candidates;
        self.history.get_or_insert_default().fail(at, failure, &verdict, candidates);
    }

    /// `failure` with its target, when it does not say so itself.
    fn with_target(&self, at: u8, failure: Failure) -> Failure {
        match failure.target() {
            Some(_) => failure,
            None => failure.with_target(self.candidate(at).target.clone()),
        }
    }
}
