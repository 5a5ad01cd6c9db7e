//! What the end of one answer says about its target.

use steadfast_core::{
    Failure, FaultSide, Outcome, Retry, Scope,
    circuit::{Blame, CircuitVerdict, Weight},
};

use crate::{BreakerPolicy, Covers};

/// What `outcome` says about everything under a key that covers `covers`.
pub(crate) fn judge(
    outcome: &Outcome<'_>,
    policy: &BreakerPolicy,
    covers: Covers,
) -> CircuitVerdict {
    match outcome {
        Outcome::Success => CircuitVerdict::Success,
        Outcome::Failure(failure) => judge_failure(failure, policy, covers),
        _ => CircuitVerdict::Nothing,
    }
}

/// The same where repetitions take turns: nothing is proof, since a first attempt passes anyway; and a throttled
/// call counts in the row. A provider that refuses everybody is as dead as one that fails, while a limit that
/// lets some calls pass breaks the row with each.
pub(crate) fn in_turns(verdict: CircuitVerdict) -> CircuitVerdict {
    match verdict.without_proof() {
        CircuitVerdict::Failure(blame) if blame.reason.is_throttling() => {
            CircuitVerdict::Failure(Blame { weight: Weight::Hard, ..blame })
        }
        verdict => verdict,
    }
}

fn judge_failure(failure: &Failure, policy: &BreakerPolicy, covers: Covers) -> CircuitVerdict {
    let reason = failure.reason();
    let says_nothing = reason.is_refusal()
        || failure.fault() != FaultSide::Provider
        || matches!(failure.scope(), Scope::Request | Scope::Task | Scope::Local)
        || failure.time_limit().is_some_and(|limit| !limit.blames_provider());
    if says_nothing {
        return CircuitVerdict::Nothing;
    }
    let rule = policy.table.rule(reason);
    let permanent = failure.is_permanent() || rule.permanent;
    // Narrower than the provider: proof where the key is as narrow, nothing where it is not.
    let (narrow, covered) = match failure.scope() {
        Scope::Model => (true, covers.model),
        Scope::Credential => (true, covers.credential),
        Scope::ModelCredential => (true, covers == Covers::ALL),
        _ => (false, true),
    };
    let permanent = permanent && covered;
    let weight = if reason.is_throttling() && !permanent {
        Weight::Soft
    } else if !covered {
        return CircuitVerdict::Nothing;
    } else if permanent || (narrow && failure.retry() == Retry::No) {
        Weight::Proof
    } else {
        Weight::Hard
    };
    let hint = failure.retry_after().filter(|hint| !hint.is_zero());
    let cooldown = match hint {
        Some(hint) => hint.min(policy.max_permanent),
        None => rule.cooldown.unwrap_or(policy.cooldown),
    };
    CircuitVerdict::Failure(Blame { weight, reason, cooldown, hinted: hint.is_some(), permanent })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use steadfast_core::{Reason, RecoveryTable, TimeLimit};

    use super::*;

    fn weigh(failure: &Failure, covers: Covers) -> Option<Weight> {
        match judge(&Outcome::Failure(failure), &BreakerPolicy::default(), covers) {
            CircuitVerdict::Failure(blame) => Some(blame.weight),
            CircuitVerdict::Nothing => None,
            CircuitVerdict::Success => panic!("a failure is no success"),
        }
    }

    #[test]
    fn each_reason_by_the_table() {
        use Weight::{Hard, Proof, Soft};
        // Reason, under a key as narrow as a target, under a wide one.
        let table = [
            (Reason::Auth, Some(Proof), None),
            (Reason::Billing, Some(Proof), None),
            (Reason::RateLimit, Some(Soft), Some(Soft)),
            (Reason::Overloaded, Some(Soft), Some(Soft)),
            (Reason::ServerError, Some(Hard), Some(Hard)),
            (Reason::Timeout, Some(Hard), Some(Hard)),
            (Reason::Network, Some(Hard), Some(Hard)),
            (Reason::ModelNotFound, Some(Proof), None),
            (Reason::ContextOverflow, None, None),
            (Reason::OutputTruncated, None, None),
            (Reason::ContentFilter, None, None),
            (Reason::Format, None, None),
            (Reason::PayloadTooLarge, None, None),
            (Reason::Unsupported, None, None),
            (Reason::Cancelled, None, None),
            (Reason::Safety, None, None),
            (Reason::CircuitOpen, None, None),
            (Reason::Cooling, None, None),
            (Reason::Exhausted, None, None),
            (Reason::Budget, None, None),
            (Reason::SpendCap, None, None),
            (Reason::Unknown, Some(Hard), Some(Hard)),
        ];
        assert_eq!(table.map(|row| row.0), Reason::ALL);
        for (reason, narrow, wide) in table {
            let failure = Failure::new(reason, "");
            assert_eq!(weigh(&failure, Covers::ALL), narrow, "{reason}");
            assert_eq!(weigh(&failure, Covers::NONE), wide, "{reason}");
        }
    }

    #[test]
    fn a_throttled_call_counts_in_the_row_where_calls_take_turns() {
        for (reason, weight) in [
            (Reason::Overloaded, Weight::Hard),
            (Reason::RateLimit, Weight::Hard),
            (Reason::ServerError, Weight::Hard),
            (Reason::Auth, Weight::Hard),
        ] {
            let failure = Failure::new(reason, "");
            let verdict =
                judge(&Outcome::Failure(&failure), &BreakerPolicy::default(), Covers::ALL);
            let CircuitVerdict::Failure(blame) = in_turns(verdict) else { panic!("{reason}") };
            assert_eq!(blame.weight, weight, "{reason}");
        }
    }

    #[test]
    fn a_model_is_not_a_credential() {
        let model = Covers { model: true, credential: false };
        assert_eq!(weigh(&Failure::new(Reason::ModelNotFound, ""), model), Some(Weight::Proof));
        assert_eq!(weigh(&Failure::new(Reason::Auth, ""), model), None);
    }

    #[test]
    fn what_was_found_out_outranks_the_reason() {
        // A provider's own rule broken by the caller, a caller's own key.
        let callers = Failure::new(Reason::Auth, "").with_fault(FaultSide::Caller);
        assert_eq!(weigh(&callers, Covers::ALL), None);
        let request = Failure::new(Reason::ServerError, "").with_scope(Scope::Request);
        assert_eq!(weigh(&request, Covers::ALL), None);
        // A quota of the day: throttling that does not pass by itself.
        let daily = Failure::new(Reason::RateLimit, "").with_permanent(true);
        assert_eq!(weigh(&daily, Covers::ALL), Some(Weight::Proof));
        assert_eq!(weigh(&daily, Covers::NONE), Some(Weight::Soft), "one model's quota");
        let dead = Failure::new(Reason::ServerError, "").with_permanent(true);
        assert_eq!(weigh(&dead, Covers::NONE), Some(Weight::Proof));
    }

    #[test]
    fn our_own_patience_blames_nobody() {
        for (limit, counts) in [
            (TimeLimit::Stall, true),
            (TimeLimit::FirstContent, true),
            (TimeLimit::Attempt, true),
            (TimeLimit::Throughput, true),
            (TimeLimit::Whole, true),
            (TimeLimit::Makespan, false),
            (TimeLimit::Pipeline, false),
        ] {
            let failure = Failure::new(Reason::Timeout, "").with_time_limit(limit);
            assert_eq!(weigh(&failure, Covers::ALL).is_some(), counts, "{limit}");
        }
    }

    #[test]
    fn the_hint_else_the_cell_of_the_table_else_the_usual() {
        let table = RecoveryTable::default().with_cooldown(Reason::Network, Duration::ZERO);
        let policy = BreakerPolicy { table, ..BreakerPolicy::default() };
        let (none, day) = (Duration::ZERO, Duration::from_secs(86_400));
        for (reason, hint, cooldown) in [
            (Reason::RateLimit, None, Duration::from_secs(60)),
            (Reason::RateLimit, Some(none), Duration::from_secs(60)),
            (Reason::RateLimit, Some(Duration::from_secs(7)), Duration::from_secs(7)),
            // A hint of a week is believed for a day.
            (Reason::RateLimit, Some(day * 7), day),
            (Reason::Network, None, policy.cooldown),
        ] {
            let failure = Failure::new(reason, "").with_retry_after(hint);
            let verdict = judge(&Outcome::Failure(&failure), &policy, Covers::ALL);
            let CircuitVerdict::Failure(blame) = verdict else { panic!("{verdict:?}") };
            assert_eq!(blame.cooldown, cooldown);
            assert_eq!(blame.hinted, hint.is_some_and(|hint| !hint.is_zero()));
        }
        assert_eq!(judge(&Outcome::Cancelled, &policy, Covers::ALL), CircuitVerdict::Nothing);
        assert_eq!(judge(&Outcome::Success, &policy, Covers::ALL), CircuitVerdict::Success);
    }
}
