//! The service around the inner one.

use std::task::{Context, Poll};

use steadfast_core::{Failure, IntoFailure, inner_service};
use tower_service::Service;

use super::{DeadLetterPolicy, DeadLetters, LetterFuture};
use crate::{Announcement, DeliveryReceipt};

/// Keeps what the inner service could not deliver; see [`DeadLetterLayer`](crate::DeadLetterLayer).
#[derive(Clone, Debug)]
#[must_use = "services do nothing unless called"]
pub struct KeptDelivery<S> {
    inner: S,
    letters: DeadLetters,
    policy: DeadLetterPolicy,
}

inner_service!(KeptDelivery<S>);

impl<S> KeptDelivery<S> {
    pub(crate) const fn new(inner: S, letters: DeadLetters, policy: DeadLetterPolicy) -> Self {
        Self { inner, letters, policy }
    }
}

impl<S> Service<Announcement> for KeptDelivery<S>
where
    S: Service<Announcement, Response: Into<DeliveryReceipt>, Error: IntoFailure>,
{
    type Response = DeliveryReceipt;
    type Error = Failure;
    type Future = LetterFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, message: Announcement) -> Self::Future {
        let keeps = self.policy.keeps(message.kind);
        let delivery = self.inner.call(message.clone());
        LetterFuture::new(delivery, message, self.letters.clone(), keeps)
    }
}
