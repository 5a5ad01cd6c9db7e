//! Times a loop on a machine with other load.

use std::time::Duration;

use tokio::time::Instant;

use crate::Case;

/// The time of one turn of one case. Long enough for the clock, short enough that most turns are not
/// interrupted.
const TURN: Duration = Duration::from_micros(500);

/// Nanoseconds per call of each case: the lower quartile of `rounds` turns, which the cases take
/// alternately. Other load can only slow a turn down; the minimum would depend on luck.
pub fn nanos(cases: &mut [&mut Case], rounds: usize) -> Vec<f64> {
    let calls: Vec<u32> = cases.iter_mut().map(|case| calibrate(case)).collect();
    let mut turns: Vec<Vec<f64>> = vec![Vec::with_capacity(rounds); cases.len()];
    for _ in 0..rounds {
        for ((case, calls), turns) in cases.iter_mut().zip(&calls).zip(&mut turns) {
            turns.push(turn(case, *calls));
        }
    }
    turns.iter_mut().map(|turns| quartile(turns)).collect()
}

/// How many calls fill a turn. Also warms up the case.
fn calibrate(case: &mut Case) -> u32 {
    (case.run)(100);
    let mut calls = 64;
    loop {
        let started = Instant::now();
        (case.run)(calls);
        if started.elapsed() >= TURN || calls >= 1 << 24 {
            return calls;
        }
        calls *= 2;
    }
}

fn turn(case: &mut Case, calls: u32) -> f64 {
    let started = Instant::now();
    (case.run)(calls);
    started.elapsed().as_secs_f64() * 1e9 / f64::from(calls)
}

/// The value a quarter of the way up.
pub(crate) fn quartile(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 4]
}
