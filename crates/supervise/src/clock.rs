//! How long a run may take, while it works itself and while it waits for its children.

use std::time::Duration;

use steadfast_core::time::later;
use tokio::time::Instant;

/// The clock of one run: its own time counts, that of its live children does not, and nothing moves it beyond the hard deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RunClock {
    started: Instant,
    /// How long the run may take without the time in which it had a live child.
    budget: Duration,
    /// The end in any case.
    hard: Instant,
    /// The time in which it had a live child, without the present one.
    spared: Duration,
    waits_since: Option<Instant>,
}

impl RunClock {
    pub(crate) const fn new(started: Instant, budget: Duration, hard: Instant) -> Self {
        Self { started, budget, hard, spared: Duration::ZERO, waits_since: None }
    }

    pub(crate) const fn hard(&self) -> Instant {
        self.hard
    }

    pub(crate) fn elapsed(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.started)
    }

    /// The time in which it had a live child.
    pub(crate) fn spared(&self, now: Instant) -> Duration {
        let present = self.waits_since.map(|since| now.saturating_duration_since(since));
        self.spared + present.unwrap_or_default()
    }

    /// Whether it has a live child from `now` on.
    pub(crate) fn waits(&mut self, waits: bool, now: Instant) {
        match (waits, self.waits_since) {
            (true, None) => self.waits_since = Some(now),
            (false, Some(_)) => {
                self.spared = self.spared(now);
                self.waits_since = None;
            }
            _ => {}
        }
    }

    /// When the run is to be given up, as far as is known. With a live child: at the hard deadline.
    pub(crate) fn due(&self) -> Instant {
        match self.waits_since {
            Some(_) => self.hard,
            None => later(later(self.started, self.budget), self.spared).min(self.hard),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against a model that walks through the milliseconds.
        #[test]
        fn own_time_counts_and_that_of_children_does_not(
            budget in 1..40_u64,
            hard in 1..60_u64,
            waits in proptest::collection::vec(any::<bool>(), 60),
        ) {
            let start = Instant::now();
            let at = |ms| start + Duration::from_millis(ms);
            let mut clock = RunClock::new(start, Duration::from_millis(budget), at(hard));
            let (mut own, mut over) = (0, None);
            for (ms, waits) in (0_u64..).zip(&waits) {
                clock.waits(*waits, at(ms));
                let due = clock.due() <= at(ms);
                prop_assert_eq!(due, own >= budget && !waits || ms >= hard, "at {}", ms);
                over = over.or(due.then_some(ms));
                own += u64::from(!waits);
            }
            prop_assert!(over.is_none_or(|ms| ms <= hard));
            let waited = waits.iter().filter(|waits| **waits).count();
            prop_assert_eq!(clock.spared(at(60)).as_millis() as usize, waited);
        }
    }
}
