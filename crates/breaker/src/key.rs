//! What a breaker is kept for.

use steadfast_core::{Call, Target};

/// Says which breaker a request belongs to. Implemented for closures `Fn(&Req) -> K` and for
/// [`ByTarget`].
pub trait KeyBy<Req, K> {
    /// Calls `then` with the key of `request`: borrowed where the request has it, so that finding
    /// the breaker copies nothing.
    fn with_key<R>(&self, request: &Req, then: impl FnOnce(&K) -> R) -> R;
}

/// One breaker for each target in the call's context: provider, model and credential. Requests
/// without a target share one.
#[derive(Clone, Copy, Debug, Default)]
pub struct ByTarget;

impl<Req: Call> KeyBy<Req, Option<Target>> for ByTarget {
    fn with_key<R>(&self, request: &Req, then: impl FnOnce(&Option<Target>) -> R) -> R {
        then(&request.context().target)
    }
}

impl<Req, K, F> KeyBy<Req, K> for F
where
    F: Fn(&Req) -> K,
{
    fn with_key<R>(&self, request: &Req, then: impl FnOnce(&K) -> R) -> R {
        then(&self(request))
    }
}

/// How narrow a key is, and so which failures say something about everything under it.
///
/// A refused credential proves that every further call *with that credential* fails, and a missing
/// model that every call *to that model* does. So such a failure opens a breaker at once when its
/// key names the credential or the model, and says nothing about a breaker whose key is wider: one
/// missing model does not take a whole host down.
///
/// A [`Target`] with a model covers the model. It always covers the credential: without a name
/// there, a provider is taken to have one. Callers who bring their own keys need a credential in
/// the target, or a classifier that calls a refused key the caller's fault. For closures and for
/// requests without a target the default is neither.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Covers {
    /// Calls under one key go to one model.
    pub model: bool,
    /// Calls under one key use one credential.
    pub credential: bool,
}

impl Covers {
    /// Calls under one key go to one model with one credential.
    pub const ALL: Self = Self { model: true, credential: true };

    /// Calls under one key share a provider at most.
    pub const NONE: Self = Self { model: false, credential: false };

    /// What a key of [`ByTarget`] covers.
    pub(crate) fn target(target: &Option<Target>) -> Self {
        target
            .as_ref()
            .map_or(Self::NONE, |target| Self { model: target.model().is_some(), credential: true })
    }
}
