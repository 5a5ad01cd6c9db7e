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
use steadfast_core::{Call, Failure, Near, Needs, Reason, Tracking};
use tokio::time::Instant;
use tower_service::Service;

use crate::{
    attempt::Attempt,
    course::Course,
    journey::Journey,
    route::Route,
    service::Shared,
    straight::{self, Kept, Session},
};

/// What a call answers: the inner service's reply of type `R`, after its first content and with a
/// lease on it.
pub type Reply<T, R> = <T as Tracking<R>>::Committed;

pub(crate) type Lane<S, Req, T> = Attempt<
    <S as Service<Req>>::Future,
    <S as Service<Req>>::Response,
    <T as Tracking<<S as Service<Req>>::Response>>::Look,
>;

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
        shared: Near<Shared>,
        tracking: T,
        // The attempt under way.
        #[pin]
        main: Option<Lane<S, Req, T>>,
        way: Way<S, Req, T>,
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
        route: Arc<Route>,
        kept: Kept<Req>,
        session: Session,
    },
    /// Boxed: most calls never need it.
    Journey(Box<Journey<S, Req, T>>),
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
    pub(crate) fn new(
        ready: &mut S,
        shared: Near<Shared>,
        tracking: T,
        request: Req,
        needs: Option<Needs>,
        route: Arc<Route>,
    ) -> Self {
        let session = shared.sessions.of(request.context());
        let (main, way) = if straight::is_open(&route, request.context(), &session) {
            let (kept, prepared) = straight::prepare(&route, &session, request);
            match prepared {
                Ok((lease, request)) => {
                    let main = Attempt::new(ready.call(request), 0, lease);
                    (Some(main), Way::Straight { route, kept, session })
                }
                Err(failure) => {
                    let course = Course::new(route, kept.context(), Needs::default(), session);
                    *ready = ready.clone();
                    (None, Way::Journey(Box::new(Journey::unfit(course, kept, failure))))
                }
            }
        } else {
            let needs = match needs {
                Some(needs) => needs,
                // Telling them takes a walk over the conversation.
                None if route.choosy => request.needs(),
                None => Needs::default(),
            };
            let course = Course::new(route, request.context(), needs, session);
            let (journey, main) = Journey::begin(ready, request, course);
            (main, Way::Journey(Box::new(journey)))
        };
        // After the call, so that the clone knows whatever the service has learned by it.
        let clone = ready.clone();
        let service = mem::replace(ready, clone);
        Self { service, shared, tracking, main, way }
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

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        if let Way::Straight { route, session, .. } = this.way {
            let peek = route.policy().peek;
            let Some(main) = this.main.as_mut().as_pin_mut() else {
                return Poll::Ready(Err(polled_again()));
            };
            let failure = match ready!(main.poll::<S::Error, T>(cx, this.tracking, peek)) {
                Ok((reply, look, lease)) => {
                    if let Some((key, _)) = session {
                        let target = &route.slot(0).target;
                        this.shared.sessions.note(*key, target, Instant::now());
                    }
                    *this.way = Way::Over;
                    return Poll::Ready(Ok(this.tracking.commit(reply, look, lease)));
                }
                Err(failure) => failure,
            };
            this.main.set(None);
            if let Way::Straight { route, kept, session } = mem::replace(this.way, Way::Over) {
                let mut course = Course::new(route, kept.context(), Needs::default(), session);
                course.fail(0, failure);
                *this.way = Way::Journey(Box::new(Journey::resume(course, kept.request())));
            }
        }
        let Way::Journey(journey) = this.way else { return Poll::Ready(Err(polled_again())) };
        let result =
            ready!(journey.poll(this.main, this.service, &this.shared.sessions, this.tracking, cx));
        *this.way = Way::Over;
        Poll::Ready(result)
    }
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
            Way::Straight { route, .. } => out.field("route", route),
            Way::Journey(journey) => out.field("course", &journey.course),
            Way::Over => out.field("over", &true),
        };
        out.finish_non_exhaustive()
    }
}
