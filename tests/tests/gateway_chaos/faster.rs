//! Faults that take seconds on a paused clock, made to take milliseconds.

use steadfast::sim::{Fault, FaultPlan, PlanRule};

/// The same plan with shorter times.
pub(crate) fn plan(plan: FaultPlan) -> FaultPlan {
    let rules = plan.rules.into_iter().map(rule).collect();
    FaultPlan { rules, ..plan }
}

fn rule(rule: PlanRule) -> PlanRule {
    let quick = |ms: u64| ms / 60;
    let since_ms = rule.since_ms.map(quick);
    let until_ms = rule.until_ms.map(|until| quick(until).max(since_ms.unwrap_or(0) + 1));
    PlanRule { since_ms, until_ms, fault: fault(rule.fault), ..rule }
}

fn fault(fault: Fault) -> Fault {
    match fault {
        Fault::FirstToken(mut first) => {
            first.after_ms /= 40;
            first.ping_every_ms = first.ping_every_ms.map(|every| (every / 40).max(1));
            Fault::FirstToken(first)
        }
        Fault::Drip(mut drip) => {
            // A timer for each piece: fewer and larger ones.
            drip.bytes = if drip.every_ms == 0 { drip.bytes } else { drip.bytes.max(100) };
            drip.every_ms /= 100;
            Fault::Drip(drip)
        }
        Fault::Many(faults) => Fault::Many(faults.into_iter().map(self::fault).collect()),
        other => other,
    }
}
