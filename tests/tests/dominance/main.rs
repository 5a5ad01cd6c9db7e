//! The first property of the defaults: whatever the targets do, the stack answers no smaller a share of the
//! calls than the best single target, known in hindsight, asked as the official SDKs ask.
//!
//! Each seed is a world: one to four targets that fail by chance, in bursts, in outages of their
//! own or together, by a limit of rate or of concurrency, with hints that lie, or in the middle of
//! a stream, or that limit requests and tokens and state it in headers, truthfully or not; callers that wait for their answers or do not; answers of 0.1 to 60 s. Each world
//! compares the default stack (`Stack::new(chain)`, nothing set) with each of its targets alone: it
//! is run once with the stack, and once with each target. All of it on a paused clock.
//!
//! | variable | |
//! |---|---|
//! | `STEADFAST_WORLD=n` | one world, reported in full, which has to hold by itself |
//! | `STEADFAST_WORLDS=n` | worlds 1 to n instead of 1 to 20; `cargo xtask dominance` runs 10,000 |
//! | `STEADFAST_FLEET_WORLDS=n` | worlds 1 to n before fleets of 2 to 64 stacks, instead of a few; `cargo xtask dominance --fleets` runs 2,000 |
//! | `STEADFAST_SOCKET_WORLDS=n` | worlds 1 to n of a minute through the default gateway over sockets, in real time, instead of a few of seconds; `cargo xtask dominance --sockets` runs 500 |

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod callers;
mod fleet;
mod provider;
mod quota;
#[cfg(feature = "gateway")]
mod sockets;
mod throttled;
mod world;

use steadfast_tests::seeds::{self, number};

use self::{
    callers::{Tally, through_stack, through_target},
    world::World,
};

/// Worlds of a default run.
const WORLDS: u64 = 20;

/// Of so many worlds one may fail.
const WORLDS_A_FAILURE: usize = 500;

/// A world fails when the stack's share is more standard errors than this below the best target's.
const ERRORS: f64 = 4.0;

/// The result of one world.
struct Compared {
    world: World,
    stack: Tally,
    /// Each target alone.
    alone: Vec<Tally>,
}

impl Compared {
    fn of(seed: u64) -> Self {
        let world = World::new(seed);
        Self::with(through_stack(&world), world)
    }

    /// What came of `world` with the stack, beside each target alone.
    fn with(stack: Tally, world: World) -> Self {
        let alone = (0..world.targets.len()).map(|at| through_target(&world, at)).collect();
        Self { stack, alone, world }
    }

    fn best(&self) -> &Tally {
        self.alone.iter().max_by(|a, b| a.share().total_cmp(&b.share())).unwrap()
    }

    fn difference(&self) -> f64 {
        self.stack.share() - self.best().share()
    }

    /// By how many standard errors the stack is below the best target.
    fn below(&self) -> f64 {
        let variance = |tally: &Tally| {
            let share = tally.share();
            (share * (1.0 - share)).max(1e-4) / f64::from(tally.asked.max(1))
        };
        -self.difference() / (variance(&self.stack) + variance(self.best())).sqrt()
    }

    fn failed(&self) -> bool {
        self.below() > ERRORS
    }

    fn report(&self) -> String {
        let alone: Vec<_> = self.alone.iter().map(Tally::to_string).collect();
        format!(
            "world {}: {} with the stack; alone {}\n    {:?}",
            self.world.seed,
            self.stack,
            alone.join(" / "),
            self.world
        )
    }
}

#[test]
fn the_default_stack_against_its_best_target() {
    if let Some(seed) = number("STEADFAST_WORLD") {
        let compared = Compared::of(seed);
        println!("{}", compared.report());
        assert!(!compared.failed(), "{:.1} standard errors below", compared.below());
        return;
    }
    let worlds = number("STEADFAST_WORLDS").unwrap_or(WORLDS);
    let compared = seeds::run_all(worlds, Compared::of);
    report(&compared);
}

/// Prints the comparison, and asserts what it has to come to.
fn report(compared: &[Compared]) {
    let failed = compared.iter().filter(|one| one.failed()).count();
    let sum: f64 = compared.iter().map(Compared::difference).sum();
    let mean = sum / compared.len() as f64;
    let attempts: u64 = compared.iter().map(|one| one.stack.attempts).sum();
    let asked: u64 = compared.iter().map(|one| u64::from(one.stack.asked)).sum();
    println!(
        "{} worlds, {asked} calls, {:.2} attempts a call; {failed} below the best target; \
         mean difference {:+.2} points",
        compared.len(),
        attempts as f64 / asked as f64,
        100.0 * mean
    );
    for one in compared.iter().filter(|one| one.failed()) {
        println!("{:.1} standard errors below: {}", one.below(), one.report());
    }
    assert!(failed * WORLDS_A_FAILURE <= compared.len(), "{failed} worlds fail");
    assert!(mean > 0.0, "the mean difference is {mean}");
}
