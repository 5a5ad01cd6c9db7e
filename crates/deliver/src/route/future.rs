//! The future of a message on its way.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use steadfast_core::{Failure, Reason, time::Deadline};
use tokio::time::Sleep;
use tower_service::Service;

use super::layer::RouteShared;
use crate::{Announcement, DeliveryReceipt, DeliveryRoute, event};

pin_project! {
    /// Waits for the parent, then for the end of its turn, then for the channel. Dropping it ends whichever is under way.
    #[must_use = "futures do nothing unless polled"]
    pub struct RouteFuture<P, S>
    where
        P: Service<Announcement>,
        S: Service<Announcement>,
    {
        #[pin]
        state: State<P, P::Future, S::Future>,
        // The channel, ready; until it is called.
        channel: Option<S>,
        // Until the parent has announced the message.
        limit: Option<Pin<Box<Sleep>>>,
        message: Announcement,
        why: &'static str,
        shared: Arc<RouteShared>,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State<P, F, D> {
        Readying {
            parent: P,
        },
        Announcing {
            #[pin]
            turn: F,
        },
        // Boxed: it exists on the slow path only.
        Ending {
            ended: Pin<Box<dyn Future<Output = ()> + Send>>,
        },
        Direct {
            #[pin]
            sent: D,
        },
        Done,
    }
}

impl<P, S> RouteFuture<P, S>
where
    P: Service<Announcement>,
    S: Service<Announcement>,
{
    pub(crate) fn direct(
        sent: S::Future,
        message: Announcement,
        why: &'static str,
        shared: Arc<RouteShared>,
    ) -> Self {
        let state = State::Direct { sent };
        Self { state, channel: None, limit: None, message, why, shared }
    }

    pub(crate) fn parent(
        parent: P,
        channel: S,
        message: Announcement,
        shared: Arc<RouteShared>,
    ) -> Self {
        let limit = Box::pin(tokio::time::sleep(shared.policy.parent_timeout));
        Self {
            state: State::Readying { parent },
            channel: Some(channel),
            limit: Some(limit),
            message,
            why: "the parent did not announce it",
            shared,
        }
    }
}

impl<P, S> Future for RouteFuture<P, S>
where
    P: Service<Announcement, Error: Into<Failure>>,
    S: Service<Announcement, Response: Into<DeliveryReceipt>, Error: Into<Failure>>,
{
    type Output = Result<DeliveryReceipt, Failure>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let shared = &**this.shared;
        loop {
            let parents = match this.state.as_mut().project() {
                StateProjection::Readying { parent } => match parent.poll_ready(cx) {
                    Poll::Ready(Ok(())) => {
                        let mut message = this.message.clone();
                        // The turn knows its end, so that one which several share ends for all of them.
                        let limit = this.limit.as_ref().map(|limit| limit.deadline());
                        if let Some(at) = limit {
                            message.context = message.context.with_deadline(Deadline::at(at));
                        }
                        let turn = parent.call(message);
                        this.state.set(State::Announcing { turn });
                        continue;
                    }
                    Poll::Ready(Err(error)) => Poll::Ready(Err(error.into())),
                    Poll::Pending => Poll::Pending,
                },
                StateProjection::Announcing { turn } => {
                    turn.poll(cx).map(|result| result.map(drop).map_err(Into::into))
                }
                StateProjection::Ending { ended } => {
                    ready!(ended.as_mut().poll(cx));
                    this.state.set(State::Done);
                    if shared.ledger.delivered(&this.message.key).is_some() {
                        event::repeated(this.message, "the parent had sent it");
                        return Poll::Ready(Ok(DeliveryReceipt::new(DeliveryRoute::Repeated)));
                    }
                    let Some(mut channel) = this.channel.take() else { continue };
                    let sent = channel.call(this.message.clone());
                    this.state.set(State::Direct { sent });
                    continue;
                }
                StateProjection::Direct { sent } => {
                    let result = ready!(sent.poll(cx));
                    this.state.set(State::Done);
                    let receipt: DeliveryReceipt = match result {
                        Ok(reply) => reply.into(),
                        Err(error) => return Poll::Ready(Err(error.into())),
                    };
                    if receipt.route == DeliveryRoute::Direct {
                        shared.ledger.record(&this.message.key);
                        shared.went(receipt.route);
                        event::routed(this.message, receipt.route, this.why);
                    }
                    return Poll::Ready(Ok(receipt));
                }
                StateProjection::Done => {
                    let message = "the future of a delivery was polled after it was ready";
                    return Poll::Ready(Err(Failure::refused(Reason::Unknown, message)));
                }
            };
            let failure = match (parents, this.limit.as_mut()) {
                (Poll::Ready(Ok(())), _) => {
                    this.state.set(State::Done);
                    shared.ledger.record(&this.message.key);
                    shared.went(DeliveryRoute::Parent);
                    event::routed(this.message, DeliveryRoute::Parent, "the parent announced it");
                    return Poll::Ready(Ok(DeliveryReceipt::new(DeliveryRoute::Parent)));
                }
                (Poll::Ready(Err(failure)), _) => failure,
                (Poll::Pending, Some(limit)) => {
                    ready!(limit.as_mut().poll(cx));
                    let limit = shared.policy.parent_timeout;
                    let message = format!("the parent has not announced it within {limit:?}");
                    Failure::new(Reason::Timeout, message)
                }
                (Poll::Pending, None) => return Poll::Pending,
            };
            // Ends the turn, before anything else is sent: at once, or, where several share it, once the task that makes it has
            // noticed.
            this.state.set(State::Done);
            *this.limit = None;
            shared.parent_failed();
            event::parent_failed(this.message, &failure);
            let (ledger, key) = (shared.ledger.clone(), this.message.key.clone());
            let ended = Box::pin(async move { ledger.turn_ended(&key).await });
            this.state.set(State::Ending { ended });
        }
    }
}

impl<P, S> fmt::Debug for RouteFuture<P, S>
where
    P: Service<Announcement>,
    S: Service<Announcement>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RouteFuture").field("message", &self.message).finish_non_exhaustive()
    }
}
