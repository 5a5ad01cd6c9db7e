//! The ledger, as layers and people use it.

use std::{
    collections::{HashMap, VecDeque},
    error::Error,
    fmt,
    sync::Arc,
    time::SystemTime,
};

use parking_lot::Mutex;
use steadfast_core::{Failure, Reason};
use tokio::sync::{Notify, watch};

use super::{
    LedgerPolicy,
    file::{LedgerFile, LedgerRecord},
    state::LedgerKeys,
};
use crate::{
    DeliverError, DeliveryFolder, DeliveryReceipt, clock, event, folder::blocking,
    journal::Journal, unclear::is_unclear,
};

/// What was delivered, by key: shared by every layer through which a message may go, so that none sends what another has
/// sent, also after a restart.
///
/// A key is remembered at once, and written to the disk behind that: no delivery waits for the disk. A process that is killed
/// between the two sends the message again if it is a dead letter; a platform that takes the key knows it.
#[derive(Clone)]
pub struct DeliveryLedger(Arc<Shared>);

struct Shared {
    policy: LedgerPolicy,
    state: Mutex<State>,
    journal: Option<Journal<LedgerRecord>>,
    /// A turn of a parent has ended.
    turn_ended: Notify,
}

struct State {
    keys: LedgerKeys,
    /// What is being sent, and who waits for it.
    sending: HashMap<Arc<str>, watch::Receiver<Option<SendOutcome>>>,
    /// Sends of which nobody knows whether they were, and whose failure nobody has seen yet: the last ones.
    unseen: VecDeque<(Arc<str>, SharedFailure)>,
    /// What turns of a parent are announcing, and how many of them.
    turns: HashMap<Arc<str>, usize>,
    repeated: u64,
}

/// What became of a send.
pub(crate) type SendOutcome = Result<DeliveryReceipt, SharedFailure>;

/// How a send begins.
pub(crate) enum SendStart {
    /// It was delivered before.
    Delivered,
    /// Somebody is sending it.
    Joined(watch::Receiver<Option<SendOutcome>>),
    /// It may have been sent, by a send whose failure nobody has seen: this is it.
    Unseen(Failure),
    /// It is sent now, by whoever has this.
    Started(SendGuard, watch::Receiver<Option<SendOutcome>>),
}

/// What a ledger has at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LedgerSnapshot {
    /// Keys that are remembered.
    pub delivered: usize,
    /// Messages that are being sent.
    pub sending: usize,
    /// How often a message was not sent a second time.
    pub repeated: u64,
}

impl DeliveryLedger {
    /// A ledger that ends with the process: a restart may send again what was delivered before it.
    ///
    /// # Errors
    ///
    /// When the policy is invalid.
    pub fn in_memory(policy: LedgerPolicy) -> Result<Self, DeliverError> {
        policy.validate()?;
        Ok(Self::of(policy, LedgerKeys::new(&policy), None))
    }

    /// The ledger in this folder's `ledger.jsonl`, read before this returns. Its writer is a task of the current runtime.
    ///
    /// # Errors
    ///
    /// When the policy is invalid; the operating system's error.
    pub async fn open(folder: &DeliveryFolder, policy: LedgerPolicy) -> Result<Self, DeliverError> {
        policy.validate()?;
        let path = folder.path().to_owned();
        let (file, records, repair) =
            blocking(move || LedgerFile::open(&path, policy.keys)).await?;
        event::opened("ledger.jsonl", repair.records, repair.bad_lines, repair.torn_bytes);
        let (mut keys, now) = (LedgerKeys::new(&policy), clock::now_ms());
        for LedgerRecord { key, at_ms } in records {
            // A clock that was set back does not make a key last for ever.
            keys.insert(key, at_ms.min(now), now);
        }
        let journal = Journal::start(file, folder.clone(), policy.disk_retry);
        Ok(Self::of(policy, keys, Some(journal)))
    }

    fn of(policy: LedgerPolicy, keys: LedgerKeys, journal: Option<Journal<LedgerRecord>>) -> Self {
        let state = State {
            keys,
            sending: HashMap::new(),
            unseen: VecDeque::new(),
            turns: HashMap::new(),
            repeated: 0,
        };
        let turn_ended = Notify::new();
        Self(Arc::new(Shared { policy, state: Mutex::new(state), journal, turn_ended }))
    }

    /// The policy in force.
    pub fn policy(&self) -> &LedgerPolicy {
        &self.0.policy
    }

    /// When the message of this key was delivered, as far as that is remembered.
    pub fn delivered(&self, key: &str) -> Option<SystemTime> {
        self.0.state.lock().keys.get(key, clock::now_ms()).map(clock::from_ms)
    }

    /// Whether the message of this key is being sent at this moment.
    pub fn is_sending(&self, key: &str) -> bool {
        self.0.state.lock().sending.contains_key(key)
    }

    /// The message of this key was delivered: for a parent that has sent it by means of its own.
    pub fn record(&self, key: &Arc<str>) {
        let now = clock::now_ms();
        let mut state = self.0.state.lock();
        // Under the lock, so that the file has the order of the keys.
        if state.keys.insert(key.clone(), now, now)
            && let Some(journal) = &self.0.journal
        {
            journal.write(LedgerRecord { key: key.clone(), at_ms: now });
        }
    }

    /// What it has now.
    pub fn snapshot(&self) -> LedgerSnapshot {
        let state = self.0.state.lock();
        LedgerSnapshot {
            delivered: state.keys.len(),
            sending: state.sending.len(),
            repeated: state.repeated,
        }
    }

    /// Forgets every key until the next restart: what was delivered may be sent again.
    pub fn reset(&self) {
        let mut state = self.0.state.lock();
        state.keys.clear();
        state.unseen.clear();
    }

    /// Waits for the sends under way, for as long as the [policy](LedgerPolicy::close_wait) says, writes what is not written yet, and
    /// ends the writer. False: a send goes on, or not all could be written; a restart does not know those keys.
    pub async fn close(&self) -> bool {
        let ended = self.sends_ended().await;
        let written = match &self.0.journal {
            Some(journal) => journal.close().await,
            None => true,
        };
        ended && written
    }

    /// Waits for what is being sent at this moment, for as long as the policy says; whether all of it has ended.
    pub(crate) async fn sends_ended(&self) -> bool {
        let sends: Vec<_> = self.0.state.lock().sending.values().cloned().collect();
        let all = async {
            for mut send in sends {
                let _ = send.wait_for(Option::is_some).await;
            }
        };
        tokio::time::timeout(self.0.policy.close_wait, all).await.is_ok()
    }

    /// A turn of a parent announces these from now on until the guard is dropped.
    pub(crate) fn turn<'k>(&self, keys: impl Iterator<Item = &'k Arc<str>>) -> TurnGuard {
        let keys: Vec<Arc<str>> = keys.cloned().collect();
        let mut state = self.0.state.lock();
        for key in &keys {
            *state.turns.entry(key.clone()).or_default() += 1;
        }
        drop(state);
        TurnGuard { ledger: self.clone(), keys }
    }

    /// Whether a turn of a parent announces the message of this key at this moment.
    pub(crate) fn is_in_turn(&self, key: &str) -> bool {
        self.0.state.lock().turns.contains_key(key)
    }

    /// Waits until no turn of a parent announces the message of this key.
    pub(crate) async fn turn_ended(&self, key: &str) {
        loop {
            // Before it is asked, so that none that ends in between is missed.
            let ended = self.0.turn_ended.notified();
            if !self.is_in_turn(key) {
                return;
            }
            ended.await;
        }
    }

    /// The failure that nobody has seen of a send that may have been sent, which the caller has seen from now on.
    pub(crate) fn take_unseen(&self, key: &str) -> Option<Failure> {
        self.0.state.lock().take_unseen(key)
    }

    /// Begins a send, joins the one under way, or finds that there was one.
    pub(crate) fn begin(&self, key: &Arc<str>) -> SendStart {
        let now = clock::now_ms();
        let mut state = self.0.state.lock();
        if state.keys.get(key, now).is_some() {
            state.repeated += 1;
            return SendStart::Delivered;
        }
        if let Some(outcome) = state.sending.get(key).cloned() {
            state.repeated += 1;
            return SendStart::Joined(outcome);
        }
        if let Some(failure) = state.take_unseen(key) {
            state.repeated += 1;
            return SendStart::Unseen(failure);
        }
        let (sender, receiver) = watch::channel(None);
        state.sending.insert(key.clone(), receiver.clone());
        drop(state);
        let guard = SendGuard { ledger: self.clone(), key: key.clone(), outcome: Some(sender) };
        SendStart::Started(guard, receiver)
    }
}

impl State {
    fn take_unseen(&mut self, key: &str) -> Option<Failure> {
        let at = self.unseen.iter().position(|(one, _)| **one == *key)?;
        self.unseen.remove(at).map(|(_, failure)| failure.to_failure())
    }
}

/// Held while a turn of a parent announces messages.
pub(crate) struct TurnGuard {
    ledger: DeliveryLedger,
    keys: Vec<Arc<str>>,
}

impl Drop for TurnGuard {
    fn drop(&mut self) {
        let Shared { state, turn_ended, .. } = &*self.ledger.0;
        let mut state = state.lock();
        for key in &self.keys {
            if let Some(turns) = state.turns.get_mut(key) {
                *turns -= 1;
                if *turns == 0 {
                    state.turns.remove(key);
                }
            }
        }
        drop(state);
        turn_ended.notify_waiters();
    }
}

/// Held while a message is sent. Dropped without an outcome, nobody knows whether it was sent.
pub(crate) struct SendGuard {
    ledger: DeliveryLedger,
    key: Arc<str>,
    outcome: Option<watch::Sender<Option<SendOutcome>>>,
}

impl SendGuard {
    /// The send has ended.
    pub(crate) fn ended(mut self, outcome: SendOutcome) {
        self.end(outcome);
    }

    fn end(&mut self, outcome: SendOutcome) {
        let Some(sender) = self.outcome.take() else { return };
        if outcome.is_ok() {
            // Before it is out of the sends under way: at no moment neither has it.
            self.ledger.record(&self.key);
        }
        let Shared { policy, state, .. } = &*self.ledger.0;
        let mut state = state.lock();
        state.sending.remove(&self.key);
        if let Err(failure) = &outcome
            && is_unclear(&failure.0)
        {
            // Until somebody has seen it: what comes next for this message may be an attempt that did not wait for this one.
            state.unseen.push_back((self.key.clone(), failure.clone()));
            if state.unseen.len() > policy.keys {
                state.unseen.pop_front();
            }
        }
        drop(state);
        sender.send_replace(Some(outcome));
    }
}

impl Drop for SendGuard {
    fn drop(&mut self) {
        if self.outcome.is_some() {
            let lost =
                Failure::new(Reason::Cancelled, "the send was ended before its outcome was known");
            self.end(Err(SharedFailure::new(lost.with_delivered())));
        }
    }
}

/// A failure for everybody who waited for one send.
#[derive(Clone, Debug)]
pub(crate) struct SharedFailure(Arc<Failure>);

impl SharedFailure {
    pub(crate) fn new(failure: Failure) -> Self {
        Self(Arc::new(failure))
    }

    /// A failure like it, with it as the source.
    pub(crate) fn to_failure(&self) -> Failure {
        Failure::from(Box::new(self.clone()) as steadfast_core::BoxError)
    }
}

impl fmt::Display for SharedFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for SharedFailure {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.0)
    }
}

impl fmt::Debug for DeliveryLedger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DeliveryLedger").field(&self.snapshot()).finish()
    }
}
