//! The future of a call below a rate limit.

use std::{
    fmt,
    future::Future,
    marker::PhantomData,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use pin_project_lite::pin_project;
use steadfast_core::{
    Call, Failure, IntoFailure, Reason, Spare, Waiting as WaitingSlot, time::Alarm,
};
use tokio::time::Instant;
use tower_service::Service;

use super::{
    RatePermit, event,
    state::{Turn, Waiter},
};
use crate::{MeteredReply, meter::ReplyMeter};

pin_project! {
    /// The future of a call through a [`RateLimited`](crate::RateLimited): waits for its turn, if it has to, and
    /// then for the reply. Dropping it frees what it holds, and its position among those that wait.
    #[must_use = "futures do nothing unless polled"]
    pub struct RateFuture<S, Req, T>
    where
        S: Service<Req>,
    {
        #[pin]
        state: State<S, Req>,
        reach: PhantomData<fn() -> T>,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State<S, Req>
    where
        S: Service<Req>,
    {
        Calling { #[pin] inner: S::Future, permit: Option<RatePermit>, waited: Duration },
        // Boxed: most calls never wait.
        Waiting { wait: Box<Waiting<S, Req>> },
        Refused { failure: Option<Failure> },
    }
}

/// A call that waits: first for its turn, then for the inner service.
struct Waiting<S, Req> {
    waiter: Option<Waiter>,
    /// Its place among all calls that wait, for whatever it is.
    slot: Option<WaitingSlot>,
    waited: Duration,
    alarm: Option<Alarm>,
    permit: Option<RatePermit>,
    spare: Spare<S>,
    service: Option<S>,
    request: Option<Req>,
}

impl<S: Service<Req>, Req, T> RateFuture<S, Req, T> {
    #[inline]
    pub(crate) fn calling(inner: S::Future, permit: RatePermit) -> Self {
        let state = State::Calling { inner, permit: Some(permit), waited: Duration::ZERO };
        Self { state, reach: PhantomData }
    }

    pub(crate) fn waiting(
        waiter: Waiter,
        slot: Option<WaitingSlot>,
        spare: Spare<S>,
        request: Req,
    ) -> Self {
        let wait = Waiting {
            waiter: Some(waiter),
            slot,
            waited: Duration::ZERO,
            alarm: None,
            permit: None,
            spare,
            service: None,
            request: Some(request),
        };
        Self { state: State::Waiting { wait: Box::new(wait) }, reach: PhantomData }
    }

    pub(crate) fn refused(failure: Failure) -> Self {
        Self { state: State::Refused { failure: Some(failure) }, reach: PhantomData }
    }
}

impl<S, Req, T> Future for RateFuture<S, Req, T>
where
    S: Service<Req> + Clone,
    S::Error: IntoFailure,
    S::Response: MeteredReply<RatePermit, T>,
    Req: Call,
{
    type Output = Result<<S::Response as MeteredReply<RatePermit, T>>::Metered, Failure>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            match this.state.as_mut().project() {
                StateProjection::Calling { inner, permit, waited } => {
                    // In hand while the inner future runs: should that panic, it is dropped.
                    let held = permit.take();
                    let polled = match inner.poll(cx) {
                        Poll::Pending => {
                            *permit = held;
                            return Poll::Pending;
                        }
                        Poll::Ready(polled) => polled,
                    };
                    let waited = *waited;
                    this.state.set(State::Refused { failure: None });
                    let Some(mut permit) = held else { return Poll::Ready(Err(polled_again())) };
                    return Poll::Ready(match polled {
                        Ok(reply) => Ok(reply.metered(permit)),
                        Err(error) => {
                            let failure = error.into();
                            permit.failure(&failure);
                            Err(with_wait(failure, waited))
                        }
                    });
                }
                StateProjection::Waiting { wait } => match ready!(wait.poll_call(cx)) {
                    Ok((inner, permit)) => {
                        let (permit, waited) = (Some(permit), wait.waited);
                        this.state.set(State::Calling { inner, permit, waited });
                    }
                    Err(failure) => {
                        let failure = with_wait(failure, wait.waited);
                        this.state.set(State::Refused { failure: None });
                        return Poll::Ready(Err(failure));
                    }
                },
                StateProjection::Refused { failure } => {
                    return Poll::Ready(Err(failure.take().unwrap_or_else(polled_again)));
                }
            }
        }
    }
}

impl<S, Req> Waiting<S, Req>
where
    S: Service<Req> + Clone,
    S::Error: IntoFailure,
    Req: Call,
{
    fn poll_call(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(S::Future, RatePermit), Failure>> {
        while let Some(waiter) = &mut self.waiter {
            let now = Instant::now();
            self.waited = waiter.waited(now);
            match waiter.poll(cx.waker(), now) {
                Turn::Permit(permit) => {
                    if let Some(request) = &self.request {
                        let log = &request.context().log;
                        event::waited(waiter.key().target(), self.waited, log);
                    }
                    self.permit = Some(permit);
                    (self.waiter, self.alarm, self.slot) = (None, None, None);
                }
                Turn::Refused(refused) => {
                    (self.waiter, self.slot) = (None, None);
                    let failure =
                        self.request.as_ref().map(|request| refused.failure(request.context()));
                    return Poll::Ready(Err(failure.unwrap_or_else(polled_again)));
                }
                Turn::Later(at) => {
                    match &mut self.alarm {
                        Some(alarm) if alarm.deadline() == at && !alarm.is_elapsed() => {}
                        Some(alarm) => alarm.reset(at),
                        None => self.alarm = Some(Alarm::at(at)),
                    }
                    if let Some(alarm) = &mut self.alarm {
                        ready!(alarm.poll(cx));
                    }
                }
            }
        }
        let service = self.service.get_or_insert_with(|| self.spare.get());
        if let Err(error) = ready!(service.poll_ready(cx)) {
            // The request was not sent: dropped, the permit gives back what it took.
            self.permit = None;
            return Poll::Ready(Err(error.into()));
        }
        match (self.permit.take(), self.request.take()) {
            (Some(mut permit), Some(request)) => {
                permit.sent();
                Poll::Ready(Ok((service.call(request), permit)))
            }
            _ => Poll::Ready(Err(polled_again())),
        }
    }
}

/// With what the call has waited here: all its waits together are limited.
fn with_wait(failure: Failure, waited: Duration) -> Failure {
    match waited.is_zero() {
        true => failure,
        false => {
            let before = failure.waited();
            failure.with_waited(before.saturating_add(waited))
        }
    }
}

fn polled_again() -> Failure {
    Failure::refused_fixed(Reason::Unknown, "`RateFuture` was polled after it was ready")
}

impl<S: Service<Req>, Req, T> fmt::Debug for RateFuture<S, Req, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Calling { .. } => "calling",
            State::Waiting { .. } => "waiting",
            State::Refused { .. } => "over",
        };
        f.debug_struct("RateFuture").field("state", &state).finish_non_exhaustive()
    }
}
