//! One call, from target to target.

use std::{
    fmt,
    future::Future,
    mem,
    pin::Pin,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use smallvec::SmallVec;
use steadfast_core::{Call, Failure, Lease, Reason, Track, Waiting};
use tokio::time::Sleep;
use tower_service::Service;

use crate::{
    affinity::AffinityLookup,
    attempt::Attempt,
    call::{CallState, NextAction},
    prepare::Selection,
};

/// The attempts that a future of service `S` makes.
type AttemptOf<S, Req, T> =
    Attempt<<S as Service<Req>>::Future, <T as Track<<S as Service<Req>>::Response>>::Tracked>;

pin_project! {
    /// One call, from target to target, with waits and hedges. Dropping it ends what is under way.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<S, Req, T>
    where
        S: Service<Req>,
        T: Track<S::Response>,
    {
        // The attempt under way.
        #[pin]
        main: Option<AttemptOf<S, Req, T>>,
        rest: Rest<S, Req, T>,
    }
}

/// All that but the attempt under way, which stays where it is.
struct Rest<S, Req, T>
where
    S: Service<Req>,
    T: Track<S::Response>,
{
    service: S,
    call: CallState,
    /// `None` once the last attempt has it.
    request: Option<Req>,
    track: T,
    /// Asked beside the main attempt, when that takes long, in that order.
    hedges: Vec<Pin<Box<AttemptOf<S, Req, T>>>>,
    timer: Timer,
    todo: Todo<Req>,
}

/// What the call waits for besides its attempts.
enum Timer {
    Off,
    /// Time for a hedge.
    Hedge(Pin<Box<Sleep>>),
    /// A target to come back.
    Cooldown {
        sleep: Pin<Box<Sleep>>,
        /// Held while the call waits.
        _slot: Option<Waiting>,
    },
    /// Another process to say where the conversation is, before anybody is asked.
    Affinity(AffinityLookup),
}

/// What is to be done next.
enum Todo<Req> {
    /// Nothing but to wait for what is under way.
    Nothing,
    /// Choose the next target.
    Choose,
    /// Call that target as soon as the service is ready: beside the attempt under way, if there is
    /// one. Boxed: the first attempt never waits for that.
    Ask(Box<Prepared<Req>>),
    /// Say how it ended.
    End(Failure),
    /// It has been returned.
    Over,
}

/// A request that is fitted to its target.
struct Prepared<Req> {
    candidate: u8,
    lease: Lease,
    request: Req,
}

/// What a selection came to.
enum Chosen<Req> {
    Ask(Prepared<Req>),
    Wait(Timer),
    End(Failure),
}

impl<S, Req, T> ResponseFuture<S, Req, T>
where
    S: Service<Req> + Clone,
    Req: Call + Clone,
    T: Track<S::Response>,
{
    /// Makes the first attempt by `service`, which has been polled ready.
    #[inline]
    pub(crate) fn new(mut service: S, request: Req, mut call: CallState, track: T) -> Self {
        let mut request = Some(request);
        let chosen = match call.look_up() {
            Some(lookup) => Chosen::Wait(Timer::Affinity(lookup)),
            None => choose(&mut request, &mut call),
        };
        let (timer, todo) = match chosen {
            Chosen::Ask(Prepared { candidate, lease, request: first }) => {
                // Should it panic, the lease is dropped on the way out.
                return Self {
                    main: Some(Attempt::new(service.call(first), candidate, lease)),
                    rest: Rest::new(service, call, request, track),
                };
            }
            Chosen::Wait(timer) => (timer, Todo::Nothing),
            Chosen::End(failure) => (Timer::Off, Todo::End(failure)),
        };
        // Whatever its readiness reserved is not kept from others meanwhile.
        let rest = Rest::new(service.clone(), call, request, track);
        Self { main: None, rest: Rest { timer, todo, ..rest } }
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
        let this = self.project();
        this.rest.poll(this.main, cx)
    }
}

impl<S, Req, T> Rest<S, Req, T>
where
    S: Service<Req>,
    T: Track<S::Response>,
{
    #[inline]
    fn new(service: S, call: CallState, request: Option<Req>, track: T) -> Self {
        let (timer, todo) = (Timer::Off, Todo::Nothing);
        Self { service, call, request, track, hedges: Vec::new(), timer, todo }
    }
}

impl<S, Req, T> Rest<S, Req, T>
where
    S: Service<Req> + Clone,
    S::Error: Into<Failure>,
    Req: Call + Clone,
    T: Track<S::Response>,
{
    /// The attempts, then the clock, then what is to be done.
    fn poll(
        &mut self,
        mut main: Pin<&mut Option<AttemptOf<S, Req, T>>>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<T::Tracked, Failure>> {
        loop {
            if self.poll_attempts(&mut main, cx) {
                self.todo = Todo::Over;
                // The one that is left, returned from where it is: an answer is large, and each move
                // of it is a copy.
                match (main.as_mut().as_pin_mut(), self.hedges.first_mut()) {
                    (Some(main), _) => return Poll::Ready(main.finish(&self.track)),
                    (None, Some(hedge)) => {
                        return Poll::Ready(hedge.as_mut().finish(&self.track));
                    }
                    (None, None) => {}
                }
            }
            let under_way = main.is_some() || !self.hedges.is_empty();
            if ready!(self.poll_timer(main.as_ref().get_ref().as_ref(), cx)) {
                continue;
            }
            match mem::replace(&mut self.todo, Todo::Nothing) {
                Todo::Nothing if under_way => return Poll::Pending,
                // The last attempt has just failed.
                Todo::Nothing | Todo::Choose => match choose(&mut self.request, &mut self.call) {
                    Chosen::Ask(prepared) => self.todo = Todo::Ask(Box::new(prepared)),
                    Chosen::Wait(timer) => self.timer = timer,
                    Chosen::End(failure) => self.todo = Todo::End(failure),
                },
                Todo::Ask(prepared) => match self.service.poll_ready(cx) {
                    Poll::Pending => {
                        self.todo = Todo::Ask(prepared);
                        return Poll::Pending;
                    }
                    Poll::Ready(Err(error)) => {
                        // It can not be called any more, but what is under way may still answer.
                        self.request = None;
                        self.call.fail(prepared.candidate, error.into().with_attempts(0));
                    }
                    Poll::Ready(Ok(())) => {
                        let Prepared { candidate, lease, request } = *prepared;
                        let attempt = Attempt::new(self.service.call(request), candidate, lease);
                        if main.is_some() || !self.hedges.is_empty() {
                            self.hedges.push(Box::pin(attempt));
                        } else {
                            main.set(Some(attempt));
                        }
                    }
                },
                Todo::End(failure) => {
                    self.todo = Todo::Over;
                    return Poll::Ready(Err(failure));
                }
                Todo::Over => {
                    self.todo = Todo::Over;
                    let text = "the call was polled after it was over";
                    return Poll::Ready(Err(Failure::refused(Reason::Unknown, text)));
                }
            }
        }
    }

    /// Whether an attempt has an answer, and then it is the only one left.
    fn poll_attempts(
        &mut self,
        main: &mut Pin<&mut Option<AttemptOf<S, Req, T>>>,
        cx: &mut Context<'_>,
    ) -> bool {
        let limits = self.call.policy().buffer;
        let (mut by_main, mut by_hedge, mut moves_on) = (false, None, false);
        if let Some(mut attempt) = main.as_mut().as_pin_mut()
            && let Poll::Ready(ended) = attempt.as_mut().poll(&self.track, limits, cx)
        {
            let beside = !self.hedges.is_empty();
            by_main = self.call.ended(attempt.candidate(), ended, beside);
            if !by_main {
                main.set(None);
            }
        }
        let mut at = 0;
        while at < self.hedges.len() && !by_main && by_hedge.is_none() {
            let hedge = &mut self.hedges[at];
            let candidate = hedge.candidate();
            match hedge.as_mut().poll(&self.track, limits, cx) {
                Poll::Pending => at += 1,
                Poll::Ready(ended) => {
                    let beside = main.is_some() || self.hedges.len() > 1;
                    if self.call.ended(candidate, ended, beside) {
                        by_hedge = Some(at);
                    } else {
                        drop(self.hedges.remove(at));
                        moves_on |= self.call.moves_on_from(candidate);
                    }
                }
            }
        }
        let answered = by_main || by_hedge.is_some();
        if answered || self.call.is_forbidden() {
            if let Some(loser) = main.as_mut().as_pin_mut().filter(|_| !by_main) {
                if let Some(late) = self.call.outrun(loser.candidate(), answered) {
                    loser.fail(&late);
                }
                main.set(None);
            }
            for (at, mut loser) in mem::take(&mut self.hedges).into_iter().enumerate() {
                if by_hedge == Some(at) {
                    self.hedges.push(loser);
                } else if let Some(late) = self.call.outrun(loser.candidate(), answered) {
                    loser.as_mut().fail(&late);
                }
            }
            self.timer = Timer::Off;
        } else if moves_on && matches!(self.todo, Todo::Nothing) {
            self.timer = Timer::Off;
            let under_way = self.under_way(main.as_ref().get_ref().as_ref());
            if !under_way.is_empty() {
                let selection = self.call.move_on(&under_way);
                self.ask_beside(&under_way, selection);
            }
        }
        // A hedge whose service is not ready yet.
        if matches!(self.todo, Todo::Ask(_)) && self.call.is_final() {
            self.todo = Todo::Nothing;
        }
        answered
    }

    /// The candidates of the attempts under way, the oldest first.
    fn under_way(&self, main: Option<&AttemptOf<S, Req, T>>) -> SmallVec<[u8; 2]> {
        let hedges = self.hedges.iter().map(|hedge| hedge.candidate());
        main.map(Attempt::candidate).into_iter().chain(hedges).collect()
    }

    /// Asks that one beside those `under_way`, or the next one that the request can be made to fit.
    fn ask_beside(&mut self, under_way: &[u8], mut selection: Option<Selection>) {
        while let Some(selected) = selection {
            if let Some(prepared) = prepare(&mut self.request, &mut self.call, selected) {
                self.todo = Todo::Ask(Box::new(prepared));
                return;
            }
            selection = self.call.move_on(under_way);
        }
    }

    /// Pending while the call waits for a cooldown to end; `true` when there is a new timer.
    fn poll_timer(
        &mut self,
        main: Option<&AttemptOf<S, Req, T>>,
        cx: &mut Context<'_>,
    ) -> Poll<bool> {
        match &mut self.timer {
            Timer::Off => {
                // Armed by the first wait, so a call that answers at once arms none.
                if let Some(after) = self.call.hedge_after()
                    && (main.is_some() || !self.hedges.is_empty())
                    && matches!(self.todo, Todo::Nothing)
                    && self.request.is_some()
                {
                    self.timer = Timer::Hedge(Box::pin(tokio::time::sleep(after)));
                    return Poll::Ready(true);
                }
            }
            Timer::Hedge(_) if main.is_none() && self.hedges.is_empty() => self.timer = Timer::Off,
            Timer::Hedge(sleep) => {
                if sleep.as_mut().poll(cx).is_ready() {
                    self.timer = Timer::Off;
                    let under_way = self.under_way(main);
                    let selection = self.call.hedge(&under_way);
                    self.ask_beside(&under_way, selection);
                }
            }
            Timer::Cooldown { sleep, .. } => {
                ready!(sleep.as_mut().poll(cx));
                self.timer = Timer::Off;
                self.call.wake();
                self.todo = Todo::Choose;
            }
            Timer::Affinity(lookup) => {
                let found = ready!(lookup.as_mut().poll(cx));
                self.timer = Timer::Off;
                found.into_iter().for_each(|affinity| self.call.found(affinity));
                self.todo = Todo::Choose;
            }
        }
        Poll::Ready(false)
    }
}

/// Chooses the next target and fits the request to it. Done before the service is asked to be
/// ready, so that a call which is over says so at once.
#[inline]
fn choose<Req: Call + Clone>(request: &mut Option<Req>, call: &mut CallState) -> Chosen<Req> {
    while request.is_some() {
        match call.next() {
            NextAction::Ask(selection) => {
                if let Some(prepared) = prepare(request, call, selection) {
                    return Chosen::Ask(prepared);
                }
            }
            NextAction::Wait(wait, slot) => {
                let sleep = Box::pin(tokio::time::sleep(wait));
                return Chosen::Wait(Timer::Cooldown { sleep, _slot: slot });
            }
            NextAction::End => break,
        }
    }
    Chosen::End(call.finish())
}

/// The request as `selection` gets it; `None` when it could not be made to fit.
#[inline]
fn prepare<Req: Call + Clone>(
    request: &mut Option<Req>,
    call: &mut CallState,
    selection: Selection,
) -> Option<Prepared<Req>> {
    let mut prepared = if selection.last { request.take() } else { request.clone() }?;
    match call.prepare(selection, &mut prepared) {
        Ok(lease) => Some(Prepared { candidate: selection.candidate, lease, request: prepared }),
        Err(failure) => {
            call.unfit(selection.candidate, failure);
            None
        }
    }
}

impl<S, Req, T> fmt::Debug for ResponseFuture<S, Req, T>
where
    S: Service<Req>,
    T: Track<S::Response>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture")
            .field("attempt", &self.main)
            .field("call", &self.rest.call)
            .finish_non_exhaustive()
    }
}
