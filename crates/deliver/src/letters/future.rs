//! The future of a message that is delivered or kept.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use steadfast_core::{Failure, Reason};

use super::{DeadLetters, queue::Added};
use crate::{Announcement, DeliveryReceipt, DeliveryRoute, event};

pin_project! {
    /// Delivers, and makes a dead letter of what fails. Dropped before its end, the message is one, too, and due at once.
    #[must_use = "futures do nothing unless polled"]
    pub struct LetterFuture<F> {
        // Dropped before `accepted`, which asks the ledger whether it was delivered after all.
        #[pin]
        state: State<F>,
        accepted: Accepted,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State<F> {
        Delivering {
            #[pin]
            delivery: F,
        },
        // Boxed: it exists on the slow path only.
        Writing {
            written: Pin<Box<dyn Future<Output = bool> + Send>>,
        },
        Done,
    }
}

/// A message that is ours until its fate is decided.
struct Accepted {
    message: Announcement,
    letters: DeadLetters,
    keeps: bool,
    decided: bool,
}

impl<F> LetterFuture<F> {
    pub(crate) fn new(
        delivery: F,
        message: Announcement,
        letters: DeadLetters,
        keeps: bool,
    ) -> Self {
        let accepted = Accepted { message, letters, keeps, decided: false };
        Self { state: State::Delivering { delivery }, accepted }
    }
}

impl<F, R, E> Future for LetterFuture<F>
where
    F: Future<Output = Result<R, E>>,
    R: Into<DeliveryReceipt>,
    E: Into<Failure>,
{
    type Output = Result<DeliveryReceipt, Failure>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            match this.state.as_mut().project() {
                StateProjection::Delivering { delivery } => {
                    let result = ready!(delivery.poll(cx));
                    this.state.set(State::Done);
                    match result {
                        Ok(reply) => {
                            this.accepted.decided = true;
                            return Poll::Ready(Ok(reply.into()));
                        }
                        Err(error) => match this.accepted.failed(error.into()) {
                            Decided::Kept(written) => this.state.set(State::Writing { written }),
                            Decided::Now(result) => return Poll::Ready(result),
                        },
                    }
                }
                StateProjection::Writing { written } => {
                    // In memory alone is kept, too: a full disk delays no delivery.
                    let _on_disk = ready!(written.as_mut().poll(cx));
                    this.state.set(State::Done);
                    return Poll::Ready(Ok(DeliveryReceipt::new(DeliveryRoute::Letter)));
                }
                StateProjection::Done => {
                    let message = "the future of a delivery was polled after it was ready";
                    return Poll::Ready(Err(Failure::refused(Reason::Unknown, message)));
                }
            }
        }
    }
}

type Written = Pin<Box<dyn Future<Output = bool> + Send>>;

/// What becomes of a message that was not delivered.
enum Decided {
    /// It is a letter, which is being written.
    Kept(Written),
    Now(Result<DeliveryReceipt, Failure>),
}

impl Accepted {
    fn failed(&mut self, failure: Failure) -> Decided {
        self.decided = true;
        let Self { message, letters, keeps, .. } = self;
        if !*keeps {
            event::dropped(message, &failure, "messages of its kind are not kept");
            return Decided::Now(Err(failure));
        }
        match letters.queue().add(message, &failure, false) {
            Added::Waits(receiver) => {
                event::kept(message, &failure);
                event::routed(message, DeliveryRoute::Letter, "it was not delivered");
                Decided::Kept(Box::pin(letters.written(receiver)))
            }
            Added::WasDelivered => Decided::Now(Ok(DeliveryReceipt::new(DeliveryRoute::Repeated))),
            // With an event. A failure would be an invitation to send it again.
            Added::Ended(end) => Decided::Now(Ok(DeliveryReceipt::recorded(end))),
            Added::Closed => {
                event::dropped(message, &failure, "the queue is closed");
                Decided::Now(Err(failure))
            }
        }
    }
}

impl Drop for Accepted {
    fn drop(&mut self) {
        if self.decided {
            return;
        }
        let Self { message, letters, keeps, .. } = self;
        let failure = Failure::new(Reason::Cancelled, "nobody waited for its delivery any more");
        let added = match keeps {
            true => letters.queue().add(message, &failure, true),
            false if letters.queue().ledger.delivered(&message.key).is_some() => return,
            false => Added::Closed,
        };
        match added {
            Added::Waits(_) => {
                event::kept(message, &failure);
                event::routed(message, DeliveryRoute::Letter, "its delivery was dropped");
            }
            Added::Closed => event::dropped(message, &failure, "its delivery was dropped"),
            Added::WasDelivered | Added::Ended(_) => {}
        }
    }
}

impl<F> fmt::Debug for LetterFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LetterFuture")
            .field("message", &self.accepted.message)
            .finish_non_exhaustive()
    }
}
