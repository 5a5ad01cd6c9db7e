//! One candidate: a model with a credential of a provider, and the books it is written in.

use std::sync::Arc;

use steadfast_core::{
    Failure, Lease, Needs, Outcome, Profile, Reason, RecoveryLog, RetryBudget, Scope, Settle,
    Settled, Target, Token, Withdrawal,
};
use tokio::time::Instant;

use crate::{
    book::{Book, Record},
    chain::TargetSpec,
    event,
    health::Failed,
    policy::Verdict,
    route::Route,
    select::{Lacks, Rest, View},
};

/// One candidate, made once for every request that may go there.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    pub(crate) target: Target,
    /// Which provider of the chain.
    pub(crate) spec: u8,
    /// 0 for the model that was asked for, n for the nth downgrade.
    pub(crate) rank: u8,
    /// Which of the provider's credentials.
    pub(crate) credential: u8,
    /// What a request is fitted to whose history the target wrote itself.
    native: Profile,
    /// What a request is fitted to whose history another one wrote.
    foreign: Profile,
    records: Records,
    pub(crate) book: Arc<Book>,
}

/// The records of a candidate: as many as its target has parts.
#[derive(Clone, Debug)]
struct Records {
    provider: Arc<Record>,
    model: Option<Arc<Record>>,
    credential: Option<Arc<Record>>,
    both: Option<Arc<Record>>,
}

impl Records {
    fn new(target: &Target, book: &Book) -> Self {
        let provider = Target::new(target.provider());
        let model = target.model().map(|model| provider.with_model(model));
        let credential = target.credential().map(|name| provider.with_credential(name));
        let both = (model.is_some() && credential.is_some()).then_some(target);
        Self {
            model: model.map(|key| book.record(&key, Scope::Model)),
            credential: credential.map(|key| book.record(&key, Scope::Credential)),
            both: both.map(|key| book.record(key, Scope::ModelCredential)),
            provider: book.record(&provider, Scope::Provider),
        }
    }

    fn each(&self) -> impl Iterator<Item = &Arc<Record>> {
        [Some(&self.provider), self.model.as_ref(), self.credential.as_ref(), self.both.as_ref()]
            .into_iter()
            .flatten()
    }

    /// The record a failure of `scope` is written in. A part that has no name is the provider's
    /// only one, and then it is the provider that rests.
    fn blamed(&self, scope: Scope, reason: Reason) -> Option<&Arc<Record>> {
        let Self { provider, model, credential, both } = self;
        match scope {
            // Which model is missing is not known, so nothing is known of any other.
            Scope::Model if reason == Reason::ModelNotFound => model.as_ref(),
            Scope::Model => model.as_ref().or(Some(provider)),
            Scope::Credential => credential.as_ref().or(Some(provider)),
            Scope::ModelCredential => {
                both.as_ref().or(model.as_ref()).or(credential.as_ref()).or(Some(provider))
            }
            Scope::Provider => Some(provider),
            _ => None,
        }
    }
}

impl Slot {
    pub(crate) fn new(
        spec: &TargetSpec,
        (index, rank, credential): (u8, u8, u8),
        target: Target,
        book: &Arc<Book>,
    ) -> Self {
        Self {
            native: spec.profile(target.clone(), false),
            foreign: spec.profile(target.clone(), true),
            records: Records::new(&target, book),
            book: book.clone(),
            spec: index,
            rank,
            credential,
            target,
        }
    }

    /// The same, its target counted apart from this one's.
    pub(crate) fn renewed(&self) -> Self {
        let mut renewed = self.clone();
        let target = self.target.renewed();
        renewed.native.target = target.clone();
        renewed.foreign.target = target.clone();
        renewed.target = target;
        renewed
    }

    pub(crate) fn profile(&self, foreign: bool) -> &Profile {
        if foreign { &self.foreign } else { &self.native }
    }

    /// Whether it can do less than everything.
    pub(crate) fn is_choosy(&self) -> bool {
        !self.native.vision || !self.native.tools || self.native.window.is_some()
    }

    /// Whether it may be cooling.
    pub(crate) fn may_cool(&self) -> bool {
        self.records.each().any(|record| record.may_cool())
    }

    pub(crate) fn view(&self, needs: &Needs, now: Instant) -> View {
        let mut rest: Option<Rest> = None;
        for record in self.records.each() {
            if let Some((cooldown, probing)) = self.book.cooling(record, now) {
                let this = Rest {
                    until: cooldown.until,
                    probe_from: cooldown.probe_from,
                    probing,
                    asked: cooldown.asked,
                    reason: cooldown.reason,
                };
                rest = Some(rest.map_or(this, |other| other.later(this)));
            }
        }
        let model = self.records.model.as_ref();
        let yields = model
            .and_then(|record| self.book.cooling(record, now))
            .is_some_and(|(cooldown, _)| cooldown.downgrade);
        View {
            spec: self.spec,
            rank: self.rank,
            lacks: Lacks::of(&self.native, needs),
            window: self.native.window,
            rest,
            yields,
        }
    }

    /// Takes the only place there is for a probe of everything that cools here: its number, or
    /// `None` when somebody else was faster.
    pub(crate) fn claim(&self, now: Instant) -> Option<u64> {
        let mark = self.book.mark();
        let taken = self.records.each().all(|record| self.book.claim(record, now, mark));
        if taken {
            return Some(mark);
        }
        self.release(mark);
        None
    }

    /// Gives the place back.
    pub(crate) fn release(&self, mark: u64) {
        self.records.each().for_each(|record| self.book.release(record, mark));
    }

    /// Books how a call of generation `token` ended.
    fn book(&self, settled: &Settled<'_>) {
        let Settled { token, outcome, log, .. } = settled;
        match outcome {
            Outcome::Success => {
                self.book.succeed(self.records.each(), token.generation, |record| {
                    event::recovered(log, &record.key);
                });
            }
            Outcome::Failure(failure) => self.fail(failure, *token, log),
            _ => {}
        }
        let probe = token.mark >> PLACE;
        if probe != 0 {
            self.release(probe);
        }
    }

    fn fail(&self, failure: &Failure, token: Token, log: &RecoveryLog) {
        let Verdict { scope, blame: Some(blame), .. } = self.book.policy.verdict(failure) else {
            self.rest(failure);
            return;
        };
        let Some(record) = self.records.blamed(scope, blame.reason) else { return };
        let now = Instant::now();
        let message = failure.message();
        let failed = self.book.fail(record, now, token.generation, blame, message);
        let for_a_person = matches!(blame.reason, Reason::Auth | Reason::Billing);
        match failed {
            Failed::Cooled { wait, fresh } => {
                event::cooled(log, &record.key, blame.reason, wait, fresh);
                if for_a_person && fresh {
                    event::alarm(&record.key, failure);
                }
            }
            // With a cooldown of zero every one counts.
            Failed::Counted if for_a_person => event::alarm(&record.key, failure),
            Failed::Counted | Failed::Extended => {}
        }
    }
}

impl Slot {
    /// A breaker below refuses this target and says when it will let a call through: until then
    /// asking is in vain. It is no failure of the target's.
    fn rest(&self, failure: &Failure) {
        let (Reason::CircuitOpen, Some(wait)) = (failure.reason(), failure.retry_after()) else {
            return;
        };
        if let Some(record) = self.records.blamed(Scope::ModelCredential, Reason::CircuitOpen) {
            self.book.rest(record, Instant::now(), wait);
        }
    }
}

/// Bits of a token's mark that say which candidate; those above are the probe's number.
const PLACE: u32 = 8;

impl Settle for Route {
    fn settle(&self, settled: Settled<'_>) {
        let at = settled.token.mark & ((1 << PLACE) - 1);
        if let Some(slot) = usize::try_from(at).ok().and_then(|at| self.slots.get(at)) {
            slot.book(&settled);
        }
    }
}

/// A candidate, and what to put back into the budget if it answers.
#[derive(Debug)]
struct Ticket {
    route: Arc<Route>,
    budget: RetryBudget,
    withdrawal: Withdrawal,
}

impl Settle for Ticket {
    fn settle(&self, settled: Settled<'_>) {
        if let Outcome::Success = settled.outcome {
            self.budget.refund(self.withdrawal);
        }
        self.route.settle(settled);
    }
}

/// A lease on candidate `at` of `route` for a call whose failovers took `withdrawal` out of
/// `budget`.
pub(crate) fn lease(
    route: &Arc<Route>,
    at: u8,
    mark: u64,
    log: &RecoveryLog,
    budget: Option<&RetryBudget>,
    withdrawal: Option<Withdrawal>,
) -> Lease {
    // After a probe's claim: taking over a lost probe's place moves the generation on.
    let generation = route.slot(at).book.admit();
    let token = Token { generation, mark: mark << PLACE | u64::from(at) };
    let settle: Arc<dyn Settle> = match (budget, withdrawal) {
        (Some(budget), withdrawal) if withdrawal.is_some() || !budget.is_full() => {
            let withdrawal = withdrawal.unwrap_or_default();
            Arc::new(Ticket { route: route.clone(), budget: budget.clone(), withdrawal })
        }
        // A full budget takes nothing back: nothing to remember.
        _ => route.clone(),
    };
    Lease::new(settle, token, log.clone())
}
