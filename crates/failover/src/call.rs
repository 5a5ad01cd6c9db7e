//! One call's way through its candidates: what was tried, what is left, what comes next.

use std::{sync::Arc, time::Duration};

use smallvec::SmallVec;
use steadfast_core::{
    CallContext, Deadline, Failover, Failure, Needs, Permit, Preference, Priority, Profile, Reason,
    RecoveryLog, Reservation, RetryBudget, Target, Waiting, Witness, time::later,
};
use tokio::time::Instant;

use crate::{
    affinity::{Affinity, AffinityLookup, Session},
    candidate::{Candidate, Probing},
    event,
    hedge::Hedges,
    history::{History, Stopped},
    policy::{FailoverPolicy, Patience, WhenExhausted},
    prepare::Selection,
    route::Route,
    select::{
        self, CandidateSet, CandidateView, Exclusions, Plan, PlannedCandidate, ProviderState, Skip,
    },
};

/// One call's way through its candidates.
#[derive(Debug)]
pub(crate) struct CallState {
    pub(crate) route: Arc<Route>,
    needs: Needs,
    pub(crate) log: RecoveryLog,
    /// The call's own; what the layer has goes before it.
    budget: Option<RetryBudget>,
    /// What its request holds of memory, in bytes.
    pub(crate) held: u64,
    pub(crate) deadline: Option<Deadline>,
    /// How long the caller lets it wait, where that is less than the policy does.
    patience: Option<Duration>,
    /// Attempts made before the call came here.
    pub(crate) before: u32,
    /// The most attempts it may have in all.
    pub(crate) max_attempts: u32,
    pub(crate) witness: Witness,
    priority: Priority,
    pub(crate) session: Option<Session>,
    preference: Option<Arc<Preference>>,
    /// Set while the attempt under way finds out if its target is back.
    pub(crate) probing: Option<Probing>,
    /// No other target can serve the call.
    pub(crate) alone: bool,
    /// Its answer comes whole, so that nothing can be concluded from its silence.
    pub(crate) is_whole: bool,
    /// Candidates that cooled before the call asked anybody.
    cooled_before: CandidateSet,
    /// What is asked beside what has no content in time.
    pub(crate) hedges: Hedges,
    /// Made when the first thing goes wrong.
    pub(crate) history: Option<Box<History>>,
}

/// What to do next.
#[derive(Debug)]
pub(crate) enum NextAction {
    Ask(Selection),
    Wait(Duration, Option<Waiting>),
    End,
}

impl CallState {
    #[inline]
    pub(crate) fn new(
        route: Arc<Route>,
        context: &CallContext,
        (witness, is_whole): (Witness, bool),
        needs: Needs,
        session: Option<Session>,
    ) -> Self {
        Self {
            needs,
            session,
            preference: context.preference.clone(),
            log: context.log.clone(),
            priority: context.priority,
            budget: context.budget.clone(),
            held: context.held_bytes,
            deadline: context.deadline,
            patience: context.patience,
            before: context.attempts,
            max_attempts: context.max_attempts.map_or(u32::MAX, |max| max.get()),
            witness,
            probing: None,
            alone: false,
            is_whole,
            cooled_before: CandidateSet::default(),
            hedges: Hedges::default(),
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
    pub(crate) fn budget(&self) -> Option<&RetryBudget> {
        self.route.budget(self.budget.as_ref())
    }

    pub(crate) fn history(&mut self) -> &mut History {
        self.history.get_or_insert_default()
    }

    pub(crate) fn affinity(&self) -> Option<&Affinity> {
        self.session.as_ref()?.affinity.as_ref()
    }

    /// Asks other processes where its conversation is, where that is theirs to know and matters to it.
    pub(crate) fn look_up(&self) -> Option<AffinityLookup> {
        let preference = self.preference.as_deref();
        let has_target = matches!(preference, Some(Preference::Only(_) | Preference::For(_)));
        let is_open = self.route.candidates.len() > 1 && !has_target;
        self.session.as_ref().filter(|_| is_open)?.look_up()
    }

    /// Another process knows where its conversation is.
    pub(crate) fn found(&mut self, affinity: Affinity) {
        if let Some(session) = &mut self.session {
            session.found(affinity);
        }
    }

    pub(crate) fn attempts(&self) -> u32 {
        self.history.as_ref().map_or(0, |history| history.attempts)
    }

    pub(crate) fn attempts_left(&self) -> u32 {
        self.max_attempts.saturating_sub(self.before.saturating_add(self.attempts()))
    }

    /// How often the call has asked candidate `at`.
    pub(crate) fn repeats(&self, at: u8) -> u32 {
        self.history.as_ref().map_or(0, |history| history.repeats(at))
    }

    /// How long the call may wait between its attempts in all.
    pub(crate) fn patience(&self, has_spare: bool) -> Duration {
        let Patience { with_spare, alone } = self.policy().patience;
        let most = if has_spare { with_spare } else { alone };
        self.patience.map_or(most, |own| own.min(most))
    }

    /// How long the call has waited between its attempts.
    pub(crate) fn waited(&self) -> Duration {
        self.history.as_ref().map_or(Duration::ZERO, |history| history.waited)
    }

    /// Where the call goes now.
    pub(crate) fn next(&mut self) -> NextAction {
        if let Some(history) = &self.history
            && (history.stopped.is_some() || history.is_final() || self.has_gone_round(history))
        {
            return NextAction::End;
        }
        if self.attempts_left() == 0 {
            return self.stop(Stopped::Attempts);
        }
        if self.attempts() > 0 && self.deadline.is_some_and(Deadline::is_past) {
            return self.stop(Stopped::Deadline);
        }
        self.select()
    }

    /// Whether the call has gone round its candidates as often as it may. The first round is no further
    /// round: each candidate is asked once, however many there are.
    fn has_gone_round(&self, history: &History) -> bool {
        history.rounds > 0 && history.attempts >= self.policy().attempts
    }

    pub(crate) fn views(&self, now: Instant) -> SmallVec<[CandidateView; 4]> {
        let view = |candidate: &Candidate| {
            let mut view = candidate.view(&self.needs, self.witness, now);
            view.mostly_fails |= self.avoids(&candidate.target);
            self.view_provider(candidate.target.provider(), &mut view, now);
            if self.demands(&candidate.target) {
                view.demand();
            }
            view
        };
        let mut views: SmallVec<[CandidateView; 4]> =
            self.route.candidates.iter().map(view).collect();
        self.route.share(&mut views, now);
        views
    }

    /// Adds what is known of its provider across all callers.
    fn view_provider(&self, provider: &str, view: &mut CandidateView, now: Instant) {
        let degraded = self.route.rules.degraded().filter(|degraded| degraded.contains(provider));
        if let Some(degraded) = degraded {
            view.health = match self.policy().skip_degraded {
                true => ProviderState::Avoided,
                false => ProviderState::Degraded,
            };
            view.probe_due = degraded.is_probe_due(provider, now);
        }
    }

    /// Whether the call has seen enough of `target` to ask the others before it.
    fn avoids(&self, target: &Target) -> bool {
        let is_one = |broken: &Target| {
            broken.provider() == target.provider() && broken.model() == target.model()
        };
        match self.preference.as_deref() {
            Some(Preference::Against(broken)) => is_one(broken),
            Some(Preference::Except(failed)) => failed.iter().any(is_one),
            _ => false,
        }
    }

    /// Whether `target` is what the call may ask and nothing else.
    fn demands(&self, target: &Target) -> bool {
        matches!(self.preference.as_deref(), Some(Preference::Only(chosen)) if chosen.covers(target))
    }

    /// Whether the call may ask `target`, as far as its preference goes.
    fn may_ask(&self, target: &Target) -> bool {
        match self.preference.as_deref() {
            Some(Preference::Only(_)) => self.demands(target),
            Some(Preference::Except(failed)) => !failed.contains(target),
            _ => true,
        }
    }

    pub(crate) fn exclusions(&self, now: Instant) -> Exclusions {
        let history = self.history.as_ref();
        let mut exclusions = history.map(|own| own.exclusions.clone()).unwrap_or_default();
        exclusions.cooled_before = self.cooled_before;
        exclusions.strict = self.policy().when_exhausted != WhenExhausted::TrySoonest;
        let find = |is_it: &dyn Fn(&Candidate) -> bool| {
            (0u8..).zip(&self.route.candidates).find(|(_, it)| is_it(it)).map(|(at, _)| at)
        };
        exclusions.preferred = match (self.preference.as_deref(), self.affinity()) {
            // Another model of it has what it keeps, too.
            (Some(Preference::For(target)), _) => find(&|it| it.target == *target)
                .or_else(|| find(&|it| is_same_account(&it.target, target))),
            (_, Some(affinity)) => find(&|it| it.rank == 0 && affinity.is_at(&it.target, now)),
            _ => None,
        };
        for (at, candidate) in (0u8..).zip(&self.route.candidates) {
            if !self.may_ask(&candidate.target) {
                exclusions.rule_out(at);
            }
        }
        exclusions
    }

    /// What the call would be fitted to if it went on now, and whether that target is well.
    pub(crate) fn first(&self) -> (&Profile, bool) {
        let now = Instant::now();
        let plan = select::plan(&self.views(now), now, &self.exclusions(now));
        let planned = plan.order.first();
        let candidate = self.candidate(planned.map_or(0, |planned| planned.slot));
        let is_well = planned.is_some_and(|planned| !planned.cools() && !planned.degraded);
        (candidate.profile(self.is_foreign(candidate)), is_well)
    }

    fn select(&mut self) -> NextAction {
        if let Some(selection) = self.undisputed() {
            return NextAction::Ask(selection);
        }
        let now = Instant::now();
        let views = self.views(now);
        if self.history.is_none() {
            (0u8..).zip(&views).filter(|(_, view)| view.rest.is_some()).for_each(|(slot, _)| {
                self.cooled_before.add(slot);
            });
        }
        let mut exclusions = self.exclusions(now);
        let plan = select::plan(&views, now, &exclusions);
        let mut unpaid = false;
        for planned in &plan.order {
            let Some(cost) = self.reserve(planned.slot) else {
                exclusions.rule_out(planned.slot);
                unpaid = true;
                continue;
            };
            let probes = planned.probes_provider;
            if probes && !self.acquire_provider_probe(planned, now) {
                // Another call was faster, and this one goes where it would have gone without.
                return self.select();
            }
            let Some(permit) = self.acquire(planned, now) else { continue };
            self.spend(cost);
            self.pass_over(&plan, planned.slot, now);
            self.report_target(&views, planned);
            let selection = self.selection(&views, &exclusions, planned.slot, permit);
            return NextAction::Ask(selection.probing_provider(probes));
        }
        match self.next_round(&views, now, &exclusions) {
            NextAction::End if unpaid => self.stop(Stopped::Budget),
            action => action,
        }
    }

    /// The first candidate, when nothing is known against any: what a plan would come to, without
    /// the time and the memory that one takes.
    fn undisputed(&self) -> Option<Selection> {
        let Route { candidates, choosy, .. } = &*self.route;
        let steered = self.affinity().is_some() || self.preference.is_some();
        let degraded = self.route.rules.degraded().is_some();
        let plain =
            self.history.is_none() && !steered && !choosy && !degraded && !self.route.is_shared();
        (plain && !candidates.iter().any(Candidate::is_degraded))
            .then(|| Selection::first(&self.route, candidates[0].permit(self.witness)))
    }

    /// The permit of an attempt there; `None` when it would be a probe, and another call is faster.
    pub(crate) fn acquire(&self, planned: &PlannedCandidate, now: Instant) -> Option<Permit> {
        let candidate = self.candidate(planned.slot);
        match planned.probe {
            false => Some(candidate.permit(self.witness)),
            true => candidate.probe(self.witness, now),
        }
    }

    /// Whether this call is the one that sees whether a provider is still degraded.
    fn acquire_provider_probe(&self, planned: &PlannedCandidate, now: Instant) -> bool {
        let provider = self.candidate(planned.slot).target.provider();
        self.route.rules.degraded().is_some_and(|degraded| degraded.acquire_probe(provider, now))
    }

    /// What asking candidate `at` costs: nothing, unless the call has asked it often before. `None` when
    /// the budget has too little.
    pub(crate) fn reserve(&self, at: u8) -> Option<Option<Reservation>> {
        let (Some(history), Some(budget)) = (&self.history, self.budget()) else {
            return Some(None);
        };
        match (history.repeats(at), &history.last) {
            (0, _) | (_, None) => Some(None),
            (repeats, Some(last)) => budget.reserve_retry(last.failure.reason(), repeats).map(Some),
        }
    }

    pub(crate) fn spend(&mut self, cost: Option<Reservation>) {
        if let Some(cost) = cost.map(Reservation::spend) {
            let history = self.history();
            history.withdrawn = Some(history.withdrawn.map_or(cost, |before| before.and(cost)));
        }
    }

    pub(crate) fn stop(&mut self, why: Stopped) -> NextAction {
        event::stopped(&self.log, why.as_str());
        self.history().stopped = Some(why);
        NextAction::End
    }

    /// Notes what was passed over on the way to candidate `at`.
    fn pass_over(&mut self, plan: &Plan, at: u8, now: Instant) {
        for slot in 0..at {
            if let Some(skip) = plan.skip(slot) {
                self.skip(slot, &skip, now);
            }
        }
    }

    pub(crate) fn skip(&mut self, at: u8, skip: &Skip, now: Instant) {
        if self.history().skip(at, skip, now) {
            match skip {
                Skip::Degraded => event::avoided(&self.log, &self.candidate(at).target),
                _ => event::skipped(&self.log, &self.candidate(at).target, skip.reason()),
            }
        }
    }

    /// Reports where the call goes when that is not where it was, or not what was asked for.
    pub(crate) fn report_target(&self, views: &[CandidateView], planned: &PlannedCandidate) {
        let to = self.candidate(planned.slot);
        if planned.probe || planned.probes_provider {
            event::probe(&self.log, &to.target);
        }
        if let Some(rest) = planned.insists {
            event::insisted(&self.log, &to.target, rest.reason);
        }
        let last = self.history.as_ref().and_then(|history| history.last.as_ref());
        match last {
            // The same one again, after a pause.
            Some(last) if last.candidate == planned.slot => {}
            Some(last) => {
                let (from, reason) = (self.candidate(last.candidate), last.failure.reason());
                if from.spec == to.spec && from.rank < to.rank {
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
            None => {
                // Another model answers for want of capacity, though it is not this call that met it.
                let from = (0..planned.slot).find(|at| self.lacks_capacity(*at, views));
                if let Some(from) = from.map(|at| &self.candidate(at).target) {
                    event::notice(&self.log, from, &to.target, Reason::Overloaded);
                }
            }
        }
    }

    /// Whether candidate `at` is passed over because it is overloaded.
    fn lacks_capacity(&self, at: u8, views: &[CandidateView]) -> bool {
        let view = &views[usize::from(at)];
        let reason = match view.rest {
            Some(rest) => Some(rest.reason),
            None if view.mostly_fails || view.health != ProviderState::Well => {
                self.candidate(at).last_reason()
            }
            None => None,
        };
        reason == Some(Reason::Overloaded)
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

    /// The attempt at `at` answered, or failed; whether it answered. `beside` it others are under way.
    pub(crate) fn ended(&mut self, at: u8, outcome: Result<(), Failure>, beside: bool) -> bool {
        let answered = outcome.is_ok();
        self.hedges.ended(at);
        match outcome {
            // A cap that has no room for two at once says nothing against the one that it had room for.
            Err(failure) if beside && failure.reason() == Reason::SpendCap => {
                self.unpaid(at, failure);
            }
            Err(failure) => self.fail(at, failure),
            Ok(()) => {
                if let Some(session) = &self.session {
                    let target = &self.candidate(at).target;
                    session.answered(target, self.is_usual(at), self.route.is_as_ever(at));
                }
            }
        }
        answered
    }

    /// Whether a conversation of which nothing is known goes to candidate `at`, as long as nothing fails.
    fn is_usual(&self, at: u8) -> bool {
        self.history.is_none() && (at == 0 || self.route.is_shared())
    }

    /// There was no means for the attempt at `at`, beside others.
    fn unpaid(&mut self, at: u8, failure: Failure) {
        let failure = self.with_target(at, failure);
        event::stopped(&self.log, "a spend cap has no room for one more attempt at once");
        self.hedges.ended_for_good();
        self.history().unpaid(at, &failure);
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
        // Nobody waits for a background call, so it does not add to the load.
        verdict.again &=
            self.priority != Priority::Background || failure.reason() != Reason::Overloaded;
        let candidates = &self.route.candidates;
        let history = self.history.get_or_insert_default();
        history.fail(at, failure, &verdict, hold, candidates);
    }

    /// Until when the call leaves alone what has failed it: as long as it was asked to, or until its next
    /// turn. A provider that has answered somebody lately is not believed when it asks for a wait that is
    /// longer than calls take.
    fn hold(&self, at: u8, failure: &Failure, now: Instant) -> Option<Instant> {
        let wait = failure.retry_after().filter(|wait| !wait.is_zero())?;
        let doubtful = wait > self.policy().patience.alone && !failure.reason().is_refusal();
        let believed = !doubtful || !self.candidate(at).has_answered_lately(now);
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

/// Whether both are one account at one provider, be it for other models.
pub(crate) fn is_same_account(one: &Target, other: &Target) -> bool {
    one.provider() == other.provider() && one.credential() == other.credential()
}
