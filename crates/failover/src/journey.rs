//! One call once it is not the usual one any more: from target to target, with waits and hedges.

use std::{
    future::Future,
    mem,
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
    future::Reply,
    straight::Kept,
};

pin_project! {
    /// What a call needs when its first attempt is not all.
    pub(crate) struct Journey<S, Req, T>
    where
        S: Service<Req>,
        T: Tracking<S::Response>,
    {
        // The attempt under way.
        #[pin]
        main: Option<Lane<S, Req, T>>,
        own: Own<S, Req, T>,
    }
}

/// All that but the attempt under way, which stays where it is.
struct Own<S, Req, T>
where
    S: Service<Req>,
    T: Tracking<S::Response>,
{
    service: S,
    course: Course,
    /// `None` once the last attempt has it.
    request: Option<Req>,
    /// Asked beside the main attempt, when that takes long.
    hedge: Option<Pin<Box<Lane<S, Req, T>>>>,
    hedged: bool,
    timer: Timer,
    wish: Wish<Req>,
}

type Lane<S, Req, T> = Attempt<
    <S as Service<Req>>::Future,
    <S as Service<Req>>::Response,
    <T as Tracking<<S as Service<Req>>::Response>>::Look,
>;

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

impl<S, Req, T> Journey<S, Req, T>
where
    S: Service<Req> + Clone,
    Req: Call + Clone,
    T: Tracking<S::Response>,
{
    /// One whose first target has still to be chosen. The first attempt, if there is one now, is made
    /// by `service`, which has been polled ready and is taken along.
    pub(crate) fn begin(service: &mut S, request: Req, mut course: Course) -> Self {
        let mut request = Some(request);
        let (mut main, mut timer, mut wish) = (None, Timer::Off, Wish::Nothing);
        match choose(&mut request, &mut course) {
            Chosen::Send { slot, lease, request } => {
                main = Some(Attempt::new(service.call(request), slot, lease));
            }
            Chosen::Wait(sleep) => timer = Timer::Rest(sleep),
            Chosen::End(failure) => wish = Wish::End(failure),
        }
        if main.is_none() {
            // Whatever its readiness reserved is not kept from others meanwhile.
            *service = service.clone();
        }
        let service = take_along(service);
        let own = Own { service, course, request, hedge: None, hedged: false, timer, wish };
        Self { main, own }
    }

    /// One whose first target can not be sent `kept`.
    pub(crate) fn unfit(service: S, mut course: Course, kept: Kept<Req>, failure: Failure) -> Self {
        course.unfit(0, failure);
        Self::resume(service, course, kept.request())
    }

    /// One that goes on after what `course` knows. Without a `request` there is nothing to try it
    /// with again.
    pub(crate) fn resume(service: S, course: Course, request: Option<Req>) -> Self {
        let (hedge, timer, wish) = (None, Timer::Off, Wish::Choose);
        let own = Own { service, course, request, hedge, hedged: false, timer, wish };
        Self { main: None, own }
    }
}

impl<S, Req, T> Journey<S, Req, T>
where
    S: Service<Req>,
    T: Tracking<S::Response>,
{
    pub(crate) fn course(&self) -> &Course {
        &self.own.course
    }
}

/// `service`, with a clone left in its place, which has to become ready by itself. After the call,
/// so that the clone knows whatever the service has learned by it.
#[inline]
pub(crate) fn take_along<S: Clone>(service: &mut S) -> S {
    let clone = service.clone();
    mem::replace(service, clone)
}

impl<S, Req, T> Journey<S, Req, T>
where
    S: Service<Req> + Clone,
    S::Error: Into<Failure>,
    Req: Call + Clone,
    T: Tracking<S::Response>,
{
    /// Goes on.
    pub(crate) fn poll(
        self: Pin<&mut Self>,
        tracking: &T,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Reply<T, S::Response>, Failure>> {
        let this = self.project();
        this.own.poll(this.main, tracking, cx)
    }
}

impl<S, Req, T> Own<S, Req, T>
where
    S: Service<Req> + Clone,
    S::Error: Into<Failure>,
    Req: Call + Clone,
    T: Tracking<S::Response>,
{
    fn poll(
        &mut self,
        mut main: Pin<&mut Option<Lane<S, Req, T>>>,
        tracking: &T,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Reply<T, S::Response>, Failure>> {
        let peek = self.course.policy().peek;
        loop {
            // Both attempts, then the clock, then what is to be done.
            let mut won = None;
            if let Some(lane) = main.as_mut().as_pin_mut() {
                let slot = lane.slot();
                match lane.poll::<S::Error, T>(cx, tracking, peek) {
                    Poll::Pending => {}
                    Poll::Ready(answer) => {
                        main.set(None);
                        match answer {
                            Ok(answer) => won = Some((slot, answer)),
                            Err(failure) => self.course.fail(slot, failure),
                        }
                    }
                }
            }
            if let Some(hedge) = self.hedge.as_mut().filter(|_| won.is_none()) {
                let slot = hedge.slot();
                match hedge.as_mut().poll::<S::Error, T>(cx, tracking, peek) {
                    Poll::Pending => {}
                    Poll::Ready(answer) => {
                        self.hedge = None;
                        match answer {
                            Ok(answer) => won = Some((slot, answer)),
                            Err(failure) => self.course.fail(slot, failure),
                        }
                    }
                }
            }
            if won.is_some() || self.course.is_forbidden() {
                let first = main.as_ref().as_pin_ref().map(|main| main.slot());
                let hedge = self.hedge.as_ref().map(|hedge| hedge.slot());
                first.or(hedge).into_iter().for_each(|loser| self.course.outrun(loser));
                main.set(None);
                (self.hedge, self.timer) = (None, Timer::Off);
            }
            if let Some((slot, (reply, look, lease))) = won {
                self.wish = Wish::Over;
                self.course.answered(slot);
                return Poll::Ready(Ok(tracking.commit(reply, look, lease)));
            }

            let calling = main.is_some() || self.hedge.is_some();
            match &mut self.timer {
                Timer::Off => {
                    // Armed by the first wait, so a call that answers at once arms none.
                    if let Some(after) = self.course.policy().hedge
                        && !self.hedged
                        && main.is_some()
                        && self.request.is_some()
                    {
                        self.timer = Timer::Hedge(Box::pin(tokio::time::sleep(after)));
                        continue;
                    }
                }
                Timer::Hedge(_) if !calling => self.timer = Timer::Off,
                Timer::Hedge(sleep) => {
                    if sleep.as_mut().poll(cx).is_ready() {
                        (self.timer, self.hedged) = (Timer::Off, true);
                        let first = main.as_ref().as_pin_ref().map(|main| main.slot());
                        if let Some((slot, lease, request)) = first
                            .and_then(|main| self.course.hedge(main))
                            .and_then(|choice| prepare(&mut self.request, &mut self.course, choice))
                        {
                            self.wish = Wish::Send { slot, lease, request };
                        }
                    }
                }
                Timer::Rest(sleep) => {
                    ready!(sleep.as_mut().poll(cx));
                    self.timer = Timer::Off;
                    self.course.wake();
                    self.wish = Wish::Choose;
                }
            }

            match mem::replace(&mut self.wish, Wish::Nothing) {
                Wish::Nothing if calling => return Poll::Pending,
                // The last attempt has just failed.
                Wish::Nothing | Wish::Choose => match choose(&mut self.request, &mut self.course) {
                    Chosen::Send { slot, lease, request } => {
                        self.wish = Wish::Send { slot, lease, request };
                    }
                    Chosen::Wait(sleep) => self.timer = Timer::Rest(sleep),
                    Chosen::End(failure) => self.wish = Wish::End(failure),
                },
                Wish::Send { slot, lease, request } => {
                    match self.service.poll_ready(cx) {
                        Poll::Pending => {
                            self.wish = Wish::Send { slot, lease, request };
                            return Poll::Pending;
                        }
                        Poll::Ready(Err(error)) => {
                            // It can not be called any more, but what is under way may still answer.
                            self.request = None;
                            self.course.fail(slot, error.into().with_attempts(0));
                        }
                        Poll::Ready(Ok(())) => {
                            let attempt = Attempt::new(self.service.call(request), slot, lease);
                            if main.is_some() {
                                self.hedge = Some(Box::pin(attempt));
                            } else {
                                main.set(Some(attempt));
                            }
                        }
                    }
                }
                Wish::End(failure) => {
                    self.wish = Wish::Over;
                    return Poll::Ready(Err(failure));
                }
                Wish::Over => {
                    self.wish = Wish::Over;
                    let text = "the call was polled after it was over";
                    return Poll::Ready(Err(Failure::refused(Reason::Unknown, text)));
                }
            }
        }
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
