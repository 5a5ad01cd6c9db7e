//! The whole stack with random faults.
//!
//! Each seed generates providers with faults of every kind, a stack of some or all layers with
//! random policies, and callers who share it, streaming or not, some of whom cancel their calls.
//! The invariants that must hold in every run are listed in [`invariants`]. At the end of a run all
//! faults stop, and every provider has to answer again.
//!
//! | variable | |
//! |---|---|
//! | `STEADFAST_CHAOS_SEED=n` | replays one seed and prints its trace |
//! | `STEADFAST_CHAOS_SEEDS=n` | runs seeds 1 to n instead of 1 to 300 |
//!
//! The report of a seed that fails has the command to replay it, its configuration and its trace.
//! Seeds are independent of each other and run on all cores, each on its own paused clock.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod breaker_model;
mod bugs;
mod callers;
mod check;
#[path = "../../../crates/core/tests/circuit_model/model.rs"]
mod circuit_model;
mod failover_model;
mod faults;
mod guard;
mod invariants;
mod layers;
mod models;
mod net;
mod policies;
mod run;
mod timeline;
mod timers;
mod visits;
mod world;

use std::{collections::BTreeSet, time::Duration};

use fastrand::Rng;
use steadfast_tests::seeds::number;

use self::{
    bugs::Bug,
    invariants::Invariant,
    run::{Outcome, run, run_all},
};

/// Seeds of a default run.
const SEEDS: u64 = 300;

fn ms(rng: &mut Rng, range: impl std::ops::RangeBounds<u64>) -> Duration {
    Duration::from_millis(rng.u64(range))
}

/// Text that the traces of a few hundred seeds must contain: every fault, and every reaction to it.
#[rustfmt::skip]
const EXPECTED_TRACE: [&str; 75] = [
    // Faults before and inside the answer.
    "Status(", "Error(", "ErrorInOk(", "asked: Empty", "asked: Hang", "asked: Refused", "asked: Reset",
    "asked: Close", "asked: HalfHeaders",
    "Break(", "FirstToken(", "Drip(", "Coalesce(", "ContentType(", "OutputLimit(", "Many(",
    "how: Reset", "how: Close", "how: End", "how: Stall", "how: ErrorEvent", "how: MalformedJson",
    "how: TruncatedJson", "how: Garbage", "RateLimit(", "InsufficientQuota", "Overloaded",
    "ServerError", "GatewayTimeout", "Auth", "Permission", "ModelNotFound", "ContextOverflow",
    "Format", "ContentFilter", "PayloadTooLarge", "BadGatewayHtml",
    "the network holds", "the network repeats", "Broken, status", "Dropped, status", "Complete, status",
    // Reactions of the layers.
    "retry.retried", "retry.gave_up", "retry.nudged", "failover.switched", "failover.downgraded",
    "failover.skipped", "failover.cooled", "failover.probe", "failover.recovered",
    "failover.insisted", "failover.waited", "failover.hedged", "failover.outrun",
    "failover.exhausted", "failover.stopped", "breaker.refused", "breaker.would_refuse",
    "breaker.probe", "nowhere else to go", ", consecutive", ", failure_rate", ", slow_rate",
    ", proof", ", probe_failed", ", recovered", ", rested", ", manual",
    // Callers.
    "cancels", "has its answer", "gets the failure", "the guard refuses", "limit stall",
    "limit pipeline",
];

#[test]
fn invariants_hold() {
    if let Some(seed) = number("STEADFAST_CHAOS_SEED") {
        let outcome = run(seed, None);
        println!("{}", outcome.report_with(usize::MAX));
        assert!(outcome.violations.is_empty(), "seed {seed} failed");
        return;
    }
    let seeds = number("STEADFAST_CHAOS_SEEDS").unwrap_or(SEEDS);
    let failed = run_all(seeds);
    let lines: Vec<_> = failed.iter().map(Outcome::line).collect();
    // One in full; the others by their names.
    let first = failed.first().map(Outcome::report).unwrap_or_default();
    assert!(
        failed.is_empty(),
        "{first}\n{} of {seeds} seeds failed:\n{}",
        failed.len(),
        lines.join("\n")
    );
}

/// The whole trace with its times, apart from runs with dates in hints: dates have whole seconds,
/// and the wall clock does not start on one.
#[test]
fn the_same_seed_gives_the_same_trace() {
    for seed in (1..=40).filter(|seed| seed % 8 != 7) {
        let (one, two) = (run(seed, None), run(seed, None));
        let (one, two) = (one.trace(), two.trace());
        for (line, (one, two)) in one.iter().zip(&two).enumerate() {
            assert_eq!(one, two, "seed {seed}, line {line}");
        }
        assert!(!one.is_empty() && one.len() == two.len(), "seed {seed}");
    }
}

/// Invariants prove nothing if no fault tests them: so each of these must occur, most of them within a few seeds.
#[test]
fn every_fault_and_reaction_occurs() {
    let mut missing: BTreeSet<&str> = EXPECTED_TRACE.into_iter().collect();
    for seed in 1..=2_000 {
        for line in run(seed, None).trace() {
            missing.retain(|word| !line.contains(word));
        }
        if missing.is_empty() {
            return;
        }
    }
    panic!("these never occur: {missing:?}");
}

/// Each planted bug violates its invariant, and the report is complete.
#[test]
fn every_planted_bug_is_found() {
    let mut violated = Vec::new();
    for bug in Bug::ALL {
        let finds = |seed| {
            let outcome = run(seed, Some(bug));
            let found =
                outcome.violations.iter().any(|violation| violation.invariant == bug.breaks());
            found.then_some((seed, outcome))
        };
        let found = (1..=60).find_map(finds);
        let (seed, outcome) = found.unwrap_or_else(|| panic!("{bug:?} was not found"));
        let (report, invariant) = (outcome.report(), bug.breaks().name());
        let replay = format!("STEADFAST_CHAOS_SEED={seed} cargo test");
        for part in
            [&replay, "FailoverPolicy {", "rules: [", " calls", &format!("VIOLATION {invariant}: ")]
        {
            assert!(report.contains(part), "{bug:?}: no {part:?} in the report:\n{report}");
        }
        violated.push(bug.breaks());
    }
    for invariant in Invariant::ALL {
        assert!(violated.contains(&invariant), "no planted bug breaks {invariant:?}");
    }
}
