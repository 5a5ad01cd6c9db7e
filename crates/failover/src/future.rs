//! One call, from target to target.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use steadfast_core::{Call, Failure, Lease, Reason, Tracking};
use tokio::time::Sleep;
use tower_service::Service;

use crate::{
    attempt::Attempt,
    course::{Choice, Course, Next},
};

/// A reply whose first content has come.
pub(crate) type Committed<T, R> = <T as Tracking<R>>::Committed;

/// What a call answers: the inner service's reply of type `R`, after its first content and with a
/// lease on it.
pub type Reply<T, R> = <T as Tracking<Committed<T, R>>>::Tracked;

type Lane<S, Req, T> =
    Attempt<<S as Service<Req>>::Future, <T as Tracking<<S as Service<Req>>::Response>>::Commit>;

pin_project! {
    /// One call, from target to target. Dropping it ends what is under way and frees every place
    /// held.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<S, Req, T>
    where
        S: Service<Req>,
        T: Tracking<S::Response>,
    {
        service: S,
        tracking: T,
        // `None` once the last attempt has it.
        request: Option<Req>,
        course: Course,
        #[pin]
        main: Option<Lane<S, Req, T>>,
        // Asked beside `main`, when that takes long.
        hedge: Option<Pin<Box<Lane<S, Req, T>>>>,
        hedged: bool,
        timer: Timer,
        wish: Wish<Req>,
    }
}

/// What the call waits for besides its attempts.
enum Timer {
    Off,
    /// Time for a hedge.
    Hedge(Pin<Box<Sleep>>),
    /// A target to come back.
    Rest(Pin<Box<Sleep>>),
}

/// What is to be done next.
enum Wish<Req> {
    /// Nothing but to wait for what is under way.
    Nothing,
    /// Choose the next target.
    Choose,
    /// Call this target as soon as the service is ready: beside the attempt under way, if there
    /// is one.
    Send { slot: u8, lease: Lease, request: Req },
    /// Say how it ended.
    End(Failure),
    /// It has been said.
    Over,
}

/// What a choice came to.
enum Chosen<Req> {
    Send { slot: u8, lease: Lease, request: Req },
    Wait(Pin<Box<Sleep>>),
    End(Failure),
}

impl<S, Req, T> ResponseFuture<S, Req, T>
where
    S: Service<Req> + Clone,
    Req: Call + Clone,
    T: Tracking<S::Response>,
{
    /// Makes the first attempt. `service` is ready.
    pub(crate) fn new(mut service: S, tracking: T, request: Req, mut course: Course) -> Self {
        let mut request = Some(request);
        let (mut main, mut timer, mut wish) = (None, Timer::Off, Wish::Nothing);
        match choose(&mut request, &mut course) {
            Chosen::Send { slot, lease, request } => {
                main = Some(Attempt::new(service.call(request), slot, lease));
            }
            Chosen::Wait(sleep) => {
                timer = Timer::Rest(sleep);
                // Whatever its readiness reserved is not kept from others meanwhile.
                service = service.clone();
            }
            Chosen::End(failure) => wish = Wish::End(failure),
        }
        Self { service, tracking, request, course, main, hedge: None, hedged: false, timer, wish }
    }
}

/// Chooses the next target and fits the request to it. Done before the service is asked to be
/// ready, so that a call which is over says so at once.
fn choose<Req: Call + Clone>(request: &mut Option<Req>, course: &mut Course) -> Chosen<Req> {
    while request.is_some() {
        match course.next() {
            Next::Go(choice) => {
                if let Some((slot, lease, request)) = prepare(request, course, choice) {
                    return Chosen::Send { slot, lease, request };
                }
            }
            Next::Wait(wait) => return Chosen::Wait(Box::pin(tokio::time::sleep(wait))),
            Next::End => break,
        }
    }
    Chosen::End(course.finish())
}

/// The request as `choice` gets it; `None` when it could not be made to fit.
fn prepare<Req: Call + Clone>(
    request: &mut Option<Req>,
    course: &mut Course,
    choice: Choice,
) -> Option<(u8, Lease, Req)> {
    let mut prepared = if choice.last { request.take() } else { request.clone() }?;
    match course.prepare(choice, &mut prepared) {
        Ok(lease) => Some((choice.slot, lease, prepared)),
        Err(failure) => {
            course.unfit(choice.slot, failure);
            None
        }
    }
}

impl<S, Req, T> Future for ResponseFuture<S, Req, T>
where
    S: Service<Req> + Clone,
    S::Error: Into<Failure>,
    Req: Call + Clone,
    T: Tracking<S::Response> + Tracking<Committed<T, S::Response>>,
{
    type Output = Result<Reply<T, S::Response>, Failure>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let peek = this.course.policy().peek;
        loop {
            // Both attempts, then the clock, then what is to be done.
            let mut won = None;
            if let Some(main) = this.main.as_mut().as_pin_mut() {
                let slot = main.slot();
                match main.poll::<S::Response, S::Error, T>(cx, this.tracking, peek) {
                    Poll::Pending => {}
                    Poll::Ready(answer) => {
                        this.main.set(None);
                        match answer {
                            Ok(answer) => won = Some((slot, answer)),
                            Err(failure) => this.course.fail(slot, failure),
                        }
                    }
                }
            }
            if let Some(hedge) = this.hedge.as_mut().filter(|_| won.is_none()) {
                let slot = hedge.slot();
                match hedge.as_mut().poll::<S::Response, S::Error, T>(cx, this.tracking, peek) {
                    Poll::Pending => {}
                    Poll::Ready(answer) => {
                        *this.hedge = None;
                        match answer {
                            Ok(answer) => won = Some((slot, answer)),
                            Err(failure) => this.course.fail(slot, failure),
                        }
                    }
                }
            }
            if won.is_some() || this.course.is_forbidden() {
                let main = this.main.as_ref().as_pin_ref().map(|main| main.slot());
                let hedge = this.hedge.as_ref().map(|hedge| hedge.slot());
                main.or(hedge).into_iter().for_each(|loser| this.course.outrun(loser));
                this.main.set(None);
                (*this.hedge, *this.timer) = (None, Timer::Off);
            }
            if let Some((slot, (reply, lease))) = won {
                *this.wish = Wish::Over;
                this.course.answered(slot);
                return Poll::Ready(Ok(this.tracking.track(reply, lease)));
            }

            let calling = this.main.is_some() || this.hedge.is_some();
            match this.timer {
                Timer::Off => {
                    // Armed by the first wait, so a call that answers at once arms none.
                    if let Some(after) = this.course.policy().hedge
                        && !*this.hedged
                        && this.main.is_some()
                        && this.request.is_some()
                    {
                        *this.timer = Timer::Hedge(Box::pin(tokio::time::sleep(after)));
                        continue;
                    }
                }
                Timer::Hedge(_) if !calling => *this.timer = Timer::Off,
                Timer::Hedge(sleep) => {
                    if sleep.as_mut().poll(cx).is_ready() {
                        (*this.timer, *this.hedged) = (Timer::Off, true);
                        let main = this.main.as_ref().as_pin_ref().map(|main| main.slot());
                        if let Some((slot, lease, request)) = main
                            .and_then(|main| this.course.hedge(main))
                            .and_then(|choice| prepare(this.request, this.course, choice))
                        {
                            *this.wish = Wish::Send { slot, lease, request };
                        }
                    }
                }
                Timer::Rest(sleep) => {
                    ready!(sleep.as_mut().poll(cx));
                    *this.timer = Timer::Off;
                    this.course.wake();
                    *this.wish = Wish::Choose;
                }
            }

            match std::mem::replace(this.wish, Wish::Nothing) {
                Wish::Nothing if calling => return Poll::Pending,
                // The last attempt has just failed.
                Wish::Nothing | Wish::Choose => match choose(this.request, this.course) {
                    Chosen::Send { slot, lease, request } => {
                        *this.wish = Wish::Send { slot, lease, request };
                    }
                    Chosen::Wait(sleep) => *this.timer = Timer::Rest(sleep),
                    Chosen::End(failure) => *this.wish = Wish::End(failure),
                },
                Wish::Send { slot, lease, request } => match this.service.poll_ready(cx) {
                    Poll::Pending => {
                        *this.wish = Wish::Send { slot, lease, request };
                        return Poll::Pending;
                    }
                    Poll::Ready(Err(error)) => {
                        // It can not be called any more, but what is under way may still answer.
                        *this.request = None;
                        this.course.fail(slot, error.into().with_attempts(0));
                    }
                    Poll::Ready(Ok(())) => {
                        let attempt = Attempt::new(this.service.call(request), slot, lease);
                        if this.main.is_some() {
                            *this.hedge = Some(Box::pin(attempt));
                        } else {
                            this.main.set(Some(attempt));
                        }
                    }
                },
                Wish::End(failure) => {
                    *this.wish = Wish::Over;
                    return Poll::Ready(Err(failure));
                }
                Wish::Over => {
                    *this.wish = Wish::Over;
                    let text = "the call was polled after it was over";
                    return Poll::Ready(Err(Failure::refused(Reason::Unknown, text)));
                }
            }
        }
    }
}

impl<S, Req, T> fmt::Debug for ResponseFuture<S, Req, T>
where
    S: Service<Req>,
    T: Tracking<S::Response>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").field("course", &self.course).finish_non_exhaustive()
    }
}
