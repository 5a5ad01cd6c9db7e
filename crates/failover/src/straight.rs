//! The usual case, for as little as it can be had: nothing cools, the first target is asked, it
//! answers.

use std::sync::Arc;

use steadfast_core::{Call, CallContext, Failure, Lease, RetryBudget};

use crate::{route::Route, slot, sticky::Stay};

/// What is kept of the request for attempts after the first.
pub(crate) enum Kept<Req> {
    Request(Req),
    /// There is nowhere else to go, so the first attempt has the request itself.
    Context(CallContext),
}

impl<Req: Call> Kept<Req> {
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

/// The conversation a call is part of, and where that is at.
pub(crate) type Session = Option<(u64, Option<Stay>)>;

/// Whether a call takes the first candidate without anything being weighed: nothing cools, no
/// candidate can do less than another, the session does not pull elsewhere, and no hedge is to be
/// prepared.
#[inline]
pub(crate) fn is_open(route: &Route, context: &CallContext, session: &Session) -> bool {
    !route.choosy
        && route.policy().hedge.is_none()
        && context.attempts_left() > 0
        && !route.may_cool()
        && match session {
            Some((_, Some(stay))) => stay.seats(&route.slot(0).target),
            _ => true,
        }
}

/// The request as the first candidate gets it, with a place in its books; and what is kept of it.
pub(crate) fn prepare<Req: Call + Clone>(
    route: &Arc<Route>,
    session: &Session,
    mut request: Req,
) -> (Kept<Req>, Result<(Lease, Req), Failure>) {
    let slot = route.slot(0);
    let (kept, mut prepared) = if route.slots.len() == 1 && !route.policy().may_wait() {
        (Kept::Context(request.context().clone()), request)
    } else {
        // What is about to be replaced need not be copied.
        let has_target = request.context().target.is_some();
        let target = if has_target { request.context_mut().target.take() } else { None };
        let prepared = request.clone();
        if has_target {
            request.context_mut().target = target;
        }
        (Kept::Request(request), prepared)
    };
    let context = prepared.context_mut();
    let lease = slot::lease(
        route,
        0,
        0,
        &context.log,
        route.budget.as_ref().or(context.budget.as_ref()),
        None,
    );
    context.target = Some(slot.target.clone());
    context.alternatives = u32::from(route.providers) - 1;
    if context.budget.is_none() {
        // A success counts here; the layers below put back what they have drawn.
        context.budget = route.budget.as_ref().map(RetryBudget::drawing);
    }
    let foreign = match session {
        Some((_, Some(stay))) => !stay.reads(&slot.target),
        _ => false,
    };
    match prepared.adapt(slot.profile(foreign)) {
        Ok(()) => (kept, Ok((lease, prepared))),
        Err(failure) => (kept, Err(failure)),
    }
}
