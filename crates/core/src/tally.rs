//! A count that many cores add to.

use std::{
    fmt,
    sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
};

/// Places that one thread has to itself, for as long as it lives. As many as a large machine has
/// cores: threads that work, work for long.
const OWNED: usize = 64;

/// Places for all other threads.
const SHARED: usize = 8;

/// A count that is added to by every call and read seldom.
///
/// A thread adds in a place that is its own, without a locked instruction; when there are more
/// threads than places, in one that a few share. So cores do not wait for one another's cache line.
/// The sum is exact once nobody adds any more. One takes nine kilobytes: it is for what there is one
/// of, not for what there is one of for each key.
pub struct Tally {
    owned: Box<[Place; OWNED]>,
    shared: [Place; SHARED],
    /// What was counted before the last reset.
    before: AtomicU64,
}

/// Two cache lines apart, because processors fetch them in pairs.
#[derive(Default)]
#[repr(align(128))]
struct Place(AtomicU64);

/// The place of one thread, given back when the thread ends.
enum Seat {
    Owned(usize),
    Shared(usize),
}

static TAKEN: [AtomicBool; OWNED] = [const { AtomicBool::new(false) }; OWNED];

impl Seat {
    fn take() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        // Acquires what the thread before it has counted.
        let free = TAKEN.iter().position(|taken| !taken.swap(true, Ordering::AcqRel));
        free.map_or_else(
            || Self::Shared(NEXT.fetch_add(1, Ordering::Relaxed) % SHARED),
            Self::Owned,
        )
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if let Self::Owned(at) = self {
            TAKEN[*at].store(false, Ordering::Release);
        }
    }
}

thread_local! {
    static SEAT: Seat = Seat::take();
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            owned: Box::new(std::array::from_fn(|_| Place::default())),
            shared: Default::default(),
            before: AtomicU64::new(0),
        }
    }
}

impl Tally {
    /// Adds one.
    #[inline]
    pub fn add(&self) {
        let added = SEAT.try_with(|seat| match seat {
            Seat::Owned(at) => {
                // Nobody else writes there, so nothing is lost between the two.
                let place = &self.owned[*at].0;
                place.store(place.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            }
            Seat::Shared(at) => drop(self.shared[*at].0.fetch_add(1, Ordering::Relaxed)),
        });
        if added.is_err() {
            // The thread is ending and has given its place back.
            self.shared[0].0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The sum.
    pub fn get(&self) -> u64 {
        self.all().saturating_sub(self.before.load(Ordering::Relaxed))
    }

    /// Back to zero.
    pub fn reset(&self) {
        self.before.store(self.all(), Ordering::Relaxed);
    }

    /// Everything since it was made.
    fn all(&self) -> u64 {
        let places = self.owned.iter().chain(&self.shared);
        places.map(|place| place.0.load(Ordering::Relaxed)).sum()
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

    /// More than have a place to themselves.
    const THREADS: u64 = 2 * OWNED as u64;

    #[test]
    fn nothing_is_lost_between_threads() {
        let tally = Tally::default();
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| (0..1_000).for_each(|_| tally.add()));
            }
        });
        assert_eq!(tally.get(), 1_000 * THREADS);
        tally.reset();
        assert_eq!(tally.get(), 0);
        // The places of threads that have ended serve others.
        (0..THREADS).for_each(|_| std::thread::scope(|scope| drop(scope.spawn(|| tally.add()))));
        assert_eq!(tally.get(), THREADS);
    }
}
