//! The future of a call and its retries.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use steadfast_core::{Call, Failure, Lease, Reason, Tracking};
use tokio::time::Sleep;
use tower_service::Service;

use crate::{
    course::{Course, Next, Spare},
    service::{Own, Reply},
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
        state: State<S::Future, S::Response, T::Look>,
        course: Course<S, Req>,
        tracking: T,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<F, R, L> {
        Calling {
            #[pin]
            call: F,
        },
        // The answer has begun and its first content has not come.
        Looking {
            // `None` once it has.
            reply: Option<R>,
            look: L,
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
    #[inline]
    pub(crate) fn new(ready: &mut S, request: Req, own: Arc<Own<S>>, tracking: T) -> Self {
        let spare = Spare::of(&request, &own);
        let call = ready.call(request);
        Self { state: State::Calling { call }, course: Course::new(own, spare), tracking }
    }
}

impl<S, Req, T> Future for ResponseFuture<S, Req, T>
where
    S: Service<Req> + Clone,
    S::Error: Into<Failure>,
    Req: Call + Clone,
    T: Tracking<S::Response>,
{
    type Output = Result<Reply<T, S::Response>, Failure>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let failed = match this.state.as_mut().project() {
                StateProj::Calling { call } => match ready!(call.poll(cx)) {
                    Ok(mut reply) => {
                        let (mut look, peek) = (T::Look::default(), this.course.peek());
                        match this.tracking.poll_content(&mut reply, &mut look, peek, cx) {
                            Poll::Ready(Ok(())) => {
                                this.state.set(State::Done);
                                return Poll::Ready(Ok(commit(
                                    this.tracking,
                                    this.course,
                                    reply,
                                    look,
                                )));
                            }
                            Poll::Ready(Err(failure)) => this.course.failed(failure, true),
                            Poll::Pending => {
                                let reply = Some(reply);
                                this.state.set(State::Looking { reply, look });
                                return Poll::Pending;
                            }
                        }
                    }
                    Err(error) => this.course.failed(error.into(), false),
                },
                StateProj::Looking { reply: place, look } => {
                    let Some(reply) = place else { return Poll::Ready(Err(polled_twice())) };
                    let peek = this.course.peek();
                    match ready!(this.tracking.poll_content(reply, look, peek, cx)) {
                        Ok(()) => {
                            let look = std::mem::take(look);
                            let Some(reply) = place.take() else {
                                return Poll::Ready(Err(polled_twice()));
                            };
                            this.state.set(State::Done);
                            return Poll::Ready(Ok(commit(
                                this.tracking,
                                this.course,
                                reply,
                                look,
                            )));
                        }
                        Err(failure) => this.course.failed(failure, true),
                    }
                }
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

/// Hands on a reply that has begun.
#[inline]
fn commit<S, Req: Call, R, T: Tracking<R>>(
    tracking: &T,
    course: &Course<S, Req>,
    reply: R,
    look: T::Look,
) -> T::Committed {
    if T::AT_ONCE {
        course.succeeded_at_once();
        return tracking.commit(reply, look, Lease::idle());
    }
    tracking.commit(reply, look, course.succeeded())
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
            State::Looking { .. } => "looking",
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
