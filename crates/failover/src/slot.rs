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
    /// The provider's, which is the first, and those of the other parts.
    all: Box<[Arc<Record>]>,
    /// Places in `all`.
    model: Option<u8>,
    credential: Option<u8>,
    both: Option<u8>,
}

impl Records {
    fn new(target: &Target, book: &Book) -> Self {
        let provider = Target::new(target.provider());
        let model = target.model().map(|model| provider.with_model(model));
        let credential = target.credential().map(|name| provider.with_credential(name));
        let both = (model.is_some() && credential.is_some()).then(|| target.clone());
        let mut all = vec![book.record(&provider, Scope::Provider)];
        let mut add = |key: Option<Target>, scope| {
            let key = key?;
            all.push(book.record(&key, scope));
            u8::try_from(all.len() - 1).ok()
        };
        let model = add(model, Scope::Model);
        let credential = add(credential, Scope::Credential);
        let both = add(both, Scope::ModelCredential);
        Self { all: all.into(), model, credential, both }
    }

    #[inline]
    fn each(&self) -> impl Iterator<Item = &Arc<Record>> {
        self.all.iter()
    }

    fn model(&self) -> Option<&Arc<Record>> {
        self.model.map(|at| &self.all[usize::from(at)])
    }

    /// The record a failure of `scope` is written in. A part that has no name is the provider's
    /// only one, and then it is the provider that rests.
    fn blamed(&self, scope: Scope, reason: Reason) -> Option<&Arc<Record>> {
        let at = match scope {
            // Which model is missing is not known, so nothing is known of any other.
            Scope::Model if reason == Reason::ModelNotFound => self.model?,
            Scope::Model => self.model.unwrap_or(0),
            Scope::Credential => self.credential.unwrap_or(0),
            Scope::ModelCredential => self.both.or(self.model).or(self.credential).unwrap_or(0),
            Scope::Provider => 0,
            _ => return None,
        };
        Some(&self.all[usize::from(at)])
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
        let model = self.records.model();
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

    /// Books that a call admitted under `generation` was answered whole.
    #[inline]
    pub(crate) fn succeeded(&self, generation: u64, log: &RecoveryLog) {
        self.book.succeed(self.records.each(), generation, |record| {
            event::recovered(log, &record.key);
        });
    }

    /// Books how a call of generation `token` ended.
    fn book(&self, settled: &Settled<'_>) {
        let Settled { token, outcome, log, .. } = settled;
        match outcome {
            Outcome::Success => self.succeeded(token.generation, log),
            Outcome::Failure(failure) => self.fail(failure, *token, log),
            _ => {}
        }
        let probe = token.mark >> PLACE;
        if probe != 0 {
            self.release(probe);
        }
    }

    /// Books that a call which was no probe has failed.
    pub(crate) fn failed(&self, failure: &Failure, generation: u64, log: &RecoveryLog) {
        self.fail(failure, Token { generation, mark: 0 }, log);
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

/// What an answer puts back into `budget` after failovers that took `withdrawal` out of it: a full
/// one takes nothing back.
pub(crate) fn refund(
    budget: Option<&RetryBudget>,
    withdrawal: Option<Withdrawal>,
) -> Option<(RetryBudget, Withdrawal)> {
    let budget = budget.filter(|budget| withdrawal.is_some() || !budget.is_full())?;
    Some((budget.clone(), withdrawal.unwrap_or_default()))
}

/// A lease on candidate `at` of `route` for a call that was admitted under `generation`, which is
/// the probe `mark` if that is not 0.
pub(crate) fn lease(
    route: Arc<Route>,
    at: u8,
    (generation, mark): (u64, u64),
    log: RecoveryLog,
    refund: Option<(RetryBudget, Withdrawal)>,
) -> Lease {
    let token = Token { generation, mark: mark << PLACE | u64::from(at) };
    let settle: Arc<dyn Settle> = match refund {
        Some((budget, withdrawal)) => Arc::new(Ticket { route, budget, withdrawal }),
        None => route,
    };
    Lease::new(settle, token, log)
}
