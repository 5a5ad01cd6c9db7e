//! A further call of the inner service, for the same answer.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use steadfast_core::{ChatRequest, Deadline, Failure, Reason, RetryBudget, Withdrawal};
use tokio::time::Sleep;
use tower_service::Service;

/// What was taken out of a budget; put back when it is dropped before it was [spent](Self::spent).
#[derive(Debug, Default)]
pub struct Reserved {
    budget: Option<RetryBudget>,
    cost: Withdrawal,
}

impl Reserved {
    /// Takes out what a further call after `reason` costs; `None` when there is too little left.
    pub(crate) fn reserve(budget: Option<&RetryBudget>, reason: Reason) -> Option<Self> {
        let Some(budget) = budget.map(RetryBudget::drawing) else { return Some(Self::default()) };
        let cost = budget.withdraw(reason)?;
        Some(Self { budget: Some(budget), cost })
    }

    /// The call is made: what it cost comes back when its answer ends well.
    fn spent(mut self) -> Option<(RetryBudget, Withdrawal)> {
        self.budget.take().map(|budget| (budget, self.cost))
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if let Some(budget) = &self.budget {
            budget.refund(self.cost);
        }
    }
}

/// A call of a clone of the inner service, polled ready first, within the request's deadline.
pub(crate) struct FurtherCall<S: Service<ChatRequest>> {
    state: State<S, S::Future>,
    spent: Option<(RetryBudget, Withdrawal)>,
    deadline: Option<Pin<Box<Sleep>>>,
}

enum State<S, F> {
    Readying(Box<(S, ChatRequest)>, Reserved),
    Calling(Pin<Box<F>>),
    Over,
}

/// What came of a further call, and what it cost.
pub(crate) type Called<R> = Result<(R, Option<(RetryBudget, Withdrawal)>), Failure>;

/// A timer for `deadline`.
pub(crate) fn until(deadline: Deadline) -> Pin<Box<Sleep>> {
    Box::pin(tokio::time::sleep_until(deadline.instant()))
}

impl<S> FurtherCall<S>
where
    S: Service<ChatRequest>,
    S::Error: Into<Failure>,
{
    pub(crate) fn new(service: S, request: Box<ChatRequest>, reserved: Reserved) -> Self {
        let deadline = request.context.deadline.map(until);
        let state = State::Readying(Box::new((service, *request)), reserved);
        Self { state, spent: None, deadline }
    }

    /// To be dropped once ready.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Called<S::Response>> {
        let polled = self.poll_call(cx);
        if polled.is_pending()
            && let Some(deadline) = &mut self.deadline
        {
            ready!(deadline.as_mut().poll(cx));
            let text = "the deadline passed while the answer was to be gone on with";
            return Poll::Ready(Err(Failure::refused(Reason::Timeout, text)));
        }
        polled
    }

    fn poll_call(&mut self, cx: &mut Context<'_>) -> Poll<Called<S::Response>> {
        if let State::Readying(waiting, _) = &mut self.state {
            ready!(waiting.0.poll_ready(cx)).map_err(Into::into)?;
            if let State::Readying(ready, reserved) =
                std::mem::replace(&mut self.state, State::Over)
            {
                let (mut service, request) = *ready;
                // It is asked: what that costs is gone, unless the answer ends well.
                self.spent = reserved.spent();
                self.state = State::Calling(Box::pin(service.call(request)));
            }
        }
        let State::Calling(call) = &mut self.state else { return Poll::Pending };
        let reply = ready!(call.as_mut().poll(cx)).map_err(Into::into)?;
        Poll::Ready(Ok((reply, self.spent.take())))
    }
}

impl<S: Service<ChatRequest>> fmt::Debug for FurtherCall<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FurtherCall").finish_non_exhaustive()
    }
}
