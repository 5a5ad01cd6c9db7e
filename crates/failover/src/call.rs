//! One call's way through its candidates: what was tried, what is left, what comes next.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use smallvec::SmallVec;
use steadfast_core::{
    Call, CallContext, Deadline, Failover, Failure, Lease, Needs, Permit, PermitKind, Reason,
    RecoveryLog, Reservation, RetryBudget, Routed, Witness, time::later,
};
use tokio::time::Instant;

use crate::{
    affinity::{Affinity, Session},
    candidate::{self, Candidate},
    event,
    history::History,
    policy::{FailoverPolicy, WhenExhausted},
    route::Route,
    select::{self, CandidateView, Exclusions, Plan, PlannedCandidate, Skip},
};

/// The longest wait for a target that cools for a reason of ours: then it is asked all the same. As long as
/// a retry waits at most.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// A target that has answered within this time is not believed when it asks for a wait that is longer
/// than calls take: twice the usual rate window.
const BELIEF: Duration = Duration::from_secs(120);

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
    witness: Witness,
    session: Option<Session>,
    /// The attempt under way finds out if its target is back.
    probing: bool,
    /// No other target can serve the call.
    alone: bool,
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
        witness: Witness,
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
            witness,
            probing: false,
            alone: false,
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
        if let Some(history) = &self.history
            && (history.stopped.is_some() || history.is_final())
        {
            return NextAction::End;
        }
        if self.attempts_left() == 0 {
            return self.stop(NO_ATTEMPTS);
        }
        if self.attempts() > 0 && self.deadline.is_some_and(Deadline::is_past) {
            return self.stop("the deadline of the call has passed");
        }
        self.select()
    }

    pub(crate) fn views(&self, now: Instant) -> SmallVec<[CandidateView; 4]> {
        self.route.candidates.iter().map(|candidate| candidate.view(&self.needs, self.witness, now)).collect()
    }

    pub(crate) fn exclusions(&self, now: Instant) -> Exclusions {
        let history = self.history.as_ref();
        let mut exclusions = history.map(|own| own.exclusions.clone()).unwrap_or_default();
        exclusions.strict = self.policy().when_exhausted != WhenExhausted::TrySoonest;
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
                false => Some(candidate.permit(self.witness)),
                true => candidate.probe(self.witness, now),
            };
            if let Some(permit) = permit {
                self.pass_over(&plan, planned.slot, now);
                let selection = self.selection(&views, &exclusions, planned.slot, permit);
                return self.ask(&views, selection, planned);
            }
        }
        self.exhausted(now, &views, &plan, &exclusions)
    }

    /// The first candidate, when nothing is known against any: what a plan would come to, without
    /// the time and the memory that one takes.
    fn undisputed(&self) -> Option<Selection> {
        let Route { candidates, choosy, spares, .. } = &*self.route;
        let plain = self.history.is_none() && self.affinity().is_none() && !choosy;
        (plain && !candidates.iter().any(Candidate::is_degraded)).then(|| Selection {
            candidate: 0,
            permit: candidates[0].permit(self.witness),
            alternatives: *spares,
            beside: 0,
            last: candidates.len() == 1 && !self.policy().may_wait(),
        })
    }

    /// Pays for the attempt, if it has to be paid for.
    fn ask(
        &mut self,
        views: &[CandidateView],
        selection: Selection,
        planned: &PlannedCandidate,
    ) -> NextAction {
        let at = selection.candidate;
        if !self.pay(at) {
            self.candidate(at).release(&selection.permit);
            return self.stop("the retry budget is used up");
        }
        if planned.probe {
            event::probe(&self.log, &self.candidate(at).target);
        }
        if let Some(rest) = planned.insists {
            event::insisted(&self.log, &self.candidate(at).target, rest.reason);
        }
        self.report_target(views, at);
        NextAction::Ask(selection)
    }

    /// Pays for asking a target again, where it has been asked often before.
    fn pay(&mut self, at: u8) -> bool {
        let Some(history) = &self.history else { return true };
        let repeats = history.repeats(at);
        let reason = history.last.as_ref().map_or(Reason::Unknown, |last| last.failure.reason());
        let Some(budget) = self.budget() else { return true };
        let Some(cost) = budget.reserve_retry(reason, repeats) else { return false };
        self.withdrawn(cost);
        true
    }

    fn withdrawn(&mut self, cost: Reservation) {
        let cost = cost.spend();
        let history = self.history();
        history.withdrawn = Some(history.withdrawn.map_or(cost, |before| before.and(cost)));
    }

    fn selection(
        &self,
        views: &[CandidateView],
        exclusions: &Exclusions,
        candidate: u8,
        permit: Permit,
    ) -> Selection {
        let others = (0u8..).zip(views).filter(|(at, view)| {
            let refuses = view.rest.is_some_and(|rest| rest.refuses);
            let stands_in = view.rank == 0 || exclusions.downgrade.has(view.spec);
            *at != candidate && stands_in && !refuses && select::possible(views, *at, exclusions)
        });
        let alternatives = u32::try_from(others.count()).unwrap_or(u32::MAX);
        let last = !self.policy().may_wait()
            && (0u8..)
                .zip(views)
                .all(|(at, _)| at == candidate || !select::possible(views, at, exclusions));
        Selection { candidate, permit, alternatives, beside: 0, last }
    }

    /// Nothing is left in this round.
    fn exhausted(
        &mut self,
        now: Instant,
        views: &[CandidateView],
        plan: &Plan,
        exclusions: &Exclusions,
    ) -> NextAction {
        let policy = self.policy();
        let waited = self.history.as_ref().map_or(Duration::ZERO, |own| own.waited);
        match policy.when_exhausted {
            WhenExhausted::Fail => NextAction::End,
            WhenExhausted::Wait(max) => {
                let mut next = exclusions.clone();
                next.next_round();
                match select::soonest(views, now, &next) {
                    Some((at, rest)) => {
                        // It may be probed before it is back.
                        let back = if rest.probe_from > now { rest.probe_from } else { rest.until };
                        self.wait(at, back.saturating_duration_since(now), max.saturating_sub(waited))
                    }
                    None => NextAction::End,
                }
            }
            WhenExhausted::TrySoonest => self.next_round(now, views, plan, exclusions, waited),
        }
    }

    /// Goes round the candidates once more, after a pause.
    fn next_round(
        &mut self,
        now: Instant,
        views: &[CandidateView],
        plan: &Plan,
        exclusions: &Exclusions,
        waited: Duration,
    ) -> NextAction {
        let policy = self.policy();
        let held = |slot: u8| {
            plan.skipped.iter().find_map(|(skipped, skip)| match skip {
                Skip::Wait(until) if *skipped == slot => Some(*until),
                _ => exclusions.waits.iter().find(|(at, _)| *at == slot).map(|(_, until)| *until),
            })
        };
        // Those that may be asked again, and when each is free.
        let mut free: Option<(u8, Instant, bool)> = None;
        for (slot, view) in (0u8..).zip(views) {
            let refuses = view.rest.is_some_and(|rest| rest.refuses);
            let stands_in = view.rank == 0 || exclusions.downgrade.has(view.spec);
            if refuses || !stands_in || !select::possible(views, slot, exclusions) {
                continue;
            }
            let hold = held(slot).filter(|until| *until > now);
            let alone = self.route.candidates.len() == 1;
            let rest = view.rest.filter(|_| !alone).map(|rest| rest.until);
            let at = hold.max(rest).unwrap_or(now).max(now);
            if free.is_none_or(|(_, soonest, _)| at < soonest) {
                free = Some((slot, at, hold.is_some()));
            }
        }
        let Some((slot, at, asked_to)) = free else { return NextAction::End };
        if self.attempts() >= policy.attempts {
            return NextAction::End;
        }
        let several = self.route.providers > 1 && !asked_to;
        let patience = if several { policy.patience.with_spare } else { policy.patience.alone };
        // A rest is no reason to wait longer than a provider takes to recover.
        let most = if asked_to { policy.patience.alone } else { LONGEST_PAUSE };
        let rounds = self.history.as_ref().map_or(0, |own| own.rounds);
        let last = self.history.as_ref().map_or(Duration::ZERO, |own| own.pause);
        let pause = self.route.registry().pause(rounds, last);
        let wait = pause.max(at.saturating_duration_since(now).min(most));
        let history = self.history();
        (history.rounds, history.pause) = (rounds + 1, pause);
        self.wait(slot, wait, patience.saturating_sub(waited))
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

    /// The wait is over: the next round begins.
    pub(crate) fn wake(&mut self) {
        self.history().exclusions.next_round();
    }

    /// One more target beside `main`, which has not begun to answer. The request is to be cloned.
    pub(crate) fn hedge(&mut self, main: u8) -> Option<Selection> {
        self.hedged = true;
        let after = self.hedge_after()?;
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
        // To ask another one beside a probe is to go on to it.
        if !self.probing {
            let cost = self.budget().map(|budget| budget.reserve(Reason::Timeout));
            match cost {
                Some(None) => {
                    event::stopped(&self.log, "the retry budget has nothing for a hedge");
                    return None;
                }
                Some(Some(cost)) => self.withdrawn(cost),
                None => {}
            }
        }
        event::hedged(&self.log, &self.candidate(at).target, after);
        let permit = self.candidate(at).permit(self.witness);
        let selection = self.selection(&views, &exclusions, at, permit);
        Some(Selection { last: false, beside: 1, ..selection })
    }

    /// The answer of another candidate came before that of `loser`.
    pub(crate) fn outrun(&self, loser: u8) {
        event::outrun(&self.log, &self.candidate(loser).target);
    }

    /// After how long without content another target is asked beside the one under way.
    pub(crate) fn hedge_after(&self) -> Option<Duration> {
        let policy = self.policy();
        let probe = policy.probe_hedge.filter(|_| self.probing && !self.alone);
        match (policy.hedge, probe) {
            (Some(usual), Some(probe)) => Some(usual.min(probe)),
            (usual, probe) => usual.or(probe),
        }
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
        &mut self,
        selection: Selection,
        request: &mut Req,
    ) -> Result<Lease, Failure> {
        let Selection { candidate: at, permit, alternatives, .. } = selection;
        if selection.beside == 0 {
            self.probing = permit.kind == PermitKind::Probe;
            self.alone = alternatives == 0;
        }
        let patience = self.policy().patience;
        let candidate = self.candidate(at);
        let withdrawn = self.history.as_ref().and_then(|history| history.withdrawn);
        // Before anything can go wrong: dropping it releases the probe's permit.
        let lease =
            candidate::lease(&self.route, permit, self.log.clone(), self.budget(), withdrawn);
        let context = request.context_mut();
        context.target = Some(candidate.target.clone());
        context.attempts = self.before.saturating_add(self.attempts() + selection.beside);
        if let Some(max) = self.share(selection, context.attempts) {
            context.max_attempts = NonZeroU32::new(max);
        }
        context.alternatives = alternatives;
        context.witness = permit.witness;
        let history = self.history.as_ref();
        let waited = history.map_or(Duration::ZERO, |own| own.waited);
        let patience = if alternatives > 0 { patience.with_spare } else { patience.alone };
        context.patience = Some(patience.saturating_sub(waited));
        let mut routed = Routed::new(self.route.clone(), permit);
        routed.repeats = history.map_or(0, |own| own.repeats(at));
        context.routed = Some(routed);
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
        let two = self.hedge_after().is_some() && !self.hedged && self.route.providers > 1;
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
        let now = Instant::now();
        let mut verdict = self.policy().verdict(&failure);
        let hold = self.hold(at, &failure, now);
        // It asks for a longer wait than a call has, and nothing says that it does not mean it.
        verdict.again &= hold.is_none_or(|hold| hold - now <= self.policy().patience.alone);
        let candidates = &self.route.candidates;
        let history = self.history.get_or_insert_default();
        history.fail(at, failure, &verdict, hold, candidates);
    }

    /// Until when the call leaves alone what has failed it: as long as it was asked to, or until its next
    /// turn. A wait that is longer than calls take is not believed of a target that has answered
    /// somebody lately.
    fn hold(&self, at: u8, failure: &Failure, now: Instant) -> Option<Instant> {
        let wait = failure.retry_after().filter(|wait| !wait.is_zero())?;
        let long = wait > self.policy().patience.alone;
        let believed = !long || !self.candidate(at).has_answered(BELIEF, now);
        believed.then(|| later(now, wait))
    }

    /// `failure` with its target, when it does not say so itself.
    fn with_target(&self, at: u8, failure: Failure) -> Failure {
        match failure.target() {
            Some(_) => failure,
            None => failure.with_target(self.candidate(at).target.clone()),
        }
    }
}
