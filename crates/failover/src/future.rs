//! One call, from target to target.

use std::{
    fmt,
    future::Future,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use steadfast_core::{Call, Failure, Lease, Needs, Reason, Tracking};
use tower_service::Service;

use crate::{
    attempt::Stage,
    course::Course,
    journey::{Journey, take_along},
    route::Route,
    sticky::Session,
    straight::{self, Kept, Seat},
};

/// What a call answers: the inner service's reply of type `R`, after its first content and with a
/// lease on it.
pub type Reply<T, R> = <T as Tracking<R>>::Committed;

pin_project! {
    /// One call, from target to target. Dropping it ends what is under way and frees every place
    /// held.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<S, Req, T>
    where
        S: Service<Req>,
        T: Tracking<S::Response>,
    {
        // The first attempt, while there is no other. Not part of the way, so that it is made where it
        // stays: it contains everything below.
        #[pin]
        stage: Stage<S::Future, S::Response, T::Look>,
        way: Way<S, Req, T>,
        tracking: T,
    }
}

/// What is known of the way.
enum Way<S, Req, T>
where
    S: Service<Req>,
    T: Tracking<S::Response>,
{
    /// The first target is being asked, and nothing is known that would need more than this.
    Straight {
        seat: Seat,
        kept: Kept<Req>,
        session: Session,
        service: S,
    },
    /// Boxed: most calls never need it.
    Journey(Pin<Box<Journey<S, Req, T>>>),
    Over,
}

impl<S, Req, T> ResponseFuture<S, Req, T>
where
    S: Service<Req> + Clone,
    Req: Call + Clone,
    T: Tracking<S::Response>,
{
    /// Makes the first attempt by `ready`, which has been polled ready, and takes that along. The
    /// clone in its place has to become ready by itself.
    #[inline]
    pub(crate) fn new(
        ready: &mut S,
        tracking: T,
        mut request: Req,
        needs: Option<Needs>,
        session: Session,
        route: Arc<Route>,
    ) -> Self {
        if !straight::is_open(&route, request.context(), &session) {
            return Self::weighed(ready, tracking, request, needs, session, route);
        }
        let kept = Kept::of(&request, &route);
        if let Err(failure) = straight::fit(&route, &session, &mut request) {
            drop(request);
            return Self::unfit(ready, tracking, kept, failure, session, route);
        }
        // Made before the inner service is called: should that panic, it settles.
        let seat = Seat::new(route, request.context());
        Self {
            stage: Stage::Calling { call: ready.call(request) },
            way: Way::Straight { seat, kept, session, service: take_along(ready) },
            tracking,
        }
    }

    /// The first target has to be chosen.
    #[cold]
    fn weighed(
        ready: &mut S,
        tracking: T,
        request: Req,
        needs: Option<Needs>,
        session: Session,
        route: Arc<Route>,
    ) -> Self {
        let needs = match needs {
            Some(needs) => needs,
            // Telling them takes a walk over the conversation.
            None if route.choosy => request.needs(),
            None => Needs::default(),
        };
        let course = Course::new(route, request.context(), needs, session);
        let journey = Box::pin(Journey::begin(ready, request, course));
        Self { stage: Stage::Over, way: Way::Journey(journey), tracking }
    }

    /// The first target can not be sent the request.
    #[cold]
    fn unfit(
        ready: &mut S,
        tracking: T,
        kept: Kept<Req>,
        failure: Failure,
        session: Session,
        route: Arc<Route>,
    ) -> Self {
        let course = Course::new(route, kept.context(), Needs::default(), session);
        // Whatever its readiness reserved is not kept from others meanwhile.
        *ready = ready.clone();
        let service = take_along(ready);
        let journey = Box::pin(Journey::unfit(service, course, kept, failure));
        Self { stage: Stage::Over, way: Way::Journey(journey), tracking }
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
        if let Way::Straight { seat, kept, session, .. } = &mut *this.way {
            let Some(route) = seat.route() else { return Poll::Ready(Err(polled_again())) };
            let peek = route.policy().peek;
            match ready!(this.stage.as_mut().poll::<S::Error, T>(cx, this.tracking, peek)) {
                Ok((reply, look)) => {
                    if let Some(session) = session {
                        session.answered(&route.slot(0).target);
                    }
                    this.stage.set(Stage::Over);
                    if T::AT_ONCE {
                        seat.succeed(kept.context());
                        *this.way = Way::Over;
                        let reply = this.tracking.commit(reply, look, Lease::idle());
                        return Poll::Ready(Ok(reply));
                    }
                    let lease = seat.lease(kept.context());
                    *this.way = Way::Over;
                    return Poll::Ready(Ok(this.tracking.commit(reply, look, lease)));
                }
                Err(failure) => {
                    this.stage.set(Stage::Over);
                    go_on(this.way, failure);
                }
            }
        }
        let Way::Journey(journey) = this.way else { return Poll::Ready(Err(polled_again())) };
        let result = ready!(journey.as_mut().poll(this.tracking, cx));
        *this.way = Way::Over;
        Poll::Ready(result)
    }
}

/// After the first target has failed.
#[cold]
fn go_on<S, Req, T>(way: &mut Way<S, Req, T>, failure: Failure)
where
    S: Service<Req> + Clone,
    Req: Call + Clone,
    T: Tracking<S::Response>,
{
    let old = mem::replace(way, Way::Over);
    let Way::Straight { mut seat, kept, session, service } = old else { return };
    let Some(route) = seat.fail(&failure) else { return };
    let mut course = Course::new(route, kept.context(), Needs::default(), session);
    course.fail(0, failure);
    *way = Way::Journey(Box::pin(Journey::resume(service, course, kept.request())));
}

fn polled_again() -> Failure {
    Failure::refused(Reason::Unknown, "the call was polled after it was over")
}

impl<S, Req, T> fmt::Debug for ResponseFuture<S, Req, T>
where
    S: Service<Req>,
    T: Tracking<S::Response>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("ResponseFuture");
        match &self.way {
            Way::Straight { seat, .. } => out.field("route", &seat.route()),
            Way::Journey(journey) => out.field("course", journey.course()),
            Way::Over => out.field("over", &true),
        };
        out.finish_non_exhaustive()
    }
}
