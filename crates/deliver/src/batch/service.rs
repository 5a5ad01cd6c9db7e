//! The service around the parent.

use std::{
    fmt,
    future::{Future, poll_fn},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use steadfast_core::{Failure, IntoFailure, Reason, Spare, time::Deadline};
use tokio::{sync::oneshot, time::Instant};
use tower_service::Service;

use super::{
    ParentTurn,
    open::{FirstOf, Joined, MemberGuard, OpenBatches},
};
use crate::{Announcement, DeliveryReceipt, DeliveryRoute, event, ledger::SharedFailure};

/// Collects announcements for turns of the parent; see [`BatchLayer`](crate::BatchLayer).
#[must_use = "services do nothing unless called"]
pub struct Batch<P> {
    parent: Spare<P>,
    open: Arc<OpenBatches>,
}

impl<P> Batch<P> {
    pub(crate) const fn new(parent: Spare<P>, open: Arc<OpenBatches>) -> Self {
        Self { parent, open }
    }
}

impl<P> Clone for Batch<P> {
    fn clone(&self) -> Self {
        Self { parent: self.parent.clone(), open: self.open.clone() }
    }
}

impl<P> Service<Announcement> for Batch<P>
where
    P: Service<ParentTurn, Error: IntoFailure> + Clone + Send + 'static,
    P::Future: Send,
    P::Response: Send,
{
    type Response = DeliveryReceipt;
    type Error = Failure;
    type Future = BatchFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, message: Announcement) -> BatchFuture {
        let Joined { outcome, guard, is_first } = self.open.join(message);
        if let Some(first) = is_first {
            tokio::spawn(make_turn(self.open.clone(), first, self.parent.get()));
        }
        BatchFuture { outcome, guard: Some(guard) }
    }
}

/// Waits for others, then makes the turn.
async fn make_turn<P>(open: Arc<OpenBatches>, first: FirstOf, mut parent: P)
where
    P: Service<ParentTurn, Error: Into<Failure>>,
{
    let batch = &first.batch;
    if first.collects {
        // What is notified is that it is full.
        let _ = tokio::time::timeout(open.policy.window, batch.changed.notified()).await;
    }
    // Dropped last: the turn has ended, and what it has announced is recorded.
    let (announcements, _turn) = open.begin_turn(&first);
    let Some(one) = announcements.first() else { return };
    let count = announcements.len();
    // The time of the first that ends, so that nobody goes on without the others.
    let limit = Instant::now() + open.policy.turn_timeout;
    let deadlines = announcements.iter().filter_map(|one| one.context.deadline);
    let until = deadlines.map(Deadline::instant).fold(limit, Instant::min);
    let context = one.context.clone().with_deadline(Deadline::at(until));
    let turn = ParentTurn { session: first.session.clone(), announcements, context };
    let announced = async {
        poll_fn(|cx| parent.poll_ready(cx)).await.map_err(Into::into)?;
        parent.call(turn).await.map(drop).map_err(Into::<Failure>::into)
    };
    let given_up = async {
        while !batch.is_given_up() {
            batch.changed.notified().await;
        }
    };
    let panics = PanicGuard { open: &open, first: &first, armed: true };
    let (result, outcome) = tokio::select! {
        biased;
        // First: what has been announced by now is not sent again, whoever has given up or whatever the time.
        result = announced => match result {
            Ok(()) => (Ok(()), "announced"),
            Err(failure) => (Err(failure), "failed"),
        },
        () = given_up => (Err(stopped("a caller of the parent's turn has given up")), "given up"),
        () = tokio::time::sleep_until(until) => {
            (Err(stopped("the parent's turn was not over in time")), "not in time")
        }
    };
    panics.disarm();
    event::turn(&first.session, count, outcome);
    match result.map_err(SharedFailure::new) {
        Ok(()) => batch.end(&open.ledger, None),
        Err(failure) => batch.end(&open.ledger, Some(&|| failure.to_failure())),
    }
}

fn stopped(message: &'static str) -> Failure {
    Failure::new(Reason::Timeout, message)
}

/// Ends a batch whose turn panicked, or whose runtime is shutting down.
struct PanicGuard<'a> {
    open: &'a OpenBatches,
    first: &'a FirstOf,
    armed: bool,
}

impl PanicGuard<'_> {
    fn disarm(mut self) {
        self.armed = false;
    }
}

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        if self.armed {
            let lost = || Failure::new(Reason::Unknown, "the parent's turn was lost");
            self.first.batch.end(&self.open.ledger, Some(&lost));
        }
    }
}

/// Waits for the turn of its announcement. Dropping it before the turn begins withdraws the announcement; afterwards it ends
/// the turn for all.
#[must_use = "futures do nothing unless polled"]
pub struct BatchFuture {
    outcome: oneshot::Receiver<Result<(), Failure>>,
    guard: Option<MemberGuard>,
}

impl Future for BatchFuture {
    type Output = Result<DeliveryReceipt, Failure>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let result = ready!(Pin::new(&mut self.outcome).poll(cx));
        self.guard = None;
        Poll::Ready(match result {
            Ok(Ok(())) => Ok(DeliveryReceipt::new(DeliveryRoute::Parent)),
            Ok(Err(failure)) => Err(failure),
            Err(_) => Err(Failure::new(Reason::Unknown, "the parent's turn was lost")),
        })
    }
}

impl fmt::Debug for BatchFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BatchFuture").finish_non_exhaustive()
    }
}

impl<P> fmt::Debug for Batch<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("open", &self.open).finish_non_exhaustive()
    }
}
