//! What a rate limit is kept for.

use steadfast_core::{Call, Target};

/// Says which limits a request falls under. Implemented for closures `Fn(&Req) -> Option<Target>` and for
/// [`QuotaOfTarget`].
pub trait QuotaKey<Req> {
    /// Calls `then` with the key of `request`: borrowed where the request has it.
    fn with_key<R>(&self, request: &Req, then: impl FnOnce(&Option<Target>) -> R) -> R;
}

/// The limits of the target in the call's context: provider, model and credential. Requests without a target
/// share one.
#[derive(Clone, Copy, Debug, Default)]
pub struct QuotaOfTarget;

impl<Req: Call> QuotaKey<Req> for QuotaOfTarget {
    #[inline]
    fn with_key<R>(&self, request: &Req, then: impl FnOnce(&Option<Target>) -> R) -> R {
        then(&request.context().target)
    }
}

impl<Req, F> QuotaKey<Req> for F
where
    F: Fn(&Req) -> Option<Target>,
{
    fn with_key<R>(&self, request: &Req, then: impl FnOnce(&Option<Target>) -> R) -> R {
        then(&self(request))
    }
}
