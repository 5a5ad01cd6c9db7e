//! What the handle, the layers and the deliveries of one queue share.

use std::sync::Arc;

use parking_lot::Mutex;
use steadfast_core::{Failure, Reason, Retry, time::millis};
use tokio::sync::{Notify, oneshot, watch};

use super::{
    DeadLetter, LetterDrain, LetterEnd, LetterQueuePolicy,
    boxed::{AttemptFailed, LetterBox},
};
use crate::{Announcement, DeliveryLedger, clock, event, journal::Journal, unclear::is_unclear};

pub(crate) struct LetterQueue {
    pub(crate) policy: LetterQueuePolicy,
    pub(crate) ledger: DeliveryLedger,
    state: Mutex<QueueState>,
    /// Something may be due, or it is closing.
    pub(crate) changed: Notify,
    /// `None`: in memory alone.
    pub(crate) journal: Option<Journal<DeadLetter>>,
    /// `Some` once it is closed: whether everything was written.
    pub(crate) closed: watch::Sender<Option<bool>>,
}

struct QueueState {
    letters: LetterBox,
    rng: fastrand::Rng,
    closing: bool,
    accepted: u64,
}

/// What becomes of a message that was given to the queue.
#[derive(Debug)]
pub(crate) enum Added {
    /// It waits. The receiver learns whether it is on the disk; `None`: there is none.
    Waits(Option<oneshot::Receiver<bool>>),
    /// It was delivered, as the ledger knows by now.
    WasDelivered,
    /// It has ended in a record.
    Ended(LetterEnd),
    /// The queue is closed.
    Closed,
}

/// What the deliveries have to do next.
pub(crate) struct NextDeliveries {
    pub(crate) destinations: Vec<Arc<str>>,
    /// When something is due, in milliseconds since 1970.
    pub(crate) due: Option<u64>,
    pub(crate) closing: bool,
}

impl LetterQueue {
    pub(crate) fn new(
        policy: LetterQueuePolicy,
        ledger: DeliveryLedger,
        letters: LetterBox,
        journal: Option<Journal<DeadLetter>>,
    ) -> Self {
        let rng = fastrand::Rng::new();
        let state = QueueState { letters, rng, closing: false, accepted: 0 };
        Self {
            policy,
            ledger,
            state: Mutex::new(state),
            changed: Notify::new(),
            journal,
            closed: watch::Sender::new(None),
        }
    }

    /// A message that was not delivered. It is tried again after the backoff, or `at_once`.
    pub(crate) fn add(&self, message: &Announcement, failure: &Failure, at_once: bool) -> Added {
        let now = clock::now_ms();
        // In this order: a send that ends in between is in the ledger by then.
        let sending = self.ledger.is_sending(&message.key);
        let was_delivered = self.ledger.delivered(&message.key).is_some();
        let end = self.final_end(failure, sending);
        if end.is_some() {
            let _ = self.ledger.take_unseen(&message.key);
        }
        let letter = DeadLetter::of(message, failure, sending, now);
        let mut changed = Vec::new();
        let added = {
            let mut state = self.state.lock();
            if state.closing {
                return Added::Closed;
            }
            state.accepted += 1;
            if was_delivered {
                Added::WasDelivered
            } else if let Some(end) = end {
                changed.push(state.letters.add_ended(letter, end, now));
                self.write(&changed);
                Added::Ended(end)
            } else {
                let hint = failure.retry_after().map_or(0, millis);
                let QueueState { letters, rng, .. } = &mut *state;
                let backoff = self.policy.backoff().delay(0, std::time::Duration::ZERO, rng);
                let wait = (!at_once).then(|| millis(backoff).max(hint));
                changed = letters.add(letter, wait, now);
                match letters.get(&message.key).cloned() {
                    // Written once more for a key that waited before: then it is known to be on the disk.
                    Some(letter) => {
                        self.write(&changed[..changed.len().saturating_sub(1)]);
                        Added::Waits(self.journal.as_ref().map(|file| file.write_and_wait(letter)))
                    }
                    None => {
                        self.write(&changed);
                        Added::Ended(LetterEnd::QueueFull)
                    }
                }
            }
        };
        self.report(&changed, false);
        added
    }

    /// What has to be delivered now.
    pub(crate) fn next_deliveries(&self) -> NextDeliveries {
        let now = clock::now_ms();
        let mut expired = Vec::new();
        let next = {
            let mut state = self.state.lock();
            if state.closing {
                NextDeliveries { destinations: Vec::new(), due: None, closing: true }
            } else {
                expired = state.letters.expire(now);
                self.write(&expired);
                let destinations = state.letters.begin(now);
                NextDeliveries { destinations, due: state.letters.next_due(), closing: false }
            }
        };
        expired.iter().for_each(|letter| event::letter(letter, false));
        next
    }

    /// The letter to send to this destination now. The receiver learns whether it is on the disk that it is being sent, so that
    /// it is not sent again if the process is killed; `None` where it may be.
    pub(crate) fn take(
        &self,
        destination: &str,
    ) -> Option<(DeadLetter, Option<oneshot::Receiver<bool>>)> {
        let mut state = self.state.lock();
        if state.closing {
            return None;
        }
        let letter = state.letters.take(destination, clock::now_ms())?;
        let journal = self.journal.as_ref().filter(|_| !self.policy.resend_unclear);
        let noted = journal.map(|file| file.write_and_wait(letter.clone()));
        Some((letter, noted))
    }

    pub(crate) fn idle(&self, destination: &str) {
        self.state.lock().letters.idle(destination);
        self.changed.notify_one();
    }

    pub(crate) fn delivered(&self, key: &str) {
        self.change(|state, now| state.letters.delivered(key, now));
    }

    /// An attempt has failed, unless the message came in by another way, or with the attempt's timeout.
    pub(crate) fn failed(&self, key: &str, failure: &Failure) {
        // In this order: a send that ends in between is in the ledger by then.
        let sending = self.ledger.is_sending(key);
        if self.ledger.delivered(key).is_some() {
            return self.delivered(key);
        }
        let failed = AttemptFailed {
            error: failure.to_string().into(),
            hint_ms: failure.retry_after().map_or(0, millis),
            end: self.final_end(failure, sending),
            sending,
        };
        if failed.end.is_some() {
            // A person who has it sent again is not answered by what this has ended for.
            let _ = self.ledger.take_unseen(key);
        }
        self.change(|state, now| {
            let QueueState { letters, rng, .. } = state;
            let retry = letters.attempts(key) + 1;
            let wait = self.policy.backoff().delay(retry, std::time::Duration::ZERO, rng);
            letters.failed(key, failed, millis(wait), now)
        });
    }

    /// What became of the sends on which attempts have stopped to wait: for the next start, which can not know it.
    pub(crate) fn note_ended_sends(&self) {
        let sending = self.read(|letters, _| {
            let sending = letters.waiting().filter(|letter| letter.sending);
            sending.map(|letter| letter.key.clone()).collect::<Vec<_>>()
        });
        for key in sending.into_iter().filter(|key| !self.ledger.is_sending(key)) {
            if self.ledger.delivered(&key).is_some() {
                self.delivered(&key);
            } else if let Some(failure) = self.ledger.take_unseen(&key) {
                self.failed(&key, &failure);
            } else {
                let mut state = self.state.lock();
                let changed = state.letters.not_sent(&key);
                self.write(changed.as_slice());
            }
        }
    }

    pub(crate) fn drain(&self, which: &LetterDrain, why: &'static str) -> usize {
        let now = clock::now_ms();
        let (count, changed) = {
            let mut state = self.state.lock();
            if state.closing {
                return 0;
            }
            let (count, changed) = state.letters.drain(which, now);
            self.write(&changed);
            (count, changed)
        };
        if count > 0 {
            event::draining(count, why);
        }
        self.report(&changed, false);
        count
    }

    pub(crate) fn discard(&self, key: &str) -> bool {
        self.change(|state, now| state.letters.discard(key, now))
    }

    /// Starts nothing more.
    pub(crate) fn stop(&self) {
        self.state.lock().closing = true;
        self.changed.notify_one();
    }

    /// Runs `read` on the letters.
    pub(crate) fn read<T>(&self, read: impl FnOnce(&LetterBox, u64) -> T) -> T {
        let state = self.state.lock();
        read(&state.letters, state.accepted)
    }

    /// Changes one letter; whether there was one to change.
    fn change(&self, change: impl FnOnce(&mut QueueState, u64) -> Option<DeadLetter>) -> bool {
        let now = clock::now_ms();
        let changed = {
            let mut state = self.state.lock();
            let changed = change(&mut state, now);
            // Under the lock, so that the file has the order of the changes.
            self.write(changed.as_slice());
            changed
        };
        // One that still waits has failed.
        self.report(changed.as_slice(), true);
        changed.is_some()
    }

    fn write(&self, changed: &[DeadLetter]) {
        if let Some(journal) = &self.journal {
            changed.iter().for_each(|letter| journal.write(letter.clone()));
        }
    }

    fn report(&self, changed: &[DeadLetter], failed: bool) {
        self.changed.notify_one();
        changed.iter().for_each(|letter| event::letter(letter, failed));
    }

    /// How a message ends that is not to be tried again after this failure. What is still being sent will be known.
    fn final_end(&self, failure: &Failure, sending: bool) -> Option<LetterEnd> {
        let refused = matches!(
            failure.reason(),
            Reason::Format | Reason::PayloadTooLarge | Reason::ContentFilter | Reason::Unsupported
        );
        if refused || failure.retry() == Retry::Forbidden {
            return Some(LetterEnd::Refused);
        }
        let unclear = is_unclear(failure) && !self.policy.resend_unclear;
        (unclear && !sending).then_some(LetterEnd::Unclear)
    }
}
