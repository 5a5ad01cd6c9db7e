//! Which failures are a last word that a person can change.

use steadfast_core::{CallContext, Failover, Failure, FaultSide, Priority, Reason, Retry, Scope};

/// Whether a request that ended with `failure` is held.
pub(crate) fn is_last_word(failure: &Failure, context: &CallContext) -> bool {
    // Nobody waits for a title.
    context.priority != Priority::Background && !is_final(failure) && !is_callers(failure)
}

/// What no person's decision may change: a stop of the safety guard, a caller who went away, a refusal for
/// want of budget, and an answer of which the caller has a part.
pub(crate) fn is_final(failure: &Failure) -> bool {
    let forbidden =
        failure.retry() == Retry::Forbidden || failure.failover() == Failover::Forbidden;
    let reason = matches!(failure.reason(), Reason::Safety | Reason::Cancelled | Reason::Budget);
    forbidden || reason || failure.is_delivered()
}

/// Whether the caller has to change its request: every target would refuse it, or all of them have.
fn is_callers(failure: &Failure) -> bool {
    let all = failure.common_reason().map(Reason::rule);
    let by_all =
        all.is_some_and(|rule| rule.fault == FaultSide::Caller && rule.scope == Scope::Request);
    failure.fault() == FaultSide::Caller || (failure.reason().is_refusal() && by_all)
}

#[cfg(test)]
mod tests {
    use steadfast_core::{Attempt, Target};

    use super::*;

    fn held(failure: &Failure) -> bool {
        is_last_word(failure, &CallContext::new())
    }

    #[test]
    fn what_is_held_by_reason() {
        for reason in Reason::ALL {
            let expected = !matches!(
                reason,
                Reason::ContextOverflow
                    | Reason::OutputTruncated
                    | Reason::ContentFilter
                    | Reason::Format
                    | Reason::PayloadTooLarge
                    | Reason::Unsupported
                    | Reason::Cancelled
                    | Reason::Safety
                    | Reason::Budget
                    | Reason::SpendCap
            );
            assert_eq!(held(&Failure::new(reason, "")), expected, "{reason}");
        }
    }

    #[test]
    fn what_is_the_callers_fault_is_not_held() {
        let callers_key = Failure::new(Reason::Auth, "").with_fault(FaultSide::Caller);
        assert!(!held(&callers_key), "a key that the caller brought");
        let exhausted = |reasons: [Reason; 2]| {
            let attempt = |reason| Attempt::skipped(Target::new("p"), reason, "");
            Failure::refused(Reason::Exhausted, "").with_trail(reasons.map(attempt).into())
        };
        assert!(!held(&exhausted([Reason::ContentFilter, Reason::ContentFilter])));
        assert!(held(&exhausted([Reason::ContentFilter, Reason::Overloaded])));
        assert!(held(&exhausted([Reason::Auth, Reason::Auth])), "the operator's key");
    }

    #[test]
    fn what_is_final_is_not_held() {
        let failure = || Failure::new(Reason::Exhausted, "");
        assert!(!held(&failure().with_retry(Retry::Forbidden)));
        assert!(!held(&failure().with_failover(Failover::Forbidden)));
        assert!(!held(&failure().with_delivered()));
        let background = CallContext::new().with_priority(Priority::Background);
        assert!(!is_last_word(&failure(), &background));
    }
}
