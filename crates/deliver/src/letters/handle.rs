//! The queue, as layers and people use it.

use std::{fmt, sync::Arc};

use steadfast_core::Failure;
use tokio::sync::{oneshot, watch};
use tower_service::Service;

use super::{
    DeadLetter, LetterDrain, LetterEnd, LetterList, LetterQueuePolicy,
    boxed::LetterBox,
    file::LetterFile,
    queue::{Added, LetterQueue},
    worker,
};
use crate::{
    Announcement, DeliverError, DeliveryFolder, DeliveryLedger, DeliveryReceipt, clock, event,
    folder::blocking, journal::Journal,
};

/// A durable queue of messages that could not be delivered, and the tasks that deliver them.
///
/// Cheap to clone. It is closed by [`close`](Self::close), or when the last clone (a
/// [`DeadLetterLayer`](crate::DeadLetterLayer) has one) is gone.
#[derive(Clone)]
pub struct DeadLetters(Arc<Running>);

/// Stops the queue when the last handle is gone.
struct Running(Arc<LetterQueue>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// What a queue has at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LettersSnapshot {
    /// Letters that wait, those included that are being sent.
    pub waiting: usize,
    /// Letters that are being sent.
    pub sending: usize,
    /// Letters that have ended and are kept for people to read.
    pub ended: usize,
    /// Messages that were given to the queue since it was opened.
    pub accepted: u64,
}

impl DeadLetters {
    /// The queue in this folder's `dead-letters.jsonl`, which is read before this returns: nothing is accepted before. From then on
    /// letters are delivered by `service`, the channel with whatever belongs around it, but without the parent; by tasks
    /// of the current runtime.
    ///
    /// # Errors
    ///
    /// When the policy is invalid; the operating system's error.
    pub async fn open<S>(
        folder: &DeliveryFolder,
        policy: LetterQueuePolicy,
        ledger: DeliveryLedger,
        service: S,
    ) -> Result<Self, DeliverError>
    where
        S: Service<
                Announcement,
                Response: Into<DeliveryReceipt> + Send,
                Error: Into<Failure> + Send,
            > + Clone
            + Send
            + 'static,
        S::Future: Send,
    {
        policy.validate()?;
        let path = folder.path().to_owned();
        let (file, repair) = blocking(move || LetterFile::open(&path, policy.ended)).await?;
        event::opened("dead-letters.jsonl", repair.records, repair.bad_lines, repair.torn_bytes);
        let (mut letters, now) = (LetterBox::new(policy), clock::now_ms());
        let mut found: Vec<_> = file.letters().cloned().collect();
        // In the order in which they came, and had ended.
        found.sort_by_key(|letter| letter.ended_ms.unwrap_or(letter.kept_ms));
        let mut decided = Vec::new();
        for letter in found {
            let letter = match after_kill(&letter, &policy, &ledger) {
                Some(end) => {
                    let ended = letter.ended(end, now);
                    decided.push(ended.clone());
                    ended
                }
                None => DeadLetter { sending: false, ..letter },
            };
            letters.load(letter, now);
        }
        let journal = Journal::start(file, folder.clone(), policy.disk_retry);
        for letter in decided {
            event::letter(&letter, false);
            journal.write(letter);
        }
        Ok(Self::start(LetterQueue::new(policy, ledger, letters, Some(journal)), service))
    }

    /// A queue that ends with the process.
    ///
    /// # Errors
    ///
    /// When the policy is invalid.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn in_memory<S>(
        policy: LetterQueuePolicy,
        ledger: DeliveryLedger,
        service: S,
    ) -> Result<Self, DeliverError>
    where
        S: Service<
                Announcement,
                Response: Into<DeliveryReceipt> + Send,
                Error: Into<Failure> + Send,
            > + Clone
            + Send
            + 'static,
        S::Future: Send,
    {
        policy.validate()?;
        let queue = LetterQueue::new(policy, ledger, LetterBox::new(policy), None);
        Ok(Self::start(queue, service))
    }

    fn start<S>(queue: LetterQueue, service: S) -> Self
    where
        S: Service<
                Announcement,
                Response: Into<DeliveryReceipt> + Send,
                Error: Into<Failure> + Send,
            > + Clone
            + Send
            + 'static,
        S::Future: Send,
    {
        let queue = Arc::new(queue);
        tokio::spawn(worker::run(queue.clone(), service));
        Self(Arc::new(Running(queue)))
    }

    /// Keeps a message that was not delivered because of `failure`. When this returns true it is on the disk; false: in memory
    /// alone, until the disk takes it. Dropping the future changes nothing: the message is the queue's from its first poll on.
    ///
    /// # Errors
    ///
    /// [`DeliverError::Closed`]; [`DeliverError::Ended`] when the message has ended in a record at once: it may have been
    /// sent, will never be taken, or the queue is full of letters that are being sent.
    pub async fn keep(
        &self,
        message: &Announcement,
        failure: &Failure,
    ) -> Result<bool, DeliverError> {
        match self.queue().add(message, failure, false) {
            Added::Waits(receiver) => Ok(self.written(receiver).await),
            Added::WasDelivered => Ok(true),
            Added::Ended(end) => Err(DeliverError::Ended(end)),
            Added::Closed => Err(DeliverError::Closed),
        }
    }

    /// Whether a letter is on the disk, which is waited for only so long.
    pub(crate) fn written(
        &self,
        receiver: Option<oneshot::Receiver<bool>>,
    ) -> impl Future<Output = bool> + Send + 'static {
        let limit = self.queue().policy.disk_wait;
        async move {
            let Some(receiver) = receiver else { return false };
            match tokio::time::timeout(limit, receiver).await {
                Ok(written) => written.unwrap_or(false),
                Err(_) => {
                    event::slow_disk("dead-letters.jsonl", limit);
                    false
                }
            }
        }
    }

    /// Delivers letters now, whatever their backoff; how many. What fails then uses up no retry.
    pub fn drain(&self, which: &LetterDrain) -> usize {
        self.queue().drain(which, "by hand")
    }

    /// Drains all letters whenever the value changes and `recovered` holds for it: for the health of a provider. The task ends with
    /// the sender, or with the queue.
    pub fn drain_when<T: Send + Sync + 'static>(
        &self,
        mut health: watch::Receiver<T>,
        recovered: impl Fn(&T) -> bool + Send + 'static,
    ) {
        let queue = self.queue().clone();
        tokio::spawn(async move {
            let mut closed = queue.closed.subscribe();
            loop {
                tokio::select! {
                    changed = health.changed() => if changed.is_err() { return },
                    _ = closed.wait_for(Option::is_some) => return,
                }
                if recovered(&health.borrow_and_update()) {
                    queue.drain(&LetterDrain::All, "recovered");
                }
            }
        });
    }

    /// Drops the letter of this key: it ends in the record [`LetterEnd::Discarded`](crate::LetterEnd::Discarded).
    ///
    /// # Errors
    ///
    /// [`DeliverError::NoLetter`] when none of this key waits, or it is being sent at this moment.
    pub fn discard(&self, key: &str) -> Result<(), DeliverError> {
        match self.queue().discard(key) {
            true => Ok(()),
            false => Err(DeliverError::NoLetter(key.into())),
        }
    }

    /// What it has now, in numbers.
    pub fn snapshot(&self) -> LettersSnapshot {
        self.queue().read(|letters, accepted| LettersSnapshot {
            waiting: letters.waiting().count(),
            sending: letters.sending(),
            ended: letters.ended().count(),
            accepted,
        })
    }

    /// The letters it has now.
    pub fn list(&self) -> LetterList {
        self.queue().read(|letters, _| {
            let mut list = LetterList::default();
            list.waiting.extend(letters.waiting().cloned());
            list.ended.extend(letters.ended().cloned());
            list
        })
    }

    /// Starts no more deliveries, waits for those under way, each of which has its timeout, then for sends that have outlived
    /// theirs ([`LedgerPolicy::close_wait`](crate::LedgerPolicy::close_wait)), and writes what is not written yet. False, however often
    /// it is called: not all of it could be. The folder is unlocked when its other clones are gone.
    ///
    /// Dropped, it goes on by itself. A process that ends without it leaves the letters that were being sent as a killed one does:
    /// they end [unclear](LetterEnd::Unclear) at the next start, unless the platform takes the key. So does a send that goes on
    /// even after this.
    pub async fn close(&self) -> bool {
        let mut closed = self.queue().closed.subscribe();
        self.queue().stop();
        closed.wait_for(Option::is_some).await.is_ok_and(|written| *written == Some(true))
    }

    pub(crate) fn queue(&self) -> &Arc<LetterQueue> {
        &self.0.0
    }
}

/// How a letter ends whose attempt was under way when its process was killed; `None`: it waits.
fn after_kill(
    letter: &DeadLetter,
    policy: &LetterQueuePolicy,
    ledger: &DeliveryLedger,
) -> Option<LetterEnd> {
    if !letter.sending {
        None
    } else if ledger.delivered(&letter.key).is_some() {
        Some(LetterEnd::Delivered)
    } else {
        (!policy.resend_unclear).then_some(LetterEnd::Unclear)
    }
}

impl fmt::Debug for DeadLetters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DeadLetters").field(&self.snapshot()).finish()
    }
}
