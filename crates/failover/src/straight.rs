//! The usual case, for as little as it can be had: nothing cools, the first target is asked, it
//! answers.

use std::sync::Arc;

use steadfast_core::{Call, CallContext, Failure, Lease, RecoveryLog, RetryBudget, Withdrawal};

use crate::{
    route::Route,
    slot,
    sticky::{Session, Stay},
};

/// What is kept of the request for attempts after the first.
pub(crate) enum Kept<Req> {
    Request(Req),
    /// There is nowhere else to go, so the first attempt has the request itself.
    Context(CallContext),
}

impl<Req: Call + Clone> Kept<Req> {
    /// What is kept of `request` when it is sent to the first candidate of `route`.
    #[inline]
    pub(crate) fn of(request: &Req, route: &Route) -> Self {
        if route.slots.len() == 1 && !route.policy().may_wait() {
            Kept::Context(request.context().clone())
        } else {
            Kept::Request(request.clone())
        }
    }
}

impl<Req: Call> Kept<Req> {
    #[inline]
    pub(crate) fn context(&self) -> &CallContext {
        match self {
            Kept::Request(request) => request.context(),
            Kept::Context(context) => context,
        }
    }

    pub(crate) fn request(self) -> Option<Req> {
        match self {
            Kept::Request(request) => Some(request),
            Kept::Context(_) => None,
        }
    }
}

/// Where the session is at, if there is one that has been answered.
pub(crate) fn stay(session: &Session) -> Option<&Stay> {
    session.as_ref()?.stay.as_ref()
}

/// Whether a call takes the first candidate without anything being weighed: nothing cools, no
/// candidate can do less than another, the session does not pull elsewhere, and no hedge is to be
/// prepared.
#[inline]
pub(crate) fn is_open(route: &Route, context: &CallContext, session: &Session) -> bool {
    !route.choosy
        && route.policy().hedge.is_none()
        && context.attempts_left() > 0
        && !route.may_cool()
        && stay(session).is_none_or(|stay| stay.seats(&route.slot(0).target))
}

/// Fits `request` to the first candidate.
///
/// # Errors
///
/// When it can not be made to fit.
#[inline]
pub(crate) fn fit<Req: Call>(
    route: &Route,
    session: &Session,
    request: &mut Req,
) -> Result<(), Failure> {
    let slot = route.slot(0);
    let context = request.context_mut();
    context.target = Some(slot.target.clone());
    context.alternatives = u32::from(route.providers) - 1;
    if context.budget.is_none() {
        // A success counts here; the layers below put back what they have drawn.
        context.budget = route.budget.as_ref().map(RetryBudget::drawing);
    }
    let foreign = stay(session).is_some_and(|stay| !stay.reads(&slot.target));
    request.adapt(slot.profile(foreign))
}

/// The place of a first attempt in the books: what a [`Lease`] is made of when the answer has one.
/// Dropped, it settles as a lease does.
pub(crate) struct Seat {
    /// `None` once settled.
    route: Option<Arc<Route>>,
    generation: u64,
    log: RecoveryLog,
}

impl Seat {
    #[inline]
    pub(crate) fn new(route: Arc<Route>, context: &CallContext) -> Self {
        let generation = route.book().admit();
        Self { route: Some(route), generation, log: context.log.clone() }
    }

    /// `None` once it is settled.
    #[inline]
    pub(crate) fn route(&self) -> Option<&Route> {
        self.route.as_deref()
    }

    /// The answer has begun, and ends when the lease says so.
    #[inline]
    pub(crate) fn lease(&mut self, context: &CallContext) -> Lease {
        let Some(route) = self.route.take() else { return Lease::idle() };
        let refund = slot::refund(route.budget(context.budget.as_ref()), None);
        let log = std::mem::take(&mut self.log);
        slot::lease(route, 0, (self.generation, 0), log, refund)
    }

    /// The answer is there and whole.
    #[inline]
    pub(crate) fn succeed(&mut self, context: &CallContext) {
        let Some(route) = self.route.take() else { return };
        if let Some(budget) = route.budget(context.budget.as_ref()) {
            budget.refund(Withdrawal::default());
        }
        route.slot(0).succeeded(self.generation, &self.log);
    }

    /// The attempt has failed: what is needed to go on.
    pub(crate) fn fail(&mut self, failure: &Failure) -> Option<Arc<Route>> {
        let route = self.route.take()?;
        route.slot(0).failed(failure, self.generation, &self.log);
        Some(route)
    }

    /// A caller who goes away says nothing of the target; a panic does.
    #[cold]
    fn abandon(&mut self, route: Arc<Route>) {
        let log = std::mem::take(&mut self.log);
        drop(slot::lease(route, 0, (self.generation, 0), log, None));
    }
}

impl Drop for Seat {
    #[inline]
    fn drop(&mut self) {
        if let Some(route) = self.route.take() {
            self.abandon(route);
        }
    }
}
