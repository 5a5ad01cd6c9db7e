//! Seeing and deciding from outside.

use std::{
    fmt,
    sync::{Arc, atomic::Ordering},
};

use tokio::sync::broadcast;

use crate::{
    DecideError, DecisionKind, EscalationDecision, EscalationId, HeldRequest,
    state::{Counts, HeldRequests},
};

/// Shows the held requests of an [`EscalationLayer`](crate::EscalationLayer), and decides about them. Cheap to
/// clone; works from any thread.
///
/// ```
/// use steadfast_escalate::{EscalationDecision, EscalationHandle};
///
/// /// What an operator's console does.
/// fn refuse_all(handle: &EscalationHandle) {
///     for held in handle.held() {
///         // Somebody else may have decided meanwhile.
///         let _ = handle.decide(held.id, EscalationDecision::Refuse);
///     }
/// }
/// # refuse_all(&steadfast_escalate::EscalationLayer::off().handle());
/// ```
#[derive(Clone)]
pub struct EscalationHandle(pub(crate) Arc<HeldRequests>);

/// What happens to held requests; see [`EscalationHandle::subscribe`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum EscalationEvent {
    /// A decision is waited for; also when an attempt after a decision has failed.
    Held(Arc<HeldRequest>),
    /// Somebody has decided, and it is being done.
    Decided {
        /// Which request.
        id: EscalationId,
        /// What.
        kind: DecisionKind,
    },
    /// Nobody has decided in time: the caller got the failure.
    Expired {
        /// Which request.
        id: EscalationId,
    },
    /// The caller went away before anybody had decided.
    Left {
        /// Which request.
        id: EscalationId,
    },
    /// A request could not be held: too many are, or it had no time left. Its caller got the failure.
    Overflow,
}

/// What a layer has done so far.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EscalationSnapshot {
    /// Requests that wait for a decision now.
    pub waiting: usize,
    /// Requests that are held now, those with an attempt under way included.
    pub held: usize,
    /// The bytes of memory that they have, as far as they are counted.
    pub held_bytes: u64,
    /// Requests that have been held; each once, however many rounds it had.
    pub total: u64,
    /// Decisions by kind, in the order of [`DecisionKind::ALL`].
    pub decided: [(DecisionKind, u64); DecisionKind::ALL.len()],
    /// Attempts after a decision that were answered.
    pub recovered: u64,
    /// Requests about which nobody decided in time.
    pub expired: u64,
    /// Requests whose callers went away before anybody had decided.
    pub left: u64,
    /// Requests that were not held, because too many were, or for want of time.
    pub overflowed: u64,
}

impl EscalationHandle {
    /// The requests that wait for a decision, the oldest first.
    pub fn held(&self) -> Vec<Arc<HeldRequest>> {
        self.0.registry.lock().held().map(|(_, held)| held.clone()).collect()
    }

    /// One of them.
    pub fn get(&self, id: EscalationId) -> Option<Arc<HeldRequest>> {
        let number = (self.0.id(id.number) == id).then_some(id.number)?;
        self.0.registry.lock().get(number).cloned()
    }

    /// Decides about a request. Returns as soon as its call has been notified, which then carries it out.
    ///
    /// # Errors
    ///
    /// Why nothing was decided; the request, if it is there, is held as before.
    pub fn decide(
        &self,
        id: EscalationId,
        decision: EscalationDecision,
    ) -> Result<(), DecideError> {
        self.0.decide(id, decision)
    }

    /// What happens from now on. A subscriber that is 512 events behind loses the oldest ones, and gets
    /// [`RecvError::Lagged`](broadcast::error::RecvError::Lagged): [`held`](Self::held) has what still
    /// matters.
    pub fn subscribe(&self) -> broadcast::Receiver<EscalationEvent> {
        self.0.events.subscribe()
    }

    /// What the layer has done so far.
    pub fn snapshot(&self) -> EscalationSnapshot {
        let Counts { held: total, decided, recovered, expired, left, overflowed } = &self.0.counts;
        let (waiting, held, held_bytes) = {
            let registry = self.0.registry.lock();
            (registry.held().count(), registry.len(), registry.bytes())
        };
        let kinds = DecisionKind::ALL;
        EscalationSnapshot {
            waiting,
            held,
            held_bytes,
            total: total.load(Ordering::Relaxed),
            decided: kinds.map(|kind| (kind, decided[kind as usize].load(Ordering::Relaxed))),
            recovered: recovered.load(Ordering::Relaxed),
            expired: expired.load(Ordering::Relaxed),
            left: left.load(Ordering::Relaxed),
            overflowed: overflowed.load(Ordering::Relaxed),
        }
    }

    /// Sets the counters to zero; what is held stays held.
    pub fn reset(&self) {
        let Counts { held, decided, recovered, expired, left, overflowed } = &self.0.counts;
        for counter in decided.iter().chain([held, recovered, expired, left, overflowed]) {
            counter.store(0, Ordering::Relaxed);
        }
    }
}

impl fmt::Debug for EscalationHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EscalationHandle").field(&self.snapshot()).finish()
    }
}
