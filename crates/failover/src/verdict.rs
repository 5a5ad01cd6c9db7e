//! What a failure means under a policy.

use steadfast_core::{
    Failover, Failure, FaultSide, Reason, Retry, Scope, TimeLimit,
    circuit::{Blame, Weight},
};

use crate::policy::FailoverPolicy;

/// What one failure means under a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FailureVerdict {
    /// Where the call may go.
    pub(crate) go: Failover,
    /// What it says something about.
    pub(crate) scope: Scope,
    /// What cools down and how; `None` when the target is not to blame.
    pub(crate) blame: Option<Blame>,
    /// The provider's other models may do.
    pub(crate) downgrade: bool,
    /// The same call may be made again later, at the same target.
    pub(crate) again: bool,
}

/// `own`, unless the operator changed the reason's cell in the table.
fn cell<T: PartialEq>(own: T, standard: &T, table: T) -> T {
    if table == *standard { own } else { table }
}

impl FailoverPolicy {
    pub(crate) fn verdict(&self, failure: &Failure) -> FailureVerdict {
        let reason = failure.reason();
        let (rule, standard) = (self.table.rule(reason), reason.rule());
        let forbidden = failure.failover() == Failover::Forbidden;
        let scope = cell(failure.scope(), &standard.scope, rule.scope);
        let mut go = cell(failure.failover(), &standard.failover, rule.failover);
        if forbidden {
            go = Failover::Forbidden;
        } else if failure.is_delivered() || failure.time_limit() == Some(TimeLimit::Pipeline) {
            // Content has been seen, or the time of the whole call is over.
            go = Failover::Never;
        }
        let downgrade = match reason {
            Reason::Overloaded => self.downgrade_on_overload || failure.wants_fallback(),
            _ => go == Failover::NextModel || failure.wants_fallback(),
        };
        let fault = cell(failure.fault(), &standard.fault, rule.fault);
        let blamed = !forbidden
            && fault == FaultSide::Provider
            && failure.time_limit().is_none_or(TimeLimit::blames_provider)
            && !matches!(scope, Scope::Request | Scope::Task | Scope::Local);
        let permanent = cell(failure.is_permanent(), &standard.permanent, rule.permanent);
        let narrow = matches!(scope, Scope::Model | Scope::Credential | Scope::ModelCredential);
        // Asking again is in vain until a person has changed something.
        let proves =
            permanent || (narrow && failure.retry() == Retry::No && !reason.is_throttling());
        // By a breaker or a limit of ours, which say when there is room again.
        let refused = matches!(reason, Reason::CircuitOpen | Reason::Budget)
            && failure.retry_after().is_some();
        // Not worth a retry in place for the length of its hint alone.
        let long = failure.retry_after().is_some_and(|hint| hint > self.patience.alone);
        let passes = failure.retry() == Retry::Yes || (reason.is_throttling() && long);
        // What a model writes is no better for waiting.
        let passes = passes && fault != FaultSide::Model && failure.time_limit().is_none();
        let again = refused || passes;
        let blame = blamed.then(|| {
            let hint = failure.retry_after().filter(|hint| !hint.is_zero());
            Blame {
                weight: if proves { Weight::Proof } else { Weight::Hard },
                reason,
                cooldown: hint
                    .map_or(rule.cooldown.unwrap_or_default(), |hint| hint.min(self.longest_hint)),
                hinted: hint.is_some(),
                permanent,
            }
        });
        FailureVerdict { go, scope, blame, downgrade, again }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn secs(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn the_table_of_reasons() {
        use Failover::{Forbidden, LargerWindow, Never, NextCredential, NextModel, NextTarget};
        let policy = FailoverPolicy::default();
        for (reason, go, cooldown) in [
            (Reason::Auth, NextCredential, Some(600)),
            (Reason::Billing, NextCredential, Some(1_800)),
            (Reason::RateLimit, NextTarget, Some(60)),
            (Reason::Overloaded, NextTarget, Some(120)),
            (Reason::ServerError, NextTarget, Some(60)),
            (Reason::Timeout, NextTarget, Some(30)),
            (Reason::Network, NextTarget, Some(30)),
            (Reason::ModelNotFound, NextModel, Some(3_600)),
            (Reason::ContextOverflow, LargerWindow, None),
            (Reason::OutputTruncated, Never, None),
            (Reason::ContentFilter, Never, None),
            (Reason::Format, Never, None),
            (Reason::PayloadTooLarge, Never, None),
            (Reason::Unsupported, NextTarget, None),
            (Reason::Cancelled, Never, None),
            (Reason::Safety, Forbidden, None),
            (Reason::CircuitOpen, NextTarget, None),
            (Reason::Cooling, NextTarget, None),
            (Reason::Exhausted, NextTarget, None),
            (Reason::Budget, NextTarget, None),
            (Reason::SpendCap, Forbidden, None),
            (Reason::Unknown, NextTarget, Some(30)),
        ] {
            let verdict = policy.verdict(&Failure::new(reason, ""));
            assert_eq!(verdict.go, go, "{reason}");
            assert_eq!(verdict.blame.map(|blame| blame.cooldown), cooldown.map(secs), "{reason}");
        }
    }

    #[test]
    fn what_passes_may_be_asked_again_and_what_does_not_is_proof() {
        let policy = FailoverPolicy::default();
        let limited = |wait| Failure::new(Reason::RateLimit, "").with_retry_after(Some(secs(wait)));
        let refused = Failure::refused(Reason::CircuitOpen, "");
        let overloaded = || Failure::new(Reason::Overloaded, "");
        let stall = Failure::new(Reason::Timeout, "").with_time_limit(TimeLimit::Stall);
        let credential = Failure::new(Reason::ServerError, "").with_scope(Scope::Credential);
        for (failure, again, proof) in [
            (Failure::new(Reason::ServerError, ""), true, false),
            (Failure::new(Reason::Timeout, ""), true, false),
            (stall, false, false),
            (Failure::new(Reason::ServerError, "").with_fault(FaultSide::Model), false, false),
            (overloaded(), true, false),
            (overloaded().with_retry(Retry::No), false, false),
            (limited(5), true, false),
            // A hint alone makes a classifier say so.
            (limited(61).with_retry(Retry::No), true, false),
            (limited(60).with_retry(Retry::No), false, false),
            (Failure::new(Reason::Auth, ""), false, true),
            (Failure::new(Reason::Billing, ""), false, true),
            (Failure::new(Reason::ModelNotFound, ""), false, true),
            (Failure::new(Reason::ServerError, "").with_permanent(true), true, true),
            (credential.with_retry(Retry::No), false, true),
            (Failure::new(Reason::Unknown, ""), false, false),
            (refused.with_retry_after(Some(secs(1))), true, false),
            (Failure::refused(Reason::CircuitOpen, ""), false, false),
            (Failure::refused(Reason::Budget, ""), false, false),
            (Failure::refused(Reason::Budget, "").with_retry_after(Some(secs(1))), true, false),
            (Failure::new(Reason::Unsupported, ""), false, false),
        ] {
            let verdict = policy.verdict(&failure);
            let proves = verdict.blame.is_some_and(|blame| blame.weight == Weight::Proof);
            assert_eq!((verdict.again, proves), (again, proof), "{failure:?}");
        }
    }

    #[test]
    fn a_hint_is_the_cooldown_within_a_day() {
        let policy = FailoverPolicy::default();
        let blame = |hint| {
            let failure = Failure::new(Reason::RateLimit, "").with_retry_after(hint);
            let blame = policy.verdict(&failure).blame.unwrap();
            (blame.cooldown, blame.hinted)
        };
        assert_eq!(blame(Some(secs(2))), (secs(2), true));
        assert_eq!(blame(Some(secs(86_400 * 400))), (secs(86_400), true));
        assert_eq!(blame(Some(secs(0))), (secs(60), false));
        assert_eq!(blame(None), (secs(60), false));
    }

    #[test]
    fn the_operators_cell_overrides_the_failure_and_nothing_overrides_forbidden() {
        let mut policy = FailoverPolicy::default();
        let own = Failure::new(Reason::Format, "").with_failover(Failover::NextTarget);
        assert_eq!(policy.verdict(&own).go, Failover::NextTarget, "what the classifier knows");
        policy.table = policy
            .table
            .with_rule(Reason::ContentFilter, |rule| rule.failover = Failover::NextTarget)
            .with_rule(Reason::ServerError, |rule| rule.permanent = true);
        let filtered = policy.verdict(&Failure::new(Reason::ContentFilter, ""));
        assert_eq!((filtered.go, filtered.blame), (Failover::NextTarget, None));
        assert!(policy.verdict(&Failure::new(Reason::ServerError, "")).blame.unwrap().permanent);
        let forbidden = Failure::new(Reason::ContentFilter, "").with_failover(Failover::Forbidden);
        assert_eq!(policy.verdict(&forbidden).go, Failover::Forbidden);
    }

    #[test]
    fn our_own_patience_and_what_was_delivered() {
        let policy = FailoverPolicy::default();
        let timeout =
            |limit| policy.verdict(&Failure::new(Reason::Timeout, "").with_time_limit(limit));
        assert!(timeout(TimeLimit::Stall).blame.is_some());
        assert!(timeout(TimeLimit::Makespan).blame.is_none());
        assert_eq!(timeout(TimeLimit::Makespan).go, Failover::NextTarget);
        assert_eq!(timeout(TimeLimit::Pipeline).go, Failover::Never);
        let delivered = policy.verdict(&Failure::new(Reason::Network, "").with_delivered());
        assert_eq!(delivered.go, Failover::Never);
        assert!(delivered.blame.is_some(), "it still counts against the target");
    }

    #[test]
    fn overload_downgrades_when_asked() {
        let mut policy = FailoverPolicy::default();
        let plain = Failure::new(Reason::Overloaded, "");
        let asks = Failure::new(Reason::Overloaded, "").with_wants_fallback();
        assert!(!policy.verdict(&plain).downgrade && policy.verdict(&asks).downgrade);
        policy.downgrade_on_overload = true;
        assert!(policy.verdict(&plain).downgrade);
        assert!(policy.verdict(&Failure::new(Reason::ModelNotFound, "")).downgrade);
    }
}
