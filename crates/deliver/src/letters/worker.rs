//! The deliveries of dead letters: one task, and one more for each destination that has any due.

use std::{future::poll_fn, sync::Arc, time::Duration};

use steadfast_core::{Failure, Reason};
use tokio::task::JoinSet;
use tower_service::Service;

use super::queue::LetterQueue;
use crate::{Announcement, DeliveryReceipt, clock};

/// Delivers until the queue is closed; then writes what is left and reports that it is done.
pub(crate) async fn run<S>(queue: Arc<LetterQueue>, service: S)
where
    S: Service<Announcement, Response: Into<DeliveryReceipt>, Error: Into<Failure>>
        + Clone
        + Send
        + 'static,
    S::Future: Send,
    S::Error: Send,
    S::Response: Send,
{
    let mut deliveries = JoinSet::new();
    loop {
        let next = queue.next_deliveries();
        for destination in next.destinations {
            deliveries.spawn(deliver_to(queue.clone(), destination, service.clone()));
        }
        if next.closing && deliveries.is_empty() {
            break;
        }
        let wait = next.due.map(|due| due.saturating_sub(clock::now_ms()));
        tokio::select! {
            () = queue.changed.notified() => {}
            // One that has panicked has given its letter back, like any other that failed.
            Some(_) = deliveries.join_next() => {}
            () = tokio::time::sleep(Duration::from_millis(wait.unwrap_or(0))), if wait.is_some() => {}
        }
    }
    queue.ledger.sends_ended().await;
    queue.note_ended_sends();
    let written = match &queue.journal {
        Some(journal) => journal.close().await,
        None => true,
    };
    queue.closed.send_replace(Some(written));
}

/// Delivers what is due at one destination, one letter after the other, until one fails.
async fn deliver_to<S>(queue: Arc<LetterQueue>, destination: Arc<str>, mut service: S)
where
    S: Service<Announcement, Response: Into<DeliveryReceipt>, Error: Into<Failure>>,
{
    let busy = Busy { queue, destination };
    let queue = &busy.queue;
    while let Some((letter, noted)) = queue.take(&busy.destination) {
        let attempt = Attempt { queue, key: &letter.key, ended: false };
        if let Some(noted) = noted {
            // A disk that takes nothing does not keep it from being sent.
            let _ = tokio::time::timeout(queue.policy.disk_wait, noted).await;
        }
        let limit = queue.policy.attempt_timeout;
        let sending = async {
            // A turn of the parent that was given up may be about to announce it.
            queue.ledger.turn_ended(&letter.key).await;
            if queue.ledger.delivered(&letter.key).is_some() {
                return Ok(());
            }
            if queue.policy.resend_unclear {
                // What may have been sent before is sent again.
                let _ = queue.ledger.take_unseen(&letter.key);
            }
            poll_fn(|cx| service.poll_ready(cx)).await.map_err(Into::into)?;
            service.call(letter.to_announcement()).await.map(drop).map_err(Into::<Failure>::into)
        };
        let failure = match tokio::time::timeout(limit, sending).await {
            Ok(Ok(())) => {
                queue.ledger.record(&letter.key);
                attempt.delivered();
                continue;
            }
            Ok(Err(failure)) => failure,
            Err(_) => {
                let message = format!("the channel has not answered within {limit:?}");
                Failure::new(Reason::Timeout, message)
            }
        };
        // Ends the round, unless the letter itself was refused: nothing else is due here then.
        attempt.failed(&failure);
    }
}

/// A destination that is delivered to.
struct Busy {
    queue: Arc<LetterQueue>,
    destination: Arc<str>,
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.queue.idle(&self.destination);
    }
}

/// A letter that is being sent: dropped without an end, it has failed.
struct Attempt<'a> {
    queue: &'a LetterQueue,
    key: &'a str,
    ended: bool,
}

impl Attempt<'_> {
    fn delivered(mut self) {
        self.ended = true;
        self.queue.delivered(self.key);
    }

    fn failed(mut self, failure: &Failure) {
        self.ended = true;
        self.queue.failed(self.key, failure);
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if !self.ended {
            let failure = Failure::new(Reason::Unknown, "the attempt has ended without an outcome");
            self.queue.failed(self.key, &failure);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{future::ready, sync::Arc};

    use steadfast_core::{Failure, Reason};
    use tower::service_fn;

    use crate::{
        Announcement, DeadLetters, DeliveryLedger, LedgerPolicy, LetterDrain, LetterQueuePolicy,
    };

    #[tokio::test(start_paused = true)]
    async fn a_letter_waits_for_the_end_of_a_turn_that_announces_it() {
        for announced in [true, false] {
            let ledger = DeliveryLedger::in_memory(LedgerPolicy::default()).unwrap();
            let sent = Arc::new(parking_lot::Mutex::new(0));
            let count = sent.clone();
            let channel = service_fn(move |_: Announcement| {
                *count.lock() += 1;
                ready(Ok::<_, Failure>(()))
            });
            let policy = LetterQueuePolicy::default();
            let letters = DeadLetters::in_memory(policy, ledger.clone(), channel).unwrap();
            let key: Arc<str> = "a".into();
            let turn = ledger.turn([&key, &key].into_iter());
            let given_up = Failure::new(Reason::Cancelled, "nobody waits for it");
            letters.keep(&Announcement::new("a", "x", "text"), &given_up).await.unwrap();
            letters.drain(&LetterDrain::All);
            tokio::time::sleep(std::time::Duration::from_secs(5)).await;
            assert_eq!(*sent.lock(), 0);
            if announced {
                ledger.record(&key);
            }
            drop(turn);
            tokio::time::sleep(std::time::Duration::from_secs(1)).await;
            assert_eq!((*sent.lock(), letters.snapshot().waiting), (u32::from(!announced), 0));
        }
    }
}
