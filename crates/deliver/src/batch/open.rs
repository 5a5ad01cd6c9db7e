//! The batches that collect announcements, and those whose turn is under way.

use std::{collections::HashMap, fmt, sync::Arc};

use parking_lot::Mutex;
use steadfast_core::Failure;
use tokio::sync::{Notify, oneshot};

use super::BatchPolicy;
use crate::{Announcement, DeliveryLedger, ledger::TurnGuard};

/// The batches of one layer.
pub(crate) struct OpenBatches {
    pub(crate) policy: BatchPolicy,
    pub(crate) ledger: DeliveryLedger,
    collecting: Mutex<HashMap<Arc<str>, Arc<OpenBatch>>>,
}

/// One batch.
#[derive(Default)]
pub(crate) struct OpenBatch {
    state: Mutex<BatchState>,
    /// It is full, or one of its callers has given up.
    pub(crate) changed: Notify,
}

#[derive(Default)]
struct BatchState {
    phase: Phase,
    members: Vec<Member>,
    next: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Collecting,
    /// The turn is under way.
    Turn,
    /// A caller has given up while it was under way.
    GivenUp,
    Ended,
}

struct Member {
    number: u32,
    message: Announcement,
    outcome: oneshot::Sender<Result<(), Failure>>,
}

/// What a caller of a batch has.
pub(crate) struct Joined {
    pub(crate) outcome: oneshot::Receiver<Result<(), Failure>>,
    pub(crate) guard: MemberGuard,
    /// The batch is new: its turn has to be made, by whoever gets this.
    pub(crate) is_first: Option<FirstOf>,
}

/// A batch whose turn has to be made.
pub(crate) struct FirstOf {
    pub(crate) batch: Arc<OpenBatch>,
    pub(crate) session: Arc<str>,
    /// Whether others may come; else its turn begins at once.
    pub(crate) collects: bool,
}

impl OpenBatches {
    pub(crate) fn new(policy: BatchPolicy, ledger: DeliveryLedger) -> Self {
        Self { policy, ledger, collecting: Mutex::default() }
    }

    pub(crate) fn len(&self) -> usize {
        self.collecting.lock().len()
    }

    /// Adds a message to the batch of its session, or to a new one.
    pub(crate) fn join(&self, message: Announcement) -> Joined {
        let mut collecting = self.collecting.lock();
        let session = message.session.clone();
        if let Some(batch) = collecting.get(&session).cloned() {
            let (outcome, number, members) = batch.add(message);
            if members >= self.policy.announcements {
                collecting.remove(&session);
                batch.changed.notify_one();
            }
            return Joined { outcome, guard: MemberGuard { batch, number }, is_first: None };
        }
        let collects = self.policy.announcements > 1 && collecting.len() < self.policy.sessions;
        let batch = Arc::new(OpenBatch::default());
        let (outcome, number, _) = batch.add(message);
        if collects {
            collecting.insert(session.clone(), batch.clone());
        }
        drop(collecting);
        let first = FirstOf { batch: batch.clone(), session, collects };
        Joined { outcome, guard: MemberGuard { batch, number }, is_first: Some(first) }
    }

    /// Nobody joins this batch any more; what it has collected, which may be nothing. Whoever gives up from now on waits until the
    /// guard is dropped.
    pub(crate) fn begin_turn(&self, first: &FirstOf) -> (Vec<Announcement>, TurnGuard) {
        let mut collecting = self.collecting.lock();
        if collecting.get(&first.session).is_some_and(|open| Arc::ptr_eq(open, &first.batch)) {
            collecting.remove(&first.session);
        }
        drop(collecting);
        let mut state = first.batch.state.lock();
        // Before the phase: nobody can give up a turn that the ledger does not know yet.
        let guard = self.ledger.turn(state.members.iter().map(|member| &member.message.key));
        state.phase = if state.members.is_empty() { Phase::Ended } else { Phase::Turn };
        (state.members.iter().map(|member| member.message.clone()).collect(), guard)
    }
}

impl OpenBatch {
    fn add(&self, message: Announcement) -> (oneshot::Receiver<Result<(), Failure>>, u32, usize) {
        let (outcome, receiver) = oneshot::channel();
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        state.members.push(Member { number, message, outcome });
        (receiver, number, state.members.len())
    }

    /// Whether a caller has given up while the turn is under way.
    pub(crate) fn is_given_up(&self) -> bool {
        self.state.lock().phase == Phase::GivenUp
    }

    /// The turn has ended: everybody learns how. What it has delivered is in the ledger before anybody can do otherwise.
    pub(crate) fn end(&self, ledger: &DeliveryLedger, failure: Option<&dyn Fn() -> Failure>) {
        let mut state = self.state.lock();
        state.phase = Phase::Ended;
        let members = std::mem::take(&mut state.members);
        if failure.is_none() {
            members.iter().for_each(|member| ledger.record(&member.message.key));
        }
        drop(state);
        for member in members {
            // It may have gone in the meantime.
            let _ = member.outcome.send(failure.map_or(Ok(()), |failure| Err(failure())));
        }
    }
}

/// Held by a caller until its turn has ended: dropped before, its message is not announced by the turn.
pub(crate) struct MemberGuard {
    batch: Arc<OpenBatch>,
    number: u32,
}

impl Drop for MemberGuard {
    fn drop(&mut self) {
        let mut state = self.batch.state.lock();
        match state.phase {
            Phase::Collecting => state.members.retain(|member| member.number != self.number),
            Phase::Turn => {
                // A turn can not forget one of its announcements: it ends for all.
                state.phase = Phase::GivenUp;
                drop(state);
                self.batch.changed.notify_one();
            }
            Phase::GivenUp | Phase::Ended => {}
        }
    }
}

impl fmt::Debug for OpenBatches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenBatches")
            .field("policy", &self.policy)
            .field("collecting", &self.len())
            .finish_non_exhaustive()
    }
}
