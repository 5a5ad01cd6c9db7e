//! What calls say of the candidates they went to: by their first content, their failed attempts and their
//! ends.

use std::{ptr, sync::Arc, time::Duration};

use steadfast_core::{
    Failure, Lease, LeaseEnd, Observer, Outcome, Permit, PermitKind, Reason, RecoveryLog,
    RetryBudget, Scope, Withdrawal, circuit::OUT_OF_TURN,
};
use tokio::time::Instant;

use crate::{
    candidate::{self, Candidate},
    event,
    health::{Failed, FailedCall, Report},
    registry::Record,
    route::Route,
    verdict::FailureVerdict,
};

impl Candidate {
    /// Notes that a call has got its first content.
    fn content(&self, permit: &Permit, at: Instant, log: &RecoveryLog) {
        let (since, narrowest) = (self.provider().since_epoch(at), self.narrowest());
        for (record, order) in self.positions(permit) {
            record.note_content(order, (at, since), ptr::eq(record, narrowest));
        }
        if self.is_degraded() {
            for (record, permit) in self.degraded(permit) {
                self.recover(record, at, &permit, log);
            }
        }
    }

    #[cold]
    fn recover(&self, record: &Record, at: Instant, permit: &Permit, log: &RecoveryLog) {
        let (consecutive, recovered) =
            record.change(at, |health, now| (health.consecutive, health.content(now, permit)));
        if recovered {
            event::recovered(log, &record.key);
        }
        // Most successes change nothing that is shown.
        if recovered || consecutive > 0 {
            self.registry.publish();
        }
    }

    /// Notes how a call ended.
    fn ended(&self, end: &LeaseEnd<'_>) {
        match end.outcome {
            Outcome::Success => {
                self.narrowest().note_answer();
                if self.is_degraded() {
                    let at = Instant::now();
                    for (record, permit) in self.degraded(&end.permit) {
                        record.change(at, |health, now| health.succeed(now, &permit));
                    }
                }
                return;
            }
            Outcome::Failure(failure) => {
                let report = match (failure.is_recorded(), end.first_content.is_some()) {
                    (true, _) => Report::Last,
                    (false, true) => Report::Broken,
                    (false, false) => Report::Whole,
                };
                self.failed(failure, &end.permit, end.log, report);
            }
            _ => {}
        }
        self.release(&end.permit);
    }

    /// Notes a failure in the record of what it speaks for.
    fn failed(&self, failure: &Failure, permit: &Permit, log: &RecoveryLog, report: Report) {
        let FailureVerdict { scope, blame: Some(blame), downgrade, .. } =
            self.policy.verdict(failure)
        else {
            self.rest(failure, permit);
            return;
        };
        let at = Instant::now();
        if report != Report::Last {
            let broke = report == Report::Broken;
            self.narrowest().change(at, |health, _| health.count_failed(at, broke));
        }
        let Some((record, permit)) = self.blamed(permit, scope, blame.reason) else { return };
        if report == Report::Last && permit.kind != PermitKind::Probe {
            // Each attempt has been noted, and nothing waits for the end of the call.
            return;
        }
        let call = FailedCall { blame, yields: downgrade, message: failure.message(), report };
        let failed =
            self.registry.change(record, at, |health, now| health.fail(now, &permit, &call));
        let for_a_person =
            matches!(blame.reason, Reason::Auth | Reason::Billing | Reason::ModelNotFound);
        match failed {
            Failed::Cooled { wait, fresh } => {
                event::cooled(log, &record.key, blame.reason, wait, fresh);
                if for_a_person && fresh {
                    event::alarm(&record.key, failure);
                }
            }
            // A second witness is awaited, or there is no cooldown: then every one counts.
            Failed::Counted if for_a_person => event::alarm(&record.key, failure),
            Failed::Counted | Failed::Late => {}
        }
    }

    /// A breaker below refuses this target and says when it will let a call through: until then
    /// asking is in vain. It is no failure of the target's.
    fn rest(&self, failure: &Failure, permit: &Permit) {
        // Out of turn it refuses a repetition, and no first attempt.
        if failure.evidence() == OUT_OF_TURN {
            return;
        }
        let (Reason::CircuitOpen, Some(wait)) = (failure.reason(), failure.retry_after()) else {
            return;
        };
        if let Some((record, _)) = self.blamed(permit, Scope::ModelCredential, failure.reason()) {
            self.registry.change(record, Instant::now(), |health, now| health.rest(now.at, wait));
        }
    }
}

impl Route {
    /// The candidate that a permit is for.
    fn of(&self, permit: &Permit) -> Option<&Candidate> {
        self.candidates.get(candidate::index(permit))
    }
}

impl Observer for Route {
    fn first_content(&self, permit: Permit, at: Instant, after: Duration, log: &RecoveryLog) {
        if let Some(candidate) = self.of(&permit) {
            if self.is_shared() {
                candidate.provider().measure(after);
            }
            candidate.content(&permit, at, log);
        }
    }

    fn attempt_failed(&self, permit: Permit, failure: &Failure, log: &RecoveryLog) {
        if let Some(candidate) = self.of(&permit) {
            candidate.failed(failure, &permit, log, Report::Attempt);
        }
    }

    fn rests(&self, permit: Permit) -> bool {
        self.of(&permit).is_some_and(|candidate| candidate.rests(permit.witness))
    }

    fn answered_lately(&self, permit: Permit) -> bool {
        self.of(&permit).is_some_and(|candidate| candidate.has_answered_lately(Instant::now()))
    }

    fn ended(&self, end: LeaseEnd<'_>) {
        if let Some(candidate) = self.of(&end.permit) {
            candidate.provider().load().ended();
            candidate.ended(&end);
        }
    }
}

/// A route, and what to put back into the budget when its candidate answers.
#[derive(Debug)]
struct Refunding {
    route: Arc<Route>,
    budget: RetryBudget,
    withdrawal: Withdrawal,
}

impl Observer for Refunding {
    fn first_content(&self, permit: Permit, at: Instant, after: Duration, log: &RecoveryLog) {
        self.route.first_content(permit, at, after, log);
    }

    fn attempt_failed(&self, permit: Permit, failure: &Failure, log: &RecoveryLog) {
        self.route.attempt_failed(permit, failure, log);
    }

    fn rests(&self, permit: Permit) -> bool {
        self.route.rests(permit)
    }

    fn answered_lately(&self, permit: Permit) -> bool {
        self.route.answered_lately(permit)
    }

    fn ended(&self, end: LeaseEnd<'_>) {
        if let Outcome::Success = end.outcome {
            self.budget.refund(self.withdrawal);
        }
        self.route.ended(end);
    }
}

/// A lease on the candidate of `route` that `permit` is for. When the answer ends well it puts back into
/// `budget` what the call has taken out; a full one takes nothing back.
#[inline]
pub(crate) fn lease(
    route: &Arc<Route>,
    permit: Permit,
    log: RecoveryLog,
    budget: Option<&RetryBudget>,
    withdrawal: Option<Withdrawal>,
) -> Lease {
    if let Some(candidate) = route.of(&permit) {
        candidate.provider().load().started();
    }
    let budget = budget.filter(|budget| withdrawal.is_some() || !budget.is_full());
    let observer: Arc<dyn Observer> = match budget {
        None => route.clone(),
        Some(budget) => {
            let withdrawal = withdrawal.unwrap_or_default();
            Arc::new(Refunding { route: route.clone(), budget: budget.clone(), withdrawal })
        }
    };
    // How long it takes is of interest among equals, and the clock costs as much as the rest of this.
    let began = if route.is_shared() { Instant::now() } else { route.began };
    Lease::new(observer, permit, log).observing_content(began)
}
