//! The time in which a circuit is open.

use std::time::Duration;

use tokio::time::Instant;

use crate::time::later;

/// A time in which calls are refused, and what has happened in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rest {
    pub(super) since: Instant,
    pub(super) until: Instant,
    /// From when on a probe may be made.
    pub(super) probe_from: Instant,
    /// The provider itself asked for it.
    pub(super) hinted: bool,
    /// A probe before its end would be refused.
    pub(super) unprobed: bool,
    /// It follows a failure that does not pass by itself.
    pub(super) permanent: bool,
    /// Asking before the probe is in vain.
    pub(super) refuses: bool,
    /// Probes that succeeded.
    pub(super) successes: u32,
    /// Lone calls that succeeded since one failed.
    pub(super) streak: u32,
    /// When the last lone call was let through, or the rest began.
    pub(super) last_lone: Instant,
}

impl Rest {
    /// A rest that is over.
    pub(super) fn none(now: Instant) -> Self {
        Self::new(now, now, false, Duration::ZERO)
    }

    pub(super) fn new(since: Instant, until: Instant, hinted: bool, lead: Duration) -> Self {
        let mut rest = Self {
            since,
            until,
            probe_from: since,
            hinted,
            unprobed: false,
            permanent: false,
            refuses: false,
            successes: 0,
            streak: 0,
            last_lone: since,
        };
        rest.aim_probe(lead);
        rest
    }

    /// Moves its end to `wait` from `now`, if that is later. `hinted` when the provider asked for it.
    pub(super) fn lengthen(&mut self, now: Instant, wait: Duration, hinted: bool, lead: Duration) {
        self.until = self.until.max(later(now, wait));
        self.hinted |= hinted;
        self.aim_probe(lead);
    }

    /// Moves its end to `wait` from `now`, if that is later, and its probe to that end.
    pub(super) fn lengthen_unprobed(&mut self, now: Instant, wait: Duration) {
        let until = later(now, wait);
        if until > self.until {
            (self.until, self.probe_from, self.unprobed) = (until, until, true);
        }
    }

    /// The probe is let through `lead` before the end, never in the first half, and not before a time
    /// that the provider asked for.
    fn aim_probe(&mut self, lead: Duration) {
        let whole = self.until.saturating_duration_since(self.since);
        let early = !self.hinted && !self.unprobed;
        let lead = if early { lead.min(whole / 2) } else { Duration::ZERO };
        self.probe_from = self.since + (whole - lead);
    }
}
