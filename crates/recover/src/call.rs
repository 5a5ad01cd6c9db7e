//! Further calls of the inner service, for the same answer.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use steadfast_chat::ChatRequest;
use steadfast_core::{Failure, Reason, Reservation, RetryBudget, Withdrawal};
use tower_service::Service;

/// The cost of a further call, and the budget to which it is refunded when the answer succeeds. When it
/// is dropped before the call is made, it is refunded at once.
#[derive(Debug, Default)]
pub struct Reserved(Option<(RetryBudget, Reservation)>);

impl Reserved {
    /// Reserves the cost of a further call after `reason`; `None` when too little is left.
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

/// The reply to a further call, and what it cost.
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
            // From now on the cost is refunded only if the answer succeeds.
            self.spent = reserved.spend();
            self.call = Some(Box::pin(self.service.call(request)));
        }
        let Some(call) = &mut self.call else { return Poll::Pending };
        let reply = ready!(call.as_mut().poll(cx)).map_err(Into::into)?;
        Poll::Ready(Ok((reply, self.spent.take())))
    }
}
