//! A further call of the inner service, for the same answer.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use steadfast_chat::ChatRequest;
use steadfast_core::{Failure, Reason, Reservation, RetryBudget, Withdrawal};
use tower_service::Service;

/// What a further call will cost, and the budget that it comes back to when its answer ends well.
/// Dropped before the call is made, it goes back at once.
#[derive(Debug, Default)]
pub struct Reserved(Option<(RetryBudget, Reservation)>);

impl Reserved {
    /// Takes out what a further call after `reason` costs; `None` when there is too little left.
    pub(crate) fn reserve(budget: Option<&RetryBudget>, reason: Reason) -> Option<Self> {
        let Some(budget) = budget.map(RetryBudget::drawing) else { return Some(Self::default()) };
        let cost = budget.reserve(reason)?;
        Some(Self(Some((budget, cost))))
    }

    /// The call is made.
    fn spend(self) -> Option<(RetryBudget, Withdrawal)> {
        self.0.map(|(budget, cost)| (budget, cost.spend()))
    }
}

/// A call of a clone of the inner service, polled ready first.
pub(crate) struct FurtherCall<S: Service<ChatRequest>> {
    service: S,
    /// Until it is sent.
    request: Option<(ChatRequest, Reserved)>,
    call: Option<Pin<Box<S::Future>>>,
    spent: Option<(RetryBudget, Withdrawal)>,
}

/// What came of a further call, and what it cost.
type Called<R> = Result<(R, Option<(RetryBudget, Withdrawal)>), Failure>;

impl<S> FurtherCall<S>
where
    S: Service<ChatRequest>,
    S::Error: Into<Failure>,
{
    pub(crate) fn new(service: S, request: ChatRequest, reserved: Reserved) -> Self {
        Self { service, request: Some((request, reserved)), call: None, spent: None }
    }

    /// To be dropped once ready.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Called<S::Response>> {
        if self.request.is_some() {
            ready!(self.service.poll_ready(cx)).map_err(Into::into)?;
        }
        if let Some((request, reserved)) = self.request.take() {
            // It is asked: what that costs is gone, unless the answer ends well.
            self.spent = reserved.spend();
            self.call = Some(Box::pin(self.service.call(request)));
        }
        let Some(call) = &mut self.call else { return Poll::Pending };
        let reply = ready!(call.as_mut().poll(cx)).map_err(Into::into)?;
        Poll::Ready(Ok((reply, self.spent.take())))
    }
}
