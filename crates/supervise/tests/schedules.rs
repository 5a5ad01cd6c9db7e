//! Thousands of random schedules: every run has one terminal state, whatever happens to it and in which order.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::{collections::HashMap, future::pending};

use common::{Notices, job, watched_by};
use steadfast_core::Reason;
use steadfast_supervise::{GhostPolicy, GhostSweep, NoticeState, RunId, RunRegistry, RunState};
use steadfast_testkit::{fail, ms, secs};
use tokio::{task::JoinHandle, time::sleep};
use tower::ServiceExt;

/// What the caller of a run was given.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Seen {
    Completed,
    Failed,
    Given(Reason),
    Dropped,
    Panicked,
}

async fn schedule(seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let notices = Notices::default();
    let registry = RunRegistry::in_memory().with_notices(notices.sink());
    let service = watched_by(&registry);
    let policy = GhostPolicy { grace: secs(random.u64(30..900)), ..GhostPolicy::default() };
    let sweep = GhostSweep::new(registry.clone(), policy).unwrap();
    let mut runs: Vec<(RunId, JoinHandle<_>)> = Vec::new();
    for _ in 0..random.u32(1..8) {
        let (how, after) = (random.u32(0..5), ms(random.u64(0..400_000)));
        // Most have a child that does the same after a while.
        let nested = service.clone();
        let has_child = random.bool();
        let work = job(move |run| {
            let child = run.child(job(move |_| async move {
                sleep(after).await;
                Ok("child")
            }));
            let service = nested.clone();
            async move {
                if has_child {
                    let _ = service.oneshot(child).await;
                }
                sleep(after).await;
                match how {
                    0 | 1 => Ok("done"),
                    2 => Err(fail(Reason::Format)),
                    3 => panic!("as the schedule has it"),
                    _ => pending().await,
                }
            }
        });
        let run = common::steps(work, random.u32(0..12));
        runs.push((run.id().clone(), tokio::spawn(service.clone().oneshot(run))));
        for _ in 0..random.u32(0..4) {
            let at = random.usize(..runs.len());
            match random.u32(0..6) {
                0 => runs[at].1.abort(),
                1 => drop(registry.cancel(&runs[at].0)),
                2 => drop(sweep.sweep()),
                3 => drop(registry.report(&runs[at].0, Ok(()))),
                _ => sleep(ms(random.u64(0..200_000))).await,
            }
        }
    }
    sleep(secs(601)).await;
    sweep.sweep();
    let mut seen = HashMap::new();
    for (id, run) in runs {
        let what = match run.await {
            Ok(Ok(_)) => Seen::Completed,
            Ok(Err(failure)) if failure.reason() == Reason::Format => Seen::Failed,
            Ok(Err(failure)) => Seen::Given(failure.reason()),
            Err(error) if error.is_panic() => Seen::Panicked,
            Err(_) => Seen::Dropped,
        };
        seen.insert(id, what);
    }
    sleep(ms(1)).await;

    let snapshot = registry.snapshot();
    let records = registry.runs();
    assert_eq!(snapshot.running, 0, "seed {seed}");
    let counts = snapshot.counts;
    let ended = counts.completed
        + counts.failed
        + counts.cancelled
        + counts.watchdog_timeout
        + counts.ghost_sweep;
    assert_eq!((ended, records.len() as u64), (counts.started, counts.started), "seed {seed}");
    let mut keys: Vec<_> = notices.take().into_iter().map(|notice| notice.key).collect();
    keys.sort();
    let mut expected: Vec<_> = records
        .iter()
        .filter(|record| record.state.is_announced())
        .map(|record| format!("run-notice:{}", record.id))
        .collect();
    expected.sort();
    assert_eq!(keys, expected, "seed {seed}: one notice each, and no other");
    for record in &records {
        let announced = matches!(record.notice, NoticeState::Sent(_));
        assert_eq!(announced, record.state.is_announced(), "seed {seed}: {record:?}");
        assert!(record.ended_ms >= Some(record.started_ms), "seed {seed}: {record:?}");
        let late = record.late.is_some();
        // What its caller was given and what is recorded are the same, unless it was late.
        let fits = match seen.get(&record.id) {
            None => true,
            Some(Seen::Completed) => record.state == RunState::Completed,
            Some(Seen::Failed) => record.state == RunState::Failed,
            Some(Seen::Panicked) => record.state == RunState::Failed || late,
            Some(Seen::Given(Reason::Timeout)) => {
                late || matches!(record.state, RunState::WatchdogTimeout | RunState::GhostSweep)
            }
            Some(Seen::Given(_)) => record.state == RunState::Cancelled,
            // Its end may have been decided before.
            Some(Seen::Dropped) => record.state != RunState::Failed,
        };
        assert!(fits, "seed {seed}: {record:?}, but {:?}", seen.get(&record.id));
    }
}

#[test]
fn one_terminal_state_a_run_in_every_schedule() {
    let seeds = std::env::var("STEADFAST_SCHEDULES").map_or(10_000, |all| all.parse().unwrap());
    // Panics are a part of the schedules.
    std::panic::set_hook(Box::new(|info| {
        if info.payload().downcast_ref() != Some(&"as the schedule has it") {
            eprintln!("{info}");
        }
    }));
    for seed in 0..seeds {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_time().start_paused(true).build().unwrap();
        runtime.block_on(schedule(seed));
    }
}
