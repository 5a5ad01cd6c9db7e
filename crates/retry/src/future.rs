//! The future of a call and its retries.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use steadfast_core::{Call, Failure, Reason, Tracking};
use tokio::time::Sleep;
use tower_service::Service;

use crate::{
    course::{Course, Next},
    service::Reply,
    state::Shared,
};

pin_project! {
    /// Calls, waits for the first content, sleeps, readies the inner service and calls again.
    ///
    /// Dropping it ends whatever of these is under way; a retry that was paid for and not yet
    /// sent goes back into the budget.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<S, Req, T>
    where
        S: Service<Req>,
        T: Tracking<S::Response>,
    {
        #[pin]
        state: State<S::Future, <T as Tracking<S::Response>>::Commit>,
        course: Course<S, Req>,
        tracking: T,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<F, C> {
        Calling {
            #[pin]
            call: F,
        },
        Committing {
            #[pin]
            commit: C,
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
    S: Service<Req> + Clone,
    Req: Call + Clone,
    T: Tracking<S::Response>,
{
    /// Calls `ready`, which has been polled ready.
    pub(crate) fn new(ready: &mut S, request: Req, shared: Arc<Shared>, tracking: T) -> Self {
        let (course, request) = Course::begin(ready, request, shared);
        let call = ready.call(request);
        Self { state: State::Calling { call }, course, tracking }
    }
}

impl<S, Req, T> Future for ResponseFuture<S, Req, T>
where
    S: Service<Req>,
    S::Error: Into<Failure>,
    Req: Call + Clone,
    T: Tracking<S::Response> + Tracking<<T as Tracking<S::Response>>::Committed>,
{
    type Output = Result<Reply<T, S::Response>, Failure>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let failed = match this.state.as_mut().project() {
                StateProj::Calling { call } => match ready!(call.poll(cx)) {
                    Ok(reply) => {
                        let commit = this.tracking.commit(reply, this.course.peek());
                        this.state.set(State::Committing { commit });
                        continue;
                    }
                    Err(error) => this.course.failed(error.into(), false),
                },
                StateProj::Committing { commit } => match ready!(commit.poll(cx)) {
                    Ok(committed) => {
                        let lease = this.course.succeeded();
                        let reply = this.tracking.track(committed, lease);
                        this.state.set(State::Done);
                        return Poll::Ready(Ok(reply));
                    }
                    Err(failure) => this.course.failed(failure, true),
                },
                StateProj::Sleeping { sleep } => {
                    ready!(sleep.as_mut().poll(cx));
                    this.state.set(State::Readying);
                    continue;
                }
                StateProj::Readying => match ready!(this.course.poll_next(cx)) {
                    Ok(call) => {
                        this.state.set(State::Calling { call });
                        continue;
                    }
                    // The inner service is gone for good: there is nothing to retry on.
                    Err(failure) => Next::GiveUp(failure),
                },
                StateProj::Done => return Poll::Ready(Err(polled_twice())),
            };
            match failed {
                // Either way the failed attempt is dropped here, before any sleep: its
                // connection and its permits do not wait with us.
                Next::Retry(wait) if wait.is_zero() => this.state.set(State::Readying),
                Next::Retry(wait) => {
                    let sleep = Box::pin(tokio::time::sleep(wait));
                    this.state.set(State::Sleeping { sleep });
                }
                Next::GiveUp(failure) => {
                    this.state.set(State::Done);
                    return Poll::Ready(Err(failure));
                }
            }
        }
    }
}

fn polled_twice() -> Failure {
    Failure::refused(Reason::Unknown, "the future of a retried call was polled after it was ready")
}

impl<S, Req, T> fmt::Debug for ResponseFuture<S, Req, T>
where
    S: Service<Req>,
    T: Tracking<S::Response>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Calling { .. } => "calling",
            State::Committing { .. } => "committing",
            State::Sleeping { .. } => "sleeping",
            State::Readying => "readying",
            State::Done => "done",
        };
        f.debug_struct("ResponseFuture")
            .field("state", &state)
            .field("course", &self.course)
            .finish_non_exhaustive()
    }
}
