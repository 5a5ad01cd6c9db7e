//! The future of a call and its retries.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use steadfast_core::{Call, Failure, FirstContent, Reason, Track, Waiting};
use tokio::time::Sleep;
use tower_service::Service;

use crate::call::{CallState, NextAction, Wait};

pin_project! {
    /// Calls, waits for the first content, sleeps, waits for readiness and calls again.
    ///
    /// Dropping it ends whichever of these is under way; the reservation of a retry that was not
    /// sent goes back into the budget.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<S, Req, T>
    where
        S: Service<Req>,
        T: Track<S::Response>,
    {
        #[pin]
        state: State<S::Future, T::Tracked>,
        call: CallState<S, Req>,
        track: T,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State<F, R> {
        Attempting {
            #[pin]
            attempt: FirstContent<F, R>,
        },
        // Boxed: it exists on the slow path only, and would double the size of the future.
        Sleeping {
            sleep: Pin<Box<Sleep>>,
            slot: Option<Waiting>,
        },
        Readying,
        Done,
    }
}

impl<S, Req, T> ResponseFuture<S, Req, T>
where
    S: Service<Req>,
    T: Track<S::Response>,
{
    /// For a call whose first attempt is `first`.
    #[inline]
    pub(crate) fn new(first: S::Future, call: CallState<S, Req>, track: T) -> Self {
        Self { state: State::Attempting { attempt: FirstContent::new(first) }, call, track }
    }
}

impl<S, Req, T> Future for ResponseFuture<S, Req, T>
where
    S: Service<Req> + Clone,
    S::Error: Into<Failure>,
    Req: Call + Clone,
    T: Track<S::Response>,
{
    type Output = Result<T::Tracked, Failure>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let action = match this.state.as_mut().project() {
                StateProjection::Attempting { mut attempt } => {
                    match ready!(attempt.as_mut().poll(this.track, this.call.limits(), cx)) {
                        Ok(()) => {
                            return Poll::Ready(attempt.finish(this.track, this.call.answered()));
                        }
                        Err(failure) => this.call.failed(failure),
                    }
                }
                StateProjection::Sleeping { sleep, .. } => {
                    ready!(sleep.as_mut().poll(cx));
                    this.state.set(State::Readying);
                    continue;
                }
                StateProjection::Readying => match ready!(this.call.poll_retry(cx)) {
                    Ok(call) => {
                        this.state.set(State::Attempting { attempt: FirstContent::new(call) });
                        continue;
                    }
                    Err(failure) => NextAction::GiveUp(failure),
                },
                StateProjection::Done => NextAction::GiveUp(polled_again()),
            };
            // The failed attempt has been dropped, so its connection and permits are free during the
            // wait.
            match action {
                NextAction::Retry(Wait { time, .. }) if time.is_zero() => {
                    this.state.set(State::Readying);
                }
                NextAction::Retry(Wait { time, slot }) => {
                    let sleep = Box::pin(tokio::time::sleep(time));
                    this.state.set(State::Sleeping { sleep, slot });
                }
                NextAction::GiveUp(failure) => {
                    this.state.set(State::Done);
                    return Poll::Ready(Err(failure));
                }
            }
        }
    }
}

fn polled_again() -> Failure {
    Failure::refused(Reason::Unknown, "the future of a retried call was polled after it was ready")
}

impl<S, Req, T> fmt::Debug for ResponseFuture<S, Req, T>
where
    S: Service<Req>,
    T: Track<S::Response>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Attempting { .. } => "attempting",
            State::Sleeping { .. } => "sleeping",
            State::Readying => "readying",
            State::Done => "done",
        };
        f.debug_struct("ResponseFuture")
            .field("state", &state)
            .field("call", &self.call)
            .finish_non_exhaustive()
    }
}
