//! What the law says of a provider that limits its callers, and of a few faults with a spare.

use std::time::Duration;

use steadfast_tests::seeds;

use crate::{
    callers::through_stack,
    world::{Callers, FaultPattern, Identity, Nature, World},
};

fn world(seed: u64, faults: &[FaultPattern], rate: f64, length: Duration) -> World {
    let nature = |fault: &FaultPattern| Nature {
        fault: fault.clone(),
        fails_after: Duration::from_millis(50),
        broken: 0.0,
        quota: None,
    };
    World {
        seed,
        end: Duration::from_secs(240),
        targets: faults.iter().map(nature).collect(),
        callers: Callers::Open(rate),
        first_content: Duration::from_millis(500),
        length,
        streamed: seed.is_multiple_of(2),
        identity: Identity::Unknown,
        max_output: None,
    }
}

/// A provider that is alone takes two calls a second, by rate or because it has twenty at once that take ten
/// seconds, and is asked for a fifth more.
#[test]
fn of_what_a_throttled_provider_could_serve_nine_tenths_are_served() {
    let hints = [0, 1, 5, 20].map(Duration::from_secs);
    let limits = hints.into_iter().flat_map(|hint| {
        [
            ("rate", FaultPattern::Rate(2.0, hint)),
            ("concurrency", FaultPattern::Concurrency(20, hint)),
        ]
    });
    let limits: Vec<_> = limits.collect();
    let served = seeds::run_all(limits.len() as u64 * 2, |seed| {
        let (name, limit) = &limits[seed as usize % limits.len()];
        let length = Duration::from_millis(9_500);
        let world = world(seed, std::slice::from_ref(limit), 2.4, length);
        let could = 2.0 * world.end.as_secs_f64();
        (name, limit.clone(), f64::from(through_stack(&world).answered) / could)
    });
    for (name, limit, share) in served {
        println!("by {name}, {limit:?}: {:.1} % of what it could serve", 100.0 * share);
        assert!(share >= 0.9, "by {name}, {limit:?}: {share}");
    }
}

#[test]
fn with_five_per_cent_of_faults_and_a_spare_less_than_one_call_in_a_thousand_is_lost() {
    let tallies = seeds::run_all(8, |seed| {
        let faults = [FaultPattern::Chance(0.05), FaultPattern::Chance(0.05)];
        through_stack(&world(seed, &faults, 20.0, Duration::from_secs(5)))
    });
    let asked: u32 = tallies.iter().map(|tally| tally.asked).sum();
    let answered: u32 = tallies.iter().map(|tally| tally.answered).sum();
    println!("{} of {asked} calls are lost", asked - answered);
    assert!(asked > 20_000 && (asked - answered) * 1_000 < asked, "{answered} of {asked}");
}
