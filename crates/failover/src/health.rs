//! What is known of one provider, model or credential: a pure machine that is told the time.

use std::{fmt, time::Duration};

use steadfast_core::Reason;
use tokio::time::Instant;

use crate::policy::{Blame, FailoverPolicy};

/// How a target is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Status {
    /// Nothing is wrong with it.
    #[default]
    Healthy,
    /// It failed since it last answered.
    Degraded,
    /// It failed three times in a row (by default), or in a way that does not pass by itself.
    Down,
}

impl Status {
    /// The name used in logs and JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Status::Healthy => "healthy",
            Status::Degraded => "degraded",
            Status::Down => "down",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The last failure of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LastError {
    /// Why.
    pub reason: Reason,
    /// What the provider said: bounded, secrets masked.
    pub message: Box<str>,
    /// When.
    pub at: Instant,
}

/// Why and until when a target is left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Cooldown {
    /// Until when.
    pub until: Instant,
    /// From when on one call at a time may see whether it is over.
    pub probe_from: Instant,
    /// Why.
    pub reason: Reason,
    /// The provider, or an operator, asked for exactly this time.
    pub asked: bool,
    /// Other models of the provider may stand in while it lasts.
    pub(crate) downgrade: bool,
}

/// What is known of one provider, model or credential.
#[derive(Clone, Debug, Default)]
pub(crate) struct Health {
    pub(crate) errors: u64,
    pub(crate) consecutive: u32,
    pub(crate) last_error: Option<LastError>,
    pub(crate) last_success: Option<Instant>,
    /// The latest cooldown, over or not, until something succeeds.
    cooldown: Option<Cooldown>,
    /// How many failures in a row were of the kind that does not pass by itself.
    permanent: u32,
    /// Calls admitted under an earlier one decide nothing.
    generation: u64,
    probe: Option<Probe>,
}

#[derive(Clone, Copy, Debug)]
struct Probe {
    mark: u64,
    until: Instant,
}

/// What a failure changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failed {
    /// It was counted; nothing cools because of it.
    Counted,
    /// A call from before the cooldown failed too; at most it lasts longer now.
    Extended,
    /// It cools from now on.
    Cooled {
        /// For how long.
        wait: Duration,
        /// It did not before.
        fresh: bool,
    },
}

impl Health {
    /// The cooldown, while it lasts.
    pub(crate) fn cooling(&self, now: Instant) -> Option<Cooldown> {
        self.cooldown.filter(|cooldown| cooldown.until > now)
    }

    /// Until when it cools, over or not.
    pub(crate) fn until(&self) -> Option<Instant> {
        self.cooldown.map(|cooldown| cooldown.until)
    }

    /// Whether a probe is under way.
    pub(crate) fn probing(&self, now: Instant) -> bool {
        self.probe.is_some_and(|probe| probe.until > now)
    }

    /// Whether a success would change anything but its own time.
    pub(crate) fn is_troubled(&self) -> bool {
        self.consecutive > 0 || self.cooldown.is_some() || self.permanent > 0
    }

    pub(crate) fn status(&self, policy: &FailoverPolicy) -> Status {
        if self.consecutive >= policy.down_after.max(1) || self.permanent > 0 {
            Status::Down
        } else if self.is_troubled() {
            Status::Degraded
        } else {
            Status::Healthy
        }
    }

    /// A call that was admitted under generation `admitted` failed. `next` is the generation to go
    /// on with if that changes what calls may decide.
    pub(crate) fn fail(
        &mut self,
        now: Instant,
        admitted: u64,
        next: u64,
        blame: Blame,
        message: &str,
        policy: &FailoverPolicy,
    ) -> Failed {
        self.errors += 1;
        let reason = blame.reason;
        match &mut self.last_error {
            // An outage says the same thing over and over.
            Some(last) if *last.message == *message => (last.reason, last.at) = (reason, now),
            last => *last = Some(LastError { reason, message: message.into(), at: now }),
        }
        let cooling = self.cooling(now);
        let stale = admitted < self.generation;
        if stale && cooling.is_none() {
            // It has recovered since, or has had its rest.
            return Failed::Counted;
        }
        self.consecutive = self.consecutive.saturating_add(1);
        let mut wait = blame.cooldown;
        if blame.permanent {
            // A crowd that was under way together is one failure.
            if !stale || self.permanent == 0 {
                self.permanent = self.permanent.saturating_add(1);
            }
            let doubled = 1u32.checked_shl(self.permanent - 1).unwrap_or(u32::MAX);
            wait = wait
                .max(policy.permanent.saturating_mul(doubled).min(policy.permanent_cap))
                .min(policy.longest_hint.max(policy.permanent_cap));
        }
        if wait.is_zero() {
            return Failed::Counted;
        }
        let early = if blame.asked { Duration::ZERO } else { policy.probe_window.min(wait / 2) };
        self.extend(now, wait, early, blame);
        if stale {
            return Failed::Extended;
        }
        self.turn(next);
        Failed::Cooled { wait, fresh: cooling.is_none() }
    }

    /// Never shortens: the later end wins.
    fn extend(&mut self, now: Instant, wait: Duration, early: Duration, blame: Blame) {
        let until = far(now, wait);
        let new = Cooldown {
            until,
            probe_from: until.checked_sub(early).unwrap_or(until),
            reason: blame.reason,
            asked: blame.asked,
            downgrade: blame.downgrade,
        };
        if self.cooldown.is_none_or(|old| old.until < new.until) {
            self.cooldown = Some(new);
        }
    }

    /// It can not be asked for `wait`: nothing is counted, and what is under way decides as before.
    pub(crate) fn rest(&mut self, now: Instant, wait: Duration) {
        if wait.is_zero() {
            return;
        }
        let blame = Blame {
            reason: Reason::CircuitOpen,
            cooldown: wait,
            asked: false,
            permanent: false,
            downgrade: false,
        };
        self.extend(now, wait, Duration::ZERO, blame);
    }

    /// A call that was admitted under generation `admitted` succeeded. Whether that ended a
    /// cooldown.
    pub(crate) fn succeed(&mut self, now: Instant, admitted: u64, next: u64) -> bool {
        self.last_success = Some(now);
        if admitted < self.generation {
            return false;
        }
        let cooled = self.cooldown.take().is_some();
        self.consecutive = 0;
        self.permanent = 0;
        if cooled {
            self.turn(next);
        }
        cooled
    }

    /// Lets one call through that is to see whether the cooldown is over. `mark` names it.
    pub(crate) fn claim(&mut self, now: Instant, mark: u64, next: u64, limit: Duration) -> bool {
        let Some(cooldown) = self.cooling(now) else { return true };
        if cooldown.probe_from > now || self.probing(now) {
            return false;
        }
        if self.probe.is_some() {
            // It was not heard of for too long: what it says now comes too late.
            self.generation = next;
        }
        self.probe = Some(Probe { mark, until: far(now, limit) });
        true
    }

    /// The probe `mark` is over, however it went.
    pub(crate) fn release(&mut self, mark: u64) {
        self.probe = self.probe.filter(|probe| probe.mark != mark);
    }

    /// An operator leaves it alone for `wait`.
    pub(crate) fn force(&mut self, now: Instant, wait: Duration, next: u64) {
        let blame = Blame {
            reason: Reason::Cooling,
            cooldown: wait,
            asked: true,
            permanent: false,
            downgrade: false,
        };
        self.extend(now, wait, Duration::ZERO, blame);
        self.turn(next);
    }

    /// As if nothing had ever happened; what is under way decides nothing.
    pub(crate) fn reset(&mut self, next: u64) {
        *self = Self { generation: next, ..Self::default() };
    }

    fn turn(&mut self, next: u64) {
        self.generation = next;
        self.probe = None;
    }
}

/// `wait` from `now`; a wait too long to represent is thirty years.
fn far(now: Instant, wait: Duration) -> Instant {
    now.checked_add(wait).unwrap_or_else(|| now + Duration::from_secs(946_080_000))
}

#[cfg(test)]
mod tests;
