//! The future of a call whose spend is observed.

use std::{
    fmt,
    future::Future,
    marker::PhantomData,
    pin::Pin,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use steadfast_core::{Call, Failure, Reason, SpendLease, SpendRefusal};
use tower_service::Service;

use super::event;
use crate::{MeteredReply, meter::ReplyMeter};

/// A service that admits calls: a [`SpendLimit`](crate::SpendLimit) or a [`SpendMeter`](crate::SpendMeter).
pub trait Admit<Req>: Sized {
    /// What the calls are made by.
    type Inner: Service<Req>;
    /// What observes their replies.
    type Meter: ReplyMeter;

    /// What observes the reply to `request`, if that may be made.
    fn admit(&self, request: &mut Req) -> Result<Option<Self::Meter>, NotAdmitted>;

    /// The service inside.
    fn inner(&mut self) -> &mut Self::Inner;
}

/// Why a call may not be made, now or at all.
#[derive(Debug)]
pub struct NotAdmitted {
    /// The cap that leaves too little.
    pub refusal: Box<SpendRefusal>,
    /// What may change that: other processes spend from the same account, and the state that they share has not been
    /// asked.
    pub lease: Option<SpendLease>,
}

pin_project! {
    /// The future of a call through a [`SpendLimit`](crate::SpendLimit) or a [`SpendMeter`](crate::SpendMeter).
    /// Dropping it charges what the call may have cost by then.
    #[must_use = "futures do nothing unless polled"]
    pub struct MeteredFuture<A: Admit<Req>, Req, T> {
        #[pin]
        state: State<<A::Inner as Service<Req>>::Future, A, Req>,
        reach: PhantomData<fn() -> T>,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State<F, A: Admit<Req>, Req> {
        Calling { #[pin] inner: F, meter: Option<A::Meter> },
        // Boxed: hardly any call waits.
        Leasing { waiting: Box<Waiting<A, Req>> },
        Over { failure: Option<Failure> },
    }
}

/// How often a call waits for a lease, at most: what was granted for it may go to another one that came meanwhile.
const ROUNDS: u8 = 3;

/// A call that waits for what it may spend, with the service that is ready for it.
struct Waiting<A, Req> {
    lease: SpendLease,
    rounds: u8,
    service: A,
    /// `None` once it is made.
    request: Option<Req>,
}

impl<A: Admit<Req>, Req: Call, T> MeteredFuture<A, Req, T> {
    /// Makes `request` by `service`, whose inner service is ready, as soon as it is admitted; `ready` takes the service
    /// for a call that waits.
    #[inline]
    pub(crate) fn new(service: &mut A, mut request: Req, ready: impl FnOnce(&mut A) -> A) -> Self {
        let state = match service.admit(&mut request) {
            Ok(meter) => State::Calling { inner: service.inner().call(request), meter },
            Err(NotAdmitted { lease: Some(lease), .. }) => {
                let (service, request) = (ready(service), Some(request));
                let waiting = Waiting { lease, rounds: 1, service, request };
                State::Leasing { waiting: Box::new(waiting) }
            }
            Err(NotAdmitted { refusal, .. }) => {
                State::Over { failure: Some(event::refused(*refusal, request.context())) }
            }
        };
        Self { state, reach: PhantomData }
    }
}

impl<A, Req, T, R, E> Future for MeteredFuture<A, Req, T>
where
    A: Admit<Req>,
    A::Inner: Service<Req, Response = R, Error = E>,
    Req: Call,
    E: Into<Failure>,
    R: MeteredReply<Option<A::Meter>, T>,
{
    type Output = Result<R::Metered, Failure>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let (polled, mut meter) = loop {
            match this.state.as_mut().project() {
                StateProjection::Calling { inner, meter } => {
                    break (ready!(inner.poll(cx)), meter.take());
                }
                StateProjection::Leasing { waiting } => {
                    ready!(Pin::new(&mut waiting.lease).poll(cx));
                    if let Some(next) = waiting.admitted() {
                        this.state.set(next);
                    }
                }
                StateProjection::Over { failure } => {
                    return Poll::Ready(Err(failure.take().unwrap_or_else(polled_again)));
                }
            }
        };
        this.state.set(State::Over { failure: None });
        Poll::Ready(match polled {
            Ok(reply) => Ok(reply.metered(meter)),
            Err(error) => {
                let failure = error.into();
                meter.failure(&failure);
                Err(failure)
            }
        })
    }
}

impl<A: Admit<Req>, Req: Call> Waiting<A, Req> {
    /// The state has answered, or not in time: the call is made, or it ends, or (`None`) it waits again.
    fn admitted(&mut self) -> Option<State<<A::Inner as Service<Req>>::Future, A, Req>> {
        let Some(mut request) = self.request.take() else {
            return Some(State::Over { failure: None });
        };
        Some(match self.service.admit(&mut request) {
            Ok(meter) => State::Calling { inner: self.service.inner().call(request), meter },
            Err(NotAdmitted { lease: Some(lease), .. }) if self.rounds < ROUNDS => {
                (self.lease, self.request) = (lease, Some(request));
                self.rounds += 1;
                return None;
            }
            Err(NotAdmitted { refusal, .. }) => {
                State::Over { failure: Some(event::refused(*refusal, request.context())) }
            }
        })
    }
}

fn polled_again() -> Failure {
    Failure::refused_fixed(Reason::Unknown, "`MeteredFuture` was polled after it was ready")
}

impl<A: Admit<Req>, Req, T> fmt::Debug for MeteredFuture<A, Req, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let over = matches!(self.state, State::Over { .. });
        f.debug_struct("MeteredFuture").field("over", &over).finish_non_exhaustive()
    }
}
