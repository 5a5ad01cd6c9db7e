//! A count that many cores add to.

use std::{
    cell::Cell,
    fmt,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
};

/// Places to count in. More cores than this share some; a count costs this many cache lines.
const PLACES: usize = 8;

/// A count that is added to by every call and read seldom.
///
/// Each thread adds in a place that is its own, as far as there are enough, so cores do not wait for
/// one another's cache line. The sum is exact once nobody adds any more.
#[derive(Default)]
pub struct Tally([Place; PLACES]);

/// Two cache lines apart, because processors fetch them in pairs.
#[derive(Default)]
#[repr(align(128))]
struct Place(AtomicU64);

/// The place of the thread that asks.
fn place() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static MINE: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    MINE.with(|mine| {
        if mine.get() == usize::MAX {
            mine.set(NEXT.fetch_add(1, Ordering::Relaxed) % PLACES);
        }
        mine.get()
    })
}

impl Tally {
    /// Adds one.
    #[inline]
    pub fn add(&self) {
        self.0[place()].0.fetch_add(1, Ordering::Relaxed);
    }

    /// The sum.
    pub fn get(&self) -> u64 {
        self.0.iter().map(|place| place.0.load(Ordering::Relaxed)).sum()
    }

    /// Back to zero. What is added meanwhile may be lost.
    pub fn reset(&self) {
        for place in &self.0 {
            place.0.store(0, Ordering::Relaxed);
        }
    }
}

impl fmt::Debug for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tally({})", self.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost_between_threads() {
        let tally = Tally::default();
        std::thread::scope(|scope| {
            for _ in 0..2 * PLACES {
                scope.spawn(|| (0..1_000).for_each(|_| tally.add()));
            }
        });
        assert_eq!(tally.get(), 2_000 * PLACES as u64);
        tally.reset();
        assert_eq!(tally.get(), 0);
    }
}
