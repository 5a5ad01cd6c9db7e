//! What the usual call touches of a breaker: a few words and no lock.

use std::{
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
    time::Duration,
};

use tokio::time::Instant;

/// No generation: calls have to ask.
const SHUT: u64 = u64::MAX;
/// The bit of [`Front::tally`] that says successes are counted there; the count is below it, the
/// version above.
const COUNTING: u64 = 1 << 32;
const COUNT: u64 = COUNTING - 1;

/// The part of a breaker that calls share without its lock: whether the door is open or shut for
/// good, and how many calls have succeeded since the machine was last told.
///
/// The machine's owner, under its lock, first [`collect`](Self::collect)s what was counted, which
/// stops the counting, then lets the machine do what it has to, and then
/// [`publish`](Self::publish)es what is so from now on. Each publication has a new version. So a
/// call that saw an older one can not count itself into a bucket, or a generation, that is over.
///
/// A refusal only reads. What it reads may be of two publications; then it says what was true a
/// moment ago.
#[derive(Debug)]
pub(crate) struct Front {
    /// The generation under which every call passes, or [`SHUT`].
    door: AtomicU64,
    /// Version, [`COUNTING`], count.
    tally: AtomicU64,
    /// Until when successes are counted here, in nanoseconds since the cell's epoch.
    ends: AtomicU64,
    /// Of the last publication; written under the lock.
    version: AtomicU32,
    bar: AtomicBar,
    /// Calls refused, by the machine or here.
    refused: AtomicU64,
    /// What the times are counted from.
    epoch: Instant,
}

/// What a machine knows beforehand: every call before `before` is refused, one that has nowhere
/// else to go only before `lone` too, and should come back at `until` or at `lone`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bar {
    pub(crate) before: Instant,
    /// `None`: such a call is like any other.
    pub(crate) lone: Option<Instant>,
    pub(crate) until: Instant,
}

/// A [`Bar`] in nanoseconds since the epoch.
#[derive(Debug, Default)]
struct AtomicBar {
    /// Zero: there is no bar.
    before: AtomicU64,
    lone: AtomicU64,
    until: AtomicU64,
}

impl Front {
    /// Nothing published yet.
    pub(crate) fn new(epoch: Instant) -> Self {
        Self {
            door: AtomicU64::new(SHUT),
            tally: AtomicU64::new(0),
            ends: AtomicU64::new(0),
            version: AtomicU32::new(0),
            bar: AtomicBar::default(),
            refused: AtomicU64::new(0),
            epoch,
        }
    }

    /// The generation under which calls pass without asking, if they do.
    #[inline]
    pub(crate) fn door(&self) -> Option<u64> {
        let generation = self.door.load(Ordering::Relaxed);
        (generation != SHUT).then_some(generation)
    }

    /// When to come back, if a call at `now` is refused without asking; `lone` when it has nowhere
    /// else to go.
    pub(crate) fn bars(&self, now: Instant, lone: bool) -> Option<Duration> {
        let before = self.bar.before.load(Ordering::Acquire);
        let lone = if lone { self.bar.lone.load(Ordering::Acquire) } else { u64::MAX };
        let at = self.nanos(now);
        if at >= before.min(lone) {
            return None;
        }
        let back = self.bar.until.load(Ordering::Acquire).min(lone);
        Some(Duration::from_nanos(back.saturating_sub(at)))
    }

    /// Notes a refusal.
    pub(crate) fn refuse(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// How many calls were refused.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Counts a call of `generation` that succeeded at `now`. When it returns false the machine
    /// has to be told instead.
    #[inline]
    pub(crate) fn count(&self, generation: u64, now: Instant) -> bool {
        let at = self.nanos(now);
        // Read first, exchanged last: if anything was published in between, the exchange fails.
        let mut tally = self.tally.load(Ordering::Acquire);
        while tally & COUNTING != 0
            && self.door.load(Ordering::Acquire) == generation
            && at < self.ends.load(Ordering::Acquire)
        {
            let counted = self.tally.compare_exchange_weak(
                tally,
                tally + 1,
                Ordering::AcqRel,
                Ordering::Acquire,
            );
            match counted {
                Ok(_) => return true,
                Err(now) => tally = now,
            }
        }
        false
    }

    /// Takes what was counted; nothing is counted until the next publication. Under the lock.
    pub(crate) fn collect(&self) -> u32 {
        // Zero means that nothing is counted, and only whoever has the lock changes that.
        if self.tally.load(Ordering::Acquire) == 0 {
            return 0;
        }
        let tally = self.tally.swap(0, Ordering::AcqRel);
        // Fits: that is what the bits are for.
        (tally & COUNT) as u32
    }

    /// Says under which generation calls pass, until when successes are counted here, and what
    /// calls are refused. Under the lock, after [`collect`](Self::collect).
    pub(crate) fn publish(&self, door: Option<u64>, ends: Option<Instant>, bar: Option<Bar>) {
        self.door.store(door.unwrap_or(SHUT), Ordering::Release);
        if let Some(bar) = bar {
            let lone = bar.lone.map_or(u64::MAX, |lone| self.nanos(lone));
            self.bar.until.store(self.nanos(bar.until), Ordering::Release);
            self.bar.lone.store(lone, Ordering::Release);
            self.bar.before.store(self.nanos(bar.before), Ordering::Release);
        } else {
            self.bar.before.store(0, Ordering::Release);
        }
        let Some(ends) = ends else { return };
        self.ends.store(self.nanos(ends), Ordering::Release);
        let version = self.version.load(Ordering::Relaxed).wrapping_add(1);
        self.version.store(version, Ordering::Relaxed);
        // One bit is the flag's; versions come around after two billion publications.
        self.tally.store((u64::from(version) << 33) | COUNTING, Ordering::Release);
    }

    /// From the epoch to `at` in one word; enough for half a millennium.
    #[inline]
    fn nanos(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.epoch);
        since.as_secs().saturating_mul(1_000_000_000).saturating_add(since.subsec_nanos().into())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use parking_lot::Mutex;

    use super::*;

    #[test]
    fn counts_only_what_was_published() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let front = Front::new(start);
        assert!(front.door().is_none() && !front.count(0, start));
        front.publish(Some(3), Some(at(100)), None);
        assert_eq!(front.door(), Some(3));
        assert!(front.count(3, at(99)) && front.count(3, start));
        assert!(!front.count(3, at(100)), "the bucket is over");
        assert!(!front.count(2, start), "a straggler");
        assert_eq!(front.collect(), 2);
        assert!(!front.count(3, start), "collected and not yet published");
        front.publish(Some(3), None, None);
        assert!(front.door() == Some(3) && !front.count(3, start), "each is to be told");
        front.publish(None, None, None);
        assert!(front.door().is_none());
        assert_eq!(front.collect(), 0);
    }

    #[test]
    fn bars_until_the_machine_may_say_otherwise() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let ms = |ms| Some(Duration::from_millis(ms));
        let front = Front::new(start);
        assert_eq!(front.bars(start, false), None);
        let bar = Bar { before: at(500), lone: Some(at(100)), until: at(900) };
        front.publish(None, None, Some(bar));
        assert_eq!(front.bars(at(1), false), ms(899));
        assert_eq!(front.bars(at(499), false), ms(401));
        assert_eq!(front.bars(at(500), false), None, "it may be the probe");
        assert_eq!(front.bars(at(99), true), ms(1));
        assert_eq!(front.bars(at(100), true), None, "it may pass");
        front.publish(None, None, Some(Bar { lone: None, ..bar }));
        assert_eq!(front.bars(at(100), true), ms(800));
        front.publish(Some(1), None, None);
        assert_eq!(front.bars(at(1), false), None);
    }

    /// Four threads count, one moves the generation on. Whatever a thread was told is counted is
    /// collected once, under the generation that the thread meant.
    #[test]
    fn loses_and_doubles_nothing() {
        let start = Instant::now();
        let later = start + Duration::from_secs(1);
        let front = Front::new(start);
        let book = Mutex::new(vec![]);
        let stop = AtomicBool::new(false);
        front.publish(Some(0), Some(later), None);
        let counted: Vec<Vec<u64>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        let mut mine = vec![0u64; 1_000];
                        while !stop.load(Ordering::Relaxed) {
                            if let Some(generation) = front.door()
                                && front.count(generation, start)
                            {
                                mine[generation as usize] += 1;
                            }
                        }
                        mine
                    })
                })
                .collect();
            for generation in 1..1_000u64 {
                for _ in 0..50 {
                    std::hint::spin_loop();
                }
                let mut book = book.lock();
                book.push(u64::from(front.collect()));
                front.publish(Some(generation), Some(later), None);
            }
            stop.store(true, Ordering::Relaxed);
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        book.lock().push(u64::from(front.collect()));
        for (generation, collected) in book.lock().iter().enumerate() {
            let told: u64 = counted.iter().map(|mine| mine[generation]).sum();
            assert_eq!(told, *collected, "generation {generation}");
        }
    }
}
