//! The future of a message and its retries.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll, ready},
    time::Duration,
};

use pin_project_lite::pin_project;
use steadfast_core::{Call, Failure, Kept, Reason, Spare, time::Deadline};
use tokio::time::Sleep;
use tower_service::Service;

use super::{decide::RetryDecision, layer::RetryShared};
use crate::{event, unclear::is_unclear};

pin_project! {
    /// Sends, sleeps, waits for readiness and sends again. Dropping it ends whichever of these is under way.
    #[must_use = "futures do nothing unless polled"]
    pub struct RetryFuture<S, Req>
    where
        S: Service<Req>,
    {
        #[pin]
        state: State<S, S::Future>,
        spare: Spare<S>,
        kept: Kept<Req>,
        retries: u32,
        previous: Duration,
        shared: Arc<RetryShared>,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State<S, F> {
        Attempting {
            #[pin]
            attempt: F,
        },
        // Boxed: it exists on the slow path only.
        Sleeping {
            sleep: Pin<Box<Sleep>>,
        },
        Readying {
            service: S,
        },
        Done,
    }
}

impl<S: Service<Req>, Req> RetryFuture<S, Req> {
    pub(crate) fn new(
        first: S::Future,
        spare: Spare<S>,
        kept: Kept<Req>,
        shared: Arc<RetryShared>,
    ) -> Self {
        let state = State::Attempting { attempt: first };
        Self { state, spare, kept, retries: 0, previous: Duration::ZERO, shared }
    }
}

impl<S, Req> Future for RetryFuture<S, Req>
where
    S: Service<Req> + Clone,
    S::Error: Into<Failure>,
    Req: Call + Clone,
{
    type Output = Result<S::Response, Failure>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let failed = match this.state.as_mut().project() {
                StateProjection::Attempting { attempt } => match ready!(attempt.poll(cx)) {
                    Ok(reply) => {
                        this.state.set(State::Done);
                        return Poll::Ready(Ok(reply));
                    }
                    Err(error) => error.into(),
                },
                StateProjection::Sleeping { sleep } => {
                    ready!(sleep.as_mut().poll(cx));
                    this.state.set(State::Readying { service: this.spare.get() });
                    continue;
                }
                StateProjection::Readying { service } => match ready!(service.poll_ready(cx)) {
                    Ok(()) => {
                        let request = match *this.retries >= this.shared.policy.retries {
                            true => this.kept.take_last(),
                            false => match &*this.kept {
                                Kept::Request(request) => Some(request.clone()),
                                Kept::Context(_) => None,
                            },
                        };
                        let Some(mut request) = request else {
                            this.state.set(State::Done);
                            return Poll::Ready(Err(polled_again()));
                        };
                        request.context_mut().attempts += *this.retries;
                        this.shared.retries.fetch_add(1, Ordering::Relaxed);
                        let attempt = service.call(request);
                        this.state.set(State::Attempting { attempt });
                        continue;
                    }
                    Err(error) => error.into(),
                },
                StateProjection::Done => return Poll::Ready(Err(polled_again())),
            };
            let context = this.kept.context();
            let left = context.deadline.map_or(Duration::MAX, Deadline::remaining);
            match this.shared.decide(&failed, *this.retries, *this.previous, left) {
                RetryDecision::Retry(wait) => {
                    event::retried(context, &failed, *this.retries + 1, wait);
                    *this.retries += 1;
                    *this.previous = wait;
                    // The failed attempt is dropped, so what it held is free during the wait.
                    this.state.set(State::Sleeping { sleep: Box::pin(tokio::time::sleep(wait)) });
                }
                RetryDecision::GiveUp(why) => {
                    event::gave_up(context, &failed, *this.retries, why);
                    this.shared.gave_up.fetch_add(1, Ordering::Relaxed);
                    this.state.set(State::Done);
                    let attempts = failed.attempts() + *this.retries;
                    let unclear = is_unclear(&failed) && !this.shared.policy.resend_unclear;
                    let failed = failed.with_attempts(attempts);
                    return Poll::Ready(Err(match unclear {
                        true => failed.with_delivered(),
                        false => failed,
                    }));
                }
            }
        }
    }
}

fn polled_again() -> Failure {
    Failure::refused(Reason::Unknown, "the future of a delivery was polled after it was ready")
}

impl<S: Service<Req>, Req> fmt::Debug for RetryFuture<S, Req> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryFuture").field("retries", &self.retries).finish_non_exhaustive()
    }
}
