//! What tests of many seeds share: numbers from the environment, chances, paused clocks, and all
//! cores.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{
    env,
    sync::atomic::{AtomicU64, Ordering},
    thread,
};

use fastrand::Rng;
use parking_lot::Mutex;
use tokio::runtime::Builder;

/// The number in the environment variable `name`, if it is set.
///
/// # Panics
///
/// When it is set to something else.
pub fn number(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is {text:?}; it takes a number")))
}

/// True with this probability.
pub fn chance(rng: &mut Rng, probability: f64) -> bool {
    rng.f64() < probability
}

/// `Some` of what is made, half of the time.
pub fn maybe<T>(rng: &mut Rng, make: impl FnOnce(&mut Rng) -> T) -> Option<T> {
    if rng.bool() { Some(make(rng)) } else { None }
}

/// The builder of a runtime with one thread and a paused clock.
pub fn paused() -> Builder {
    let mut builder = Builder::new_current_thread();
    builder.enable_time().start_paused(true);
    builder
}

/// Runs the seeds 1 to `seeds` on all cores; what came of each, in their order.
pub fn run_all<T: Send>(seeds: u64, run: impl Fn(u64) -> T + Sync) -> Vec<T> {
    let (next, ended) = (AtomicU64::new(1), Mutex::new(Vec::new()));
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed > seeds {
                        return;
                    }
                    let outcome = run(seed);
                    ended.lock().push((seed, outcome));
                }
            });
        }
    });
    let mut ended = ended.into_inner();
    ended.sort_by_key(|(seed, _)| *seed);
    ended.into_iter().map(|(_, outcome)| outcome).collect()
}
