//! Calling the inner service once more, for the same answer.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use parking_lot::Mutex;
use steadfast_chat::ChatRequest;
use steadfast_core::{CallContext, Deadline, Failure, Reason, RetryBudget, Withdrawal};
use tokio::time::Sleep;
use tower_service::Service;

/// What is told of a stream that ends without saying that it does.
pub(crate) fn cut_off() -> Failure {
    Failure::new(Reason::Network, "the answer ended without its terminal event")
        .with_evidence("eof")
}

/// What further calls are made with clones of. Locked for the cloning.
pub(crate) struct Spare<S>(Mutex<S>);

impl<S: Clone> Spare<S> {
    pub(crate) fn new(inner: &S) -> Self {
        Self(Mutex::new(inner.clone()))
    }

    pub(crate) fn get(&self) -> S {
        self.0.lock().clone()
    }
}

/// What a further call draws from.
#[derive(Clone, Debug, Default)]
pub(crate) enum Budget {
    /// The request's own, else the layer's.
    #[default]
    Default,
    /// This one.
    Own(RetryBudget),
    /// None.
    Unlimited,
}

/// What was taken out of a budget; put back when it is dropped before it was [spent](Self::spent).
#[derive(Debug, Default)]
pub(crate) struct Toll {
    budget: Option<RetryBudget>,
    cost: Withdrawal,
}

impl Toll {
    /// Takes out what a further call after `reason` costs; `None` when there is too little left.
    pub(crate) fn pay(budget: Option<&RetryBudget>, reason: Reason) -> Option<Self> {
        Some(match budget {
            None => Self::default(),
            Some(budget) => {
                let budget = budget.drawing();
                let cost = budget.withdraw(reason)?;
                Self { budget: Some(budget), cost }
            }
        })
    }

    /// The call is made: what it cost comes back when its answer ends well.
    pub(crate) fn spent(mut self) -> Option<(RetryBudget, Withdrawal)> {
        self.budget.take().map(|budget| (budget, self.cost))
    }
}

impl Drop for Toll {
    fn drop(&mut self) {
        if let Some(budget) = &self.budget {
            budget.refund(self.cost);
        }
    }
}

/// Why no further call can be made, as far as the request's means go.
pub(crate) fn means(context: &CallContext, asked: u32) -> Option<&'static str> {
    if context.deadline.is_some_and(Deadline::is_past) {
        Some("deadline")
    } else if context.max_attempts.is_some() && context.attempts_left() <= asked {
        Some("attempts_spent")
    } else {
        None
    }
}

/// A call of a clone of the inner service, polled ready first, within the request's deadline.
pub(crate) struct Again<S: Service<ChatRequest>> {
    state: State<S, S::Future>,
    toll: Option<Toll>,
    spent: Option<(RetryBudget, Withdrawal)>,
    sleep: Option<Pin<Box<Sleep>>>,
}

enum State<S, F> {
    Readying(Box<(S, ChatRequest)>),
    Calling(Pin<Box<F>>),
    Over,
}

/// What came of a further call, and what it cost.
pub(crate) type Came<R> = Result<(R, Option<(RetryBudget, Withdrawal)>), Failure>;

impl<S: Service<ChatRequest>> Again<S> {
    pub(crate) fn new(service: S, request: ChatRequest, toll: Toll) -> Self {
        let sleep = request.context.deadline.map(until);
        let state = State::Readying(Box::new((service, request)));
        Self { state, toll: Some(toll), spent: None, sleep }
    }
}

/// A timer for `deadline`.
pub(crate) fn until(deadline: Deadline) -> Pin<Box<Sleep>> {
    Box::pin(tokio::time::sleep_until(deadline.instant()))
}

impl<S> Again<S>
where
    S: Service<ChatRequest>,
    S::Error: Into<Failure>,
{
    /// After an error, and after an answer, it is over.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Came<S::Response>> {
        let polled = self.poll_call(cx);
        if polled.is_pending()
            && let Some(sleep) = &mut self.sleep
        {
            ready!(sleep.as_mut().poll(cx));
            self.state = State::Over;
            return Poll::Ready(Err(Failure::refused(
                Reason::Timeout,
                "the deadline passed while the answer was to be gone on with",
            )));
        }
        polled
    }

    fn poll_call(&mut self, cx: &mut Context<'_>) -> Poll<Came<S::Response>> {
        if let State::Readying(waiting) = &mut self.state {
            if let Err(error) = ready!(waiting.0.poll_ready(cx)) {
                self.state = State::Over;
                return Poll::Ready(Err(error.into()));
            }
            if let State::Readying(ready) = std::mem::replace(&mut self.state, State::Over) {
                let (mut service, request) = *ready;
                // It is asked: what that costs is gone, unless the answer ends well.
                self.spent = self.toll.take().and_then(Toll::spent);
                self.state = State::Calling(Box::pin(service.call(request)));
            }
        }
        let State::Calling(call) = &mut self.state else {
            return Poll::Ready(Err(Failure::refused(
                Reason::Unknown,
                "a further call was polled after it was over",
            )));
        };
        let came = ready!(call.as_mut().poll(cx));
        self.state = State::Over;
        Poll::Ready(match came {
            Ok(reply) => Ok((reply, self.spent.take())),
            Err(error) => Err(error.into()),
        })
    }
}

impl<S: Service<ChatRequest>> fmt::Debug for Again<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Readying(_) => "readying",
            State::Calling(_) => "calling",
            State::Over => "over",
        };
        f.debug_struct("Again").field("state", &state).finish_non_exhaustive()
    }
}
