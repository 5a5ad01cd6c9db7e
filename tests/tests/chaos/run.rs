//! Runs seeds and reports those that fail.

use std::{
    any::Any,
    fmt::Write as _,
    panic::{self, AssertUnwindSafe},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use steadfast::{
    failover::TargetSpec,
    sim::{Entry, FaultPlan},
};
use steadfast_tests::seeds;
use tokio::runtime::Handle;

use crate::{
    bugs::Bug,
    check,
    invariants::{Invariant, Violation, Violations},
    layers::Layers,
    models,
    timeline::Timeline,
    timers::Paused,
    world::{Policies, World},
};

/// The most lines of a trace in a report.
const MOST_LINES: usize = 400;

/// The result of one seed.
#[derive(Debug)]
pub(crate) struct Outcome {
    seed: u64,
    pub(crate) violations: Vec<Violation>,
    /// Its configuration and its timeline. Formatted only for a report: that takes as long as the
    /// run.
    known: Option<WorldInfo>,
    seen: Vec<Entry>,
}

/// The configuration and timeline of a run, known even if it panics.
#[derive(Debug)]
struct WorldInfo {
    layers: Layers,
    policies: Arc<Policies>,
    providers: Vec<(FaultPlan, TargetSpec)>,
    timeline: Timeline,
}

impl Outcome {
    /// The seed and the first violated invariant.
    pub(crate) fn line(&self) -> String {
        let first = self
            .violations
            .first()
            .map(|violation| violation.invariant.name())
            .unwrap_or("nothing");
        format!("seed {}: {first}", self.seed)
    }

    /// The configuration, the trace, the violations, and the command to replay it.
    pub(crate) fn report(&self) -> String {
        self.report_with(MOST_LINES)
    }

    /// The same with that many lines of the trace, the last ones.
    pub(crate) fn report_with(&self, lines: usize) -> String {
        let mut out = format!("seed {}\n", self.seed);
        if let Some(WorldInfo { layers, policies, providers, .. }) = &self.known {
            let _ = writeln!(out, "{layers:?}\n{policies:#?}");
            for (faults, spec) in providers {
                let _ = writeln!(out, "{spec:?}\n{faults:#?}");
            }
        }
        let trace = self.trace();
        let skipped = trace.len().saturating_sub(lines);
        if skipped > 0 {
            let _ = writeln!(out, "... {skipped} lines before");
        }
        for line in &trace[skipped..] {
            let _ = writeln!(out, "{line}");
        }
        for violation in &self.violations {
            let _ = writeln!(out, "\nVIOLATION {violation}");
        }
        let _ = writeln!(
            out,
            "\nreplay: STEADFAST_CHAOS_SEED={} cargo test -p steadfast-tests --test chaos \
             invariants_hold -- --nocapture",
            self.seed
        );
        out
    }

    /// The timeline and the providers' journals, in order of time.
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
        // Stable: simultaneous lines keep their order.
        lines.sort_by_key(|(at, _)| *at);
        let line = |(at, what): (Duration, String)| format!("{:>14.6} {what}", at.as_secs_f64());
        lines.into_iter().map(line).collect()
    }
}

/// Runs one seed, with a planted bug or without.
pub(crate) fn run(seed: u64, bug: Option<Bug>) -> Outcome {
    let violations = Violations::default();
    let paused = Paused::new();
    // Outside of what may panic, so that the report has it.
    let known: Mutex<Option<WorldInfo>> = Mutex::new(None);
    let lived = panic::catch_unwind(AssertUnwindSafe(|| {
        paused.runtime.block_on(async {
            let mut world = World::new(seed, bug, &violations);
            *known.lock() = Some(WorldInfo {
                layers: world.layers,
                policies: world.policies.clone(),
                providers: world.providers(),
                timeline: world.timeline.clone(),
            });
            run_world(&mut world).await
        })
    }));
    let mut seen = Vec::new();
    match lived {
        Ok(entries) => {
            seen = entries;
            let timers = paused.forgotten_timers();
            violations
                .check(Invariant::NothingLeft, timers == 0, || format!("{timers} timers are set"));
        }
        Err(panic) => violations.add(Invariant::NoPanic, panic_message(&*panic).to_owned()),
    }
    Outcome { seed, violations: violations.into_list(), known: known.into_inner(), seen }
}

/// Runs the callers with faults, then without. Returns the journal.
async fn run_world(world: &mut World) -> Vec<Entry> {
    let endings = world.run_callers().await;
    check::all(world, &endings);
    check::at_rest(world);
    drop(endings);
    world.recover().await;
    check::at_rest(world);
    if !world.layers.preset {
        models::compare(world);
    }
    let tasks = Handle::current().metrics().num_alive_tasks();
    world.violations.check(Invariant::NothingLeft, tasks == 0, || format!("{tasks} tasks live"));
    world.journal.entries()
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let fixed = panic.downcast_ref::<&str>().copied();
    fixed.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

/// Seeds 1 to `seeds`, on all cores; those that failed, by their number.
pub(crate) fn run_all(seeds: u64) -> Vec<Outcome> {
    let failed = seeds::run_all(seeds, |seed| {
        Some(run(seed, None)).filter(|outcome| !outcome.violations.is_empty())
    });
    failed.into_iter().flatten().collect()
}
