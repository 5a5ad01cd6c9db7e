//! The whole stack under weather nobody planned for.
//!
//! Each seed makes up three providers with faults of every kind, policies, and callers who come
//! at once or one by one, stream or not, and leave when they like. What happens then is not
//! known beforehand; what has to hold whatever happens is in [`check`]. Afterwards the sky
//! clears, and every provider has to answer again.
//!
//! A seed that fails says how to replay it: `STEADFAST_CHAOS_SEED=n`. `STEADFAST_CHAOS_SEEDS=n`
//! tries more of them than usual.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod callers;
mod check;
mod faults;
mod policies;
mod world;

use std::{any::Any, env, panic, time::Duration};

use fastrand::Rng;

use self::world::World;

/// How many seeds are tried when nobody says.
const SEEDS: u64 = 300;

fn number(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is {text:?}; it takes a number")))
}

/// True with this probability.
fn chance(dice: &mut Rng, probability: f64) -> bool {
    dice.f64() < probability
}

/// `Some` of what is made, half of the time.
fn maybe<T>(dice: &mut Rng, make: impl FnOnce(&mut Rng) -> T) -> Option<T> {
    if dice.bool() { Some(make(dice)) } else { None }
}

fn ms(dice: &mut Rng, range: impl std::ops::RangeBounds<u64>) -> Duration {
    Duration::from_millis(dice.u64(range))
}

/// One world from its beginning to its end.
fn run(seed: u64) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    runtime.unwrap().block_on(async {
        let mut world = World::new(seed);
        let ends = world.weather().await;
        check::all(&world, &ends);
        world.clear_sky().await;
    });
}

fn words(panic: &(dyn Any + Send)) -> &str {
    let fixed = panic.downcast_ref::<&str>().copied();
    fixed.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no words")
}

#[test]
fn whatever_happens() {
    let seeds = match number("STEADFAST_CHAOS_SEED") {
        Some(seed) => seed..=seed,
        None => 1..=number("STEADFAST_CHAOS_SEEDS").unwrap_or(SEEDS),
    };
    let failed: Vec<String> = seeds
        .filter_map(|seed| {
            let panic = panic::catch_unwind(|| run(seed)).err()?;
            Some(format!("STEADFAST_CHAOS_SEED={seed} replays: {}", words(&*panic)))
        })
        .collect();
    assert!(failed.is_empty(), "{} seeds failed\n{}", failed.len(), failed.join("\n"));
}
