//! What is known of one provider, model or credential.

use std::{fmt, time::Duration};

use steadfast_core::{
    Permit, PermitKind, Reason,
    circuit::{Blame, Circuit, CircuitPolicy, CircuitVerdict, Moment, Readmission},
};
use tokio::time::Instant;

use crate::policy::FailoverPolicy;

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
    /// The provider's message: bounded, secrets masked.
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
    pub hinted: bool,
}

/// What is known of one provider, model or credential: a circuit whose rest is its cooldown, and what
/// is shown of it.
#[derive(Debug)]
pub(crate) struct Health {
    circuit: Circuit,
    pub(crate) errors: u64,
    pub(crate) consecutive: u32,
    pub(crate) last_error: Option<LastError>,
    /// Other models of the provider may stand in while it cools.
    pub(crate) yields: bool,
}

/// What a failure changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failed {
    /// The call began before the last change: it is counted, and decides nothing.
    Late,
    /// It was counted; nothing cools because of it.
    Counted,
    /// It cools from now on.
    Cooled {
        /// For how long.
        wait: Duration,
        /// It did not before.
        fresh: bool,
    },
}

/// The circuit of a record: the first failure opens it, and its rest is a preference between targets.
pub(crate) fn circuit(policy: &FailoverPolicy) -> CircuitPolicy {
    CircuitPolicy {
        consecutive: Some(1),
        second_witness: false,
        window: Duration::from_secs(60),
        min_calls: u32::MAX,
        failure_rate: None,
        slow: None,
        content_is_success: false,
        cooldown: Duration::ZERO,
        growth: 1.0,
        max_cooldown: policy.longest_hint,
        permanent_cooldown: policy.permanent,
        max_permanent: policy.permanent_cap,
        probe_lead: policy.probe_window,
        probe_limit: policy.probe_limit,
        probes: 1,
        successes: 1,
        recovery: Readmission::Everyone,
        lone: None,
    }
}

impl Health {
    pub(crate) fn new(policy: &FailoverPolicy, now: Instant) -> Self {
        Self {
            circuit: Circuit::new(circuit(policy), now),
            errors: 0,
            consecutive: 0,
            last_error: None,
            yields: false,
        }
    }

    /// The cooldown, while it lasts.
    pub(crate) fn cooling(&self, now: Instant) -> Option<Cooldown> {
        let rest = self.circuit.resting(now)?;
        Some(Cooldown {
            until: rest.until,
            probe_from: rest.probe_from,
            reason: rest.reason.unwrap_or(Reason::Cooling),
            hinted: rest.hinted,
        })
    }

    /// Whether a call is under way that sees whether it is well again.
    pub(crate) fn probing(&self, now: Instant) -> bool {
        self.circuit.is_probing(now)
    }

    /// Whether a success would change anything but its own time.
    pub(crate) fn is_degraded(&self) -> bool {
        self.consecutive > 0 || self.circuit.is_degraded()
    }

    pub(crate) fn status(&self, policy: &FailoverPolicy) -> Status {
        if self.consecutive >= policy.down_after.max(1) || self.circuit.is_permanent() {
            Status::Down
        } else if self.is_degraded() {
            Status::Degraded
        } else {
            Status::Healthy
        }
    }

    /// A call has failed. `yields` says that other models of the provider may stand in meanwhile.
    pub(crate) fn fail(
        &mut self,
        now: Moment,
        permit: &Permit,
        blame: Blame,
        yields: bool,
        message: &str,
    ) -> Failed {
        self.errors += 1;
        let (reason, at) = (blame.reason, now.at);
        match &mut self.last_error {
            // An outage says the same thing over and over.
            Some(last) if *last.message == *message => (last.reason, last.at) = (reason, at),
            last => *last = Some(LastError { reason, message: message.into(), at }),
        }
        let cooled = self.circuit.resting(at).is_some();
        let late = !self.circuit.is_current(permit);
        if late && !cooled {
            // It has recovered since, or has had its rest.
            return Failed::Late;
        }
        self.consecutive = self.consecutive.saturating_add(1);
        match self.circuit.end(now, permit, CircuitVerdict::Failure(blame), None) {
            Some(transition) => {
                self.yields = yields;
                let until = transition.until.unwrap_or(at);
                Failed::Cooled { wait: until.saturating_duration_since(at), fresh: !cooled }
            }
            None if late => Failed::Late,
            None => Failed::Counted,
        }
    }

    /// A call has succeeded; whether that ended a cooldown.
    pub(crate) fn succeed(&mut self, now: Moment, permit: &Permit) -> bool {
        if self.circuit.is_current(permit) {
            self.consecutive = 0;
        }
        self.circuit.end(now, permit, CircuitVerdict::Success, None).is_some()
    }

    /// A call is over and says nothing.
    pub(crate) fn release(&mut self, now: Moment, permit: &Permit) {
        self.circuit.end(now, permit, CircuitVerdict::Nothing, None);
    }

    /// It can not be asked for `wait`, for no fault of its own.
    pub(crate) fn rest(&mut self, now: Instant, wait: Duration) {
        self.circuit.rest(now, wait, Reason::CircuitOpen);
    }

    /// Lets one call through that is to see whether the cooldown is over, where one is needed.
    pub(crate) fn acquire_probe(&mut self, now: Moment) -> ProbePermit {
        if self.circuit.resting(now.at).is_none() {
            return ProbePermit::NotNeeded;
        }
        match self.circuit.acquire_probe(now) {
            Some(_) => ProbePermit::Acquired,
            None => ProbePermit::Refused,
        }
    }

    /// An operator leaves it alone for `wait`.
    pub(crate) fn force(&mut self, now: Moment, wait: Duration) {
        self.circuit.trip(now, Reason::Cooling, wait);
    }

    /// As if nothing had ever happened; what is under way decides nothing.
    pub(crate) fn reset(&mut self, now: Moment) {
        self.circuit.reset(now);
        (self.errors, self.consecutive, self.last_error, self.yields) = (0, 0, None, false);
    }
}

/// What came of asking for the permit of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProbePermit {
    /// It does not cool.
    NotNeeded,
    /// This call is the probe.
    Acquired,
    /// It is too early, or somebody else is the probe.
    Refused,
}

/// The permit of a call as a record sees it that it did not probe.
pub(crate) const fn ordinary(order: u64) -> Permit {
    Permit::new(PermitKind::Ordinary, order)
}
