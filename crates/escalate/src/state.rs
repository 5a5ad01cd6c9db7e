//! What all services of a layer share.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use steadfast_core::{RecoveryLog, Target};
use tokio::sync::{broadcast, oneshot};

use crate::{
    DecideError, DecisionKind, EscalationDecision, EscalationEvent, EscalationId, EscalationPolicy,
    HeldRequest, event,
    operator::AnyOperator,
    registry::{Bounds, NotHeld, Overflow, Registry},
};

/// Events that a slow subscriber may be behind: several for each request that is held at once.
const EVENTS: usize = 512;

/// Ends the cooldown of a target; whether anything was known of it.
pub(crate) type Reset = Arc<dyn Fn(&Target) -> bool + Send + Sync>;

/// The settings of a layer.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) policy: EscalationPolicy,
    pub(crate) operator: Option<AnyOperator>,
    pub(crate) reset: Option<Reset>,
}

impl Settings {
    pub(crate) fn bounds(&self) -> Bounds {
        Bounds { held: self.policy.max_held, bytes: self.policy.max_held_bytes }
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("policy", &self.policy)
            .field("operator", &self.operator)
            .field("reset", &self.reset.is_some())
            .finish()
    }
}

/// The requests that are held.
#[derive(Debug)]
pub(crate) struct HeldRequests {
    instance: u32,
    pub(crate) registry: Mutex<Registry<Arc<HeldRequest>, oneshot::Sender<EscalationDecision>>>,
    pub(crate) events: broadcast::Sender<EscalationEvent>,
    pub(crate) counts: Counts,
}

/// What has happened so far.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) held: AtomicU64,
    pub(crate) decided: [AtomicU64; DecisionKind::ALL.len()],
    pub(crate) recovered: AtomicU64,
    pub(crate) expired: AtomicU64,
    pub(crate) left: AtomicU64,
    pub(crate) overflowed: AtomicU64,
}

pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Default for HeldRequests {
    fn default() -> Self {
        Self {
            instance: fastrand::u32(..),
            registry: Mutex::new(Registry::new()),
            events: broadcast::channel(EVENTS).0,
            counts: Counts::default(),
        }
    }
}

impl HeldRequests {
    pub(crate) fn id(&self, number: u64) -> EscalationId {
        EscalationId { instance: self.instance, number }
    }

    /// Reports `event` to whoever has subscribed.
    pub(crate) fn notify(&self, event: EscalationEvent) {
        // Nobody may have.
        let _ = self.events.send(event);
    }

    /// Somebody decides.
    pub(crate) fn decide(
        &self,
        id: EscalationId,
        decision: EscalationDecision,
    ) -> Result<(), DecideError> {
        decision.check()?;
        if id.instance != self.instance {
            return Err(DecideError::Unknown(id));
        }
        let reply = self.registry.lock().decide(id.number, |held| {
            if let (EscalationDecision::ResetCooldown(target), false) = (&decision, held.can_reset)
            {
                return Err(Undecided::Refused(DecideError::CanNotReset(target.clone())));
            }
            let unknown = |target: &Target| DecideError::UnknownTarget(target.clone());
            held.knows(&decision).map_err(unknown).map_err(Undecided::Refused)
        });
        let reply = reply.map_err(|why| why.of(id))?;
        // Its caller may have gone away in this very moment.
        reply.send(decision).map_err(|_| DecideError::Over(id))
    }

    pub(crate) fn admit(&self, bytes: u64, bounds: Bounds) -> Result<u64, Overflow> {
        self.registry.lock().admit(bytes, bounds)
    }

    /// One more is too many, or too large, or has no time.
    pub(crate) fn overflowed(&self, why: Overflow, log: &RecoveryLog) {
        count(&self.counts.overflowed);
        event::overflow(why, log);
        self.notify(EscalationEvent::Overflow);
    }
}

/// Why the registry does not let anybody decide.
enum Undecided {
    NotHeld(NotHeld),
    Refused(DecideError),
}

impl Undecided {
    fn of(self, id: EscalationId) -> DecideError {
        match self {
            Self::Refused(error) => error,
            Self::NotHeld(NotHeld::Unknown) => DecideError::Unknown(id),
            Self::NotHeld(NotHeld::Over) => DecideError::Over(id),
            Self::NotHeld(NotHeld::Decided) => DecideError::AlreadyDecided(id),
        }
    }
}

impl From<NotHeld> for Undecided {
    fn from(why: NotHeld) -> Self {
        Self::NotHeld(why)
    }
}

/// A request's entry among those that are held, until it is dropped.
#[derive(Debug)]
pub(crate) struct Entry {
    requests: Arc<HeldRequests>,
    number: u64,
}

impl Entry {
    pub(crate) fn new(requests: Arc<HeldRequests>, number: u64) -> Self {
        Self { requests, number }
    }

    pub(crate) fn id(&self) -> EscalationId {
        self.requests.id(self.number)
    }

    pub(crate) fn requests(&self) -> &HeldRequests {
        &self.requests
    }

    /// From now on somebody may decide.
    pub(crate) fn hold(&self, held: Arc<HeldRequest>) -> oneshot::Receiver<EscalationDecision> {
        let (reply, decision) = oneshot::channel();
        self.requests.registry.lock().hold(self.number, held, reply);
        decision
    }

    /// Nobody may decide any more. Returns whether anybody could have; if not, the decision is on its way.
    pub(crate) fn expire(&self) -> bool {
        self.requests.registry.lock().expire(self.number)
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        // The caller went away while it was held.
        if self.requests.registry.lock().leave(self.number) {
            count(&self.requests.counts.left);
            event::left(self.id());
            self.requests.notify(EscalationEvent::Left { id: self.id() });
        }
    }
}
