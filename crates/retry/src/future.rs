//! The future of a call and its retries.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use steadfast_core::{Call, Failure, FirstContent, Reason, Track};
use tokio::time::Sleep;
use tower_service::Service;

use crate::call::{CallState, NextAction};

pin_project! {
    /// Calls, waits for the first content, sleeps, readies the inner service and calls again.
    ///
    /// Dropping it ends whatever of these is under way; a retry that was paid for and not yet
    /// sent goes back into the budget.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<S, Req, T>
    where
        S: Service<Req>,
        T: Track<S::Response>,
    {
        #[pin]
        state: State<S::Future, S::Response, T::Buffer>,
        call: CallState<S, Req>,
        track: T,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State<F, R, B> {
        Attempting {
            #[pin]
            attempt: FirstContent<F, R, B>,
        },
        // Boxed: it exists on the slow path only, and would double the size of the future.
        Sleeping {
            sleep: Pin<Box<Sleep>>,
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
    /// For a call of which `first` is the first attempt.
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
                StateProjection::Attempting { attempt } => {
                    match ready!(attempt.poll(this.track, this.call.limits(), cx)) {
                        Ok((reply, buffer)) => {
                            this.state.set(State::Done);
                            let lease = this.call.answered();
                            return Poll::Ready(Ok(this.track.track(reply, buffer, lease)));
                        }
                        Err(failure) => this.call.failed(failure),
                    }
                }
                StateProjection::Sleeping { sleep } => {
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
            // The failed attempt has been dropped: its connection and its permits do not wait with us.
            match action {
                NextAction::Retry(wait) if wait.is_zero() => this.state.set(State::Readying),
                NextAction::Retry(wait) => {
                    let sleep = Box::pin(tokio::time::sleep(wait));
                    this.state.set(State::Sleeping { sleep });
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
