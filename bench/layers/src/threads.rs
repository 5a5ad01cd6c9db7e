//! Calls on several threads that share a layer's state.

use std::{
    sync::{
        Barrier,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use tokio::{runtime::Handle, time::Instant};

use crate::{Case, measure::quartile, ours, peers};

/// How long the threads run at a time.
const TURN: Duration = Duration::from_millis(20);
/// Calls between two checks whether to stop.
const BATCH: u32 = 256;

/// One row: a name, and the nanoseconds of core time per call, each thread on its own core as far as
/// there are any.
#[derive(Debug)]
pub struct Row {
    /// Which layer.
    pub name: &'static str,
    /// By threads: 1, 2, 8, all on one key; then 8 on 16 keys.
    pub nanos: [f64; 4],
}

/// Threads, and how many keys they are spread over.
const SETTINGS: [(usize, usize); 4] = [(1, 1), (2, 1), (8, 1), (8, 16)];

/// Measures the layers that share state.
pub fn rows(handle: &Handle, rounds: usize) -> Vec<Row> {
    let bare = |threads, keys| ours::shared("bare", threads, keys);
    let bare = measured(handle, rounds, bare);
    let mut rows: Vec<Row> = ["retry", "breaker", "failover", "four"]
        .into_iter()
        .map(|name| Row {
            name,
            nanos: measured(handle, rounds, |threads, keys| ours::shared(name, threads, keys)),
        })
        .collect();
    rows.push(Row {
        name: "tower-resilience breaker",
        nanos: measured(handle, rounds, |threads, _| peers::resilience_shared(threads)),
    });
    for row in &mut rows {
        for (own, bare) in row.nanos.iter_mut().zip(bare) {
            *own -= bare;
        }
    }
    rows
}

fn measured(handle: &Handle, rounds: usize, cases: impl Fn(usize, usize) -> Vec<Case>) -> [f64; 4] {
    SETTINGS.map(|(threads, keys)| {
        let mut cases = {
            let _inside = handle.enter();
            cases(threads, keys)
        };
        let mut turns: Vec<f64> = (0..rounds).map(|_| turn(handle, &mut cases)).collect();
        quartile(&mut turns)
    })
}

/// Nanoseconds of core time a call takes while all of `cases` run, each on its thread.
fn turn(handle: &Handle, cases: &mut [Case]) -> f64 {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let (threads, start, stop) =
        (cases.len(), Barrier::new(cases.len() + 1), AtomicBool::new(false));
    let mut calls = 0;
    let mut took = Duration::ZERO;
    thread::scope(|scope| {
        let running: Vec<_> = cases
            .iter_mut()
            .map(|case| {
                let (start, stop) = (&start, &stop);
                scope.spawn(move || {
                    let _inside = handle.enter();
                    start.wait();
                    let mut calls = 0u64;
                    while !stop.load(Ordering::Relaxed) {
                        (case.run)(BATCH);
                        calls += u64::from(BATCH);
                    }
                    calls
                })
            })
            .collect();
        start.wait();
        let started = Instant::now();
        #[expect(clippy::disallowed_methods, reason = "the main thread has nothing else to do")]
        thread::sleep(TURN);
        stop.store(true, Ordering::Relaxed);
        took = started.elapsed();
        calls = running.into_iter().map(|thread| thread.join().unwrap_or_default()).sum::<u64>();
    });
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    let (cores, calls) = (threads.min(cores) as f64, calls.max(1) as f64);
    took.as_secs_f64() * 1e9 * cores / calls
}
