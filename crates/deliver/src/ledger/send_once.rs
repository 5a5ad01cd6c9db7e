//! The layer next to the channel.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use steadfast_core::{Failure, IntoFailure, Reason, inner_service};
use tokio::sync::watch;
use tower_layer::Layer;
use tower_service::Service;

use super::{
    DeliveryLedger, SendStart,
    handle::{SendOutcome, SharedFailure},
};
use crate::{Announcement, DeliveryReceipt, DeliveryRoute, event};

/// Sends the message of a key once: what the [ledger](DeliveryLedger) has is answered without the channel
/// ([`DeliveryRoute::Repeated`]), and what is being sent is waited for.
///
/// A send is a task of its own, which goes on when nobody waits for it any more. So a timeout further out does not end it half
/// way, and what follows the timeout (a retry, the other route, a letter) finds out how it ended instead of sending again. When it
/// ended while nobody waited, and may have been sent, the next call of its key is answered with that failure.
///
/// Its services need a tokio runtime.
#[derive(Clone, Debug)]
#[must_use = "a layer does nothing until it wraps a service"]
pub struct SendOnceLayer {
    ledger: DeliveryLedger,
}

impl SendOnceLayer {
    /// By this ledger, which the other layers share.
    pub fn new(ledger: DeliveryLedger) -> Self {
        Self { ledger }
    }
}

impl<S> Layer<S> for SendOnceLayer {
    type Service = SendOnce<S>;

    fn layer(&self, inner: S) -> Self::Service {
        SendOnce { inner, ledger: self.ledger.clone() }
    }
}

/// Sends each message once; see [`SendOnceLayer`].
#[derive(Clone, Debug)]
#[must_use = "services do nothing unless called"]
pub struct SendOnce<S> {
    inner: S,
    ledger: DeliveryLedger,
}

inner_service!(SendOnce<S>);

impl<S> Service<Announcement> for SendOnce<S>
where
    S: Service<Announcement, Response: Into<DeliveryReceipt>, Error: IntoFailure>,
    S::Future: Send + 'static,
{
    type Response = DeliveryReceipt;
    type Error = Failure;
    type Future = SendFuture;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, message: Announcement) -> SendFuture {
        let key = message.key.clone();
        let outcome = match self.ledger.begin(&key) {
            SendStart::Delivered => {
                event::repeated(&message, "it was delivered before");
                None
            }
            SendStart::Joined(outcome) => {
                event::repeated(&message, "it is being sent");
                Some(Box::pin(ended(outcome, self.ledger.clone(), key)) as Ended)
            }
            SendStart::Unseen(failure) => {
                event::repeated(&message, "it may have been sent before");
                Some(Box::pin(std::future::ready(Err(failure))) as Ended)
            }
            SendStart::Started(guard, outcome) => {
                let sent = self.inner.call(message);
                let limit = self.ledger.policy().send_limit;
                tokio::spawn(async move {
                    let outcome = match tokio::time::timeout(limit, sent).await {
                        Ok(Ok(receipt)) => Ok(receipt.into()),
                        Ok(Err(error)) => Err(SharedFailure::new(error.into())),
                        Err(_) => Err(SharedFailure::new(
                            Failure::new(Reason::Timeout, "the channel has not answered in time")
                                .with_delivered(),
                        )),
                    };
                    guard.ended(outcome);
                });
                Some(Box::pin(ended(outcome, self.ledger.clone(), key)) as Ended)
            }
        };
        SendFuture { outcome }
    }
}

type Ended = Pin<Box<dyn Future<Output = Result<DeliveryReceipt, Failure>> + Send>>;

async fn ended(
    mut outcome: watch::Receiver<Option<SendOutcome>>,
    ledger: DeliveryLedger,
    key: Arc<str>,
) -> Result<DeliveryReceipt, Failure> {
    match outcome.wait_for(Option::is_some).await.as_deref() {
        Ok(Some(Ok(receipt))) => Ok(receipt.clone()),
        Ok(Some(Err(failure))) => {
            let _ = ledger.take_unseen(&key);
            Err(failure.to_failure())
        }
        // The task ends it in any case.
        Ok(None) | Err(_) => {
            Err(Failure::new(Reason::Cancelled, "the send was lost").with_delivered())
        }
    }
}

/// Waits for a send. Dropping it does not end the send.
#[must_use = "futures do nothing unless polled"]
pub struct SendFuture {
    /// `None`: it was delivered before.
    outcome: Option<Ended>,
}

impl Future for SendFuture {
    type Output = Result<DeliveryReceipt, Failure>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.outcome {
            Some(outcome) => outcome.as_mut().poll(cx),
            None => Poll::Ready(Ok(DeliveryReceipt::new(DeliveryRoute::Repeated))),
        }
    }
}

impl fmt::Debug for SendFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendFuture").field("sending", &self.outcome.is_some()).finish()
    }
}
