//! How long calls are refused.

use std::time::Duration;

use steadfast_core::{Backoff, Jitter};
use tokio::time::Instant;

use crate::{BreakerPolicy, verdict::Blame};

/// A time in which calls are refused, and what has happened in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rest {
    pub(crate) since: Instant,
    pub(crate) until: Instant,
    /// From when on a probe may be made.
    pub(crate) probe_from: Instant,
    /// The provider itself asked for it.
    pub(crate) hinted: bool,
    /// Probes that succeeded.
    pub(crate) successes: u32,
    /// Lone calls that succeeded since one failed.
    pub(crate) streak: u32,
    /// When the last lone call was let through, or the rest began.
    pub(crate) last_lone: Instant,
}

impl Rest {
    pub(crate) fn new(since: Instant, until: Instant, lead: Duration, hinted: bool) -> Self {
        let mut rest = Self {
            since,
            until,
            probe_from: since,
            hinted,
            successes: 0,
            streak: 0,
            last_lone: since,
        };
        rest.aim_probe(lead);
        rest
    }

    /// Moves its end, if that is later.
    pub(crate) fn lengthen(&mut self, until: Instant, lead: Duration) {
        self.until = self.until.max(until);
        self.aim_probe(lead);
    }

    /// The probe is let through `lead` before the end, never in the first half.
    fn aim_probe(&mut self, lead: Duration) {
        let whole = self.until.saturating_duration_since(self.since);
        self.probe_from = self.since + (whole - lead.min(whole / 2));
    }
}

/// How long to rest after `blame` when `failed_probes` have failed since it last was well. No
/// blame: it was slow.
pub(crate) fn after(
    blame: Option<Blame>,
    failed_probes: u32,
    policy: &BreakerPolicy,
    rng: &mut fastrand::Rng,
) -> Duration {
    let (base, cap) = bounds(blame, policy);
    // What the provider asked for may be beyond the cap; then it is kept as it is.
    let backoff = Backoff::new(base, cap.max(base)).unwrap_or_default();
    let backoff = backoff.jitter(Jitter::Additive(policy.jitter)).unwrap_or(backoff);
    backoff.delay(failed_probes, Duration::ZERO, rng)
}

/// The shortest rest after `blame`, and where its doubling ends.
pub(crate) fn bounds(blame: Option<Blame>, policy: &BreakerPolicy) -> (Duration, Duration) {
    let Some(Blame { reason, hint, permanent, .. }) = blame else {
        return (policy.cooldown, policy.max_cooldown);
    };
    let own = policy.table.rule(reason).cooldown.unwrap_or(policy.cooldown);
    let asked = hint.map_or(own, |hint| hint.min(policy.max_permanent));
    if permanent {
        (asked.max(policy.permanent_cooldown), policy.max_permanent)
    } else {
        (asked, policy.max_cooldown)
    }
}

/// `now + wait`, or a year from now when that can not be represented.
pub(crate) fn later(now: Instant, wait: Duration) -> Instant {
    now.checked_add(wait).unwrap_or_else(|| now + Duration::from_secs(31_536_000))
}
