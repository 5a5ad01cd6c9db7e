//! One world from its beginning to its end, and many of them.

use std::{
    any::Any,
    fmt::Write as _,
    panic::{self, AssertUnwindSafe},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use parking_lot::Mutex;
use steadfast::{
    failover::TargetSpec,
    sim::{Entry, FaultPlan},
};
use tokio::runtime::Handle;

use crate::{
    agree,
    bugs::Bug,
    check,
    laws::{Broken, Court, Law},
    layers::Layers,
    quiet::Paused,
    timeline::Timeline,
    world::{Policies, World},
};

/// Lines of a report: what comes before is told to be missing.
const MOST_LINES: usize = 400;

/// What became of one world.
#[derive(Debug)]
pub(crate) struct Outcome {
    seed: u64,
    pub(crate) broken: Vec<Broken>,
    /// What it was made of, and what happened in it. Put into words only when somebody asks: that
    /// takes as long as the world did.
    known: Option<Known>,
    seen: Vec<Entry>,
}

/// What is known of a world, even when it came to a sudden end.
#[derive(Debug)]
struct Known {
    layers: Layers,
    policies: Arc<Policies>,
    providers: Vec<(FaultPlan, TargetSpec)>,
    timeline: Timeline,
}

impl Outcome {
    /// The seed and the first law that did not hold.
    pub(crate) fn line(&self) -> String {
        let first = self.broken.first().map(|broken| broken.law.name()).unwrap_or("nothing");
        format!("seed {}: {first}", self.seed)
    }

    /// Everything there is to know: how to replay it, what it was made of, what happened, and
    /// what should not have.
    pub(crate) fn report(&self) -> String {
        let mut out = format!("seed {}\n", self.seed);
        if let Some(Known { layers, policies, providers, .. }) = &self.known {
            let _ = writeln!(out, "{layers:?}\n{policies:#?}");
            for (faults, spec) in providers {
                let _ = writeln!(out, "{spec:?}\n{faults:#?}");
            }
        }
        let trace = self.trace();
        let skipped = trace.len().saturating_sub(MOST_LINES);
        if skipped > 0 {
            let _ = writeln!(out, "... {skipped} lines before");
        }
        for line in &trace[skipped..] {
            let _ = writeln!(out, "{line}");
        }
        for broken in &self.broken {
            let _ = writeln!(out, "\nBROKEN {broken}");
        }
        let _ = writeln!(
            out,
            "\nreplay: STEADFAST_CHAOS_SEED={} cargo test -p steadfast-tests --test chaos \
             whatever_happens -- --nocapture",
            self.seed
        );
        out
    }

    /// What happened between the layers and what providers saw, in order of time.
    pub(crate) fn trace(&self) -> Vec<String> {
        let notes = self.known.as_ref().map(|known| known.timeline.notes()).unwrap_or_default();
        let notes = notes.into_iter().map(|note| (note.at, note.what.to_string()));
        let seen = self.seen.iter().flat_map(|entry| {
            let name = format!("{} {}", entry.provider, entry.number);
            let fault = entry.fault.as_ref().map(|fault| format!("{fault:?}"));
            let fault = fault.unwrap_or_else(|| "no fault".to_owned());
            let Entry { end, status, bytes, events, .. } = entry;
            let done = format!("{end:?}, status {status:?}, {bytes} bytes, {events} events");
            let ended = entry.ended_at.unwrap_or(Duration::MAX);
            let asked = (entry.at, format!("provider {name} is asked: {fault}"));
            [asked, (ended, format!("provider {name} is done: {done}"))]
        });
        let mut lines: Vec<_> = notes.chain(seen).collect();
        // Stable: what happened at once stays in its own order.
        lines.sort_by_key(|(at, _)| *at);
        let line = |(at, what): (Duration, String)| format!("{:>14.6} {what}", at.as_secs_f64());
        lines.into_iter().map(line).collect()
    }
}

/// One world from its beginning to its end, with a bug planted in it or none.
pub(crate) fn run(seed: u64, bug: Option<Bug>) -> Outcome {
    let court = Court::default();
    let paused = Paused::new();
    // Outside of what may panic, so that there is something to tell.
    let known: Mutex<Option<Known>> = Mutex::new(None);
    let lived = panic::catch_unwind(AssertUnwindSafe(|| {
        paused.runtime.block_on(async {
            let mut world = World::new(seed, bug, &court);
            *known.lock() = Some(Known {
                layers: world.layers,
                policies: world.policies.clone(),
                providers: world.providers(),
                timeline: world.timeline.clone(),
            });
            live(&mut world).await
        })
    }));
    let mut seen = Vec::new();
    match lived {
        Ok(entries) => {
            seen = entries;
            let timers = paused.forgotten_timers();
            court.check(Law::NothingLeft, timers == 0, || format!("{timers} timers are set"));
        }
        Err(panic) => court.broken(Law::NoPanic, words(&*panic).to_owned()),
    }
    Outcome { seed, broken: court.into_list(), known: known.into_inner(), seen }
}

/// Bad weather, then good. What providers saw in all of it.
async fn live(world: &mut World) -> Vec<Entry> {
    let endings = world.weather().await;
    check::all(world, &endings);
    check::at_rest(world);
    drop(endings);
    world.clear_sky().await;
    check::at_rest(world);
    if !world.layers.preset {
        agree::judge(
            &world.court,
            &world.timeline.notes(),
            world.timeline.began(),
            world.layers.breaker.then_some(&world.policies.breaker),
            world.layers.failover.then_some(&world.policies.failover),
        );
    }
    let tasks = Handle::current().metrics().num_alive_tasks();
    world.court.check(Law::NothingLeft, tasks == 0, || format!("{tasks} tasks live"));
    world.journal.entries()
}

fn words(panic: &(dyn Any + Send)) -> &str {
    let fixed = panic.downcast_ref::<&str>().copied();
    fixed.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no words")
}

/// Seeds 1 to `seeds`, on all cores; those that failed, by their number.
pub(crate) fn run_all(seeds: u64) -> Vec<Outcome> {
    let (next, failed) = (AtomicU64::new(1), Mutex::new(Vec::new()));
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed > seeds {
                        return;
                    }
                    let outcome = run(seed, None);
                    if !outcome.broken.is_empty() {
                        failed.lock().push(outcome);
                    }
                }
            });
        }
    });
    let mut failed = failed.into_inner();
    failed.sort_by_key(|outcome| outcome.seed);
    failed
}
