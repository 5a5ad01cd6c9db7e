//! Finds timers that are still set at the end of a run.

use std::{
    mem,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Waker},
    time::Duration,
};

use steadfast_tests::seeds;
use tokio::{
    runtime::Runtime,
    time::{Instant, sleep, sleep_until},
};

/// Longer than any timer that could be leaked.
const SILENCE: Duration = Duration::from_secs(400 * 86_400);
/// Aligns the timers of two runtimes to the same tick.
const TICK: Duration = Duration::from_millis(1);

/// A runtime on a paused clock that counts how often it parked: without a task to run, that is how
/// often the clock was advanced to the next timer.
pub(crate) struct Paused {
    pub(crate) runtime: Runtime,
    began: Instant,
    parks: Arc<AtomicU64>,
}

impl Paused {
    pub(crate) fn new() -> Self {
        let parks = Arc::new(AtomicU64::new(0));
        let counter = parks.clone();
        let runtime = seeds::paused()
            .on_thread_park(move || _ = counter.fetch_add(1, Ordering::Relaxed))
            .build()
            .unwrap();
        let began = runtime.block_on(async { Instant::now() });
        Self { runtime, began, parks }
    }

    /// How many leaked timers fire.
    ///
    /// Even a single timer advances the clock in several steps, one for each level of the timer
    /// wheel. So the steps of the same sleep are compared with those of a fresh runtime.
    pub(crate) fn forgotten_timers(&self) -> u64 {
        let now = self.runtime.block_on(async { self.began.elapsed() });
        let fresh = Self::new();
        fresh.runtime.block_on(async { sleep_until(fresh.began + now).await });
        self.steps().abs_diff(fresh.steps())
    }

    /// The steps of a long sleep.
    fn steps(&self) -> u64 {
        self.runtime.block_on(async {
            sleep(TICK).await;
            let before = self.parks.load(Ordering::Relaxed);
            sleep(SILENCE).await;
            self.parks.load(Ordering::Relaxed) - before
        })
    }
}

#[test]
fn a_leaked_timer_is_found() {
    for (timers, seconds) in [(0, 0), (1, 1), (1, 86_400), (2, 77)] {
        let paused = Paused::new();
        paused.runtime.block_on(async {
            sleep(Duration::from_millis(12_345)).await;
            for timer in 0..timers {
                let mut timer = Box::pin(sleep(Duration::from_secs(seconds + timer)));
                let _ = timer.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                mem::forget(timer);
            }
        });
        assert_eq!(paused.forgotten_timers() > 0, timers > 0, "{timers} of {seconds} s");
    }
}
