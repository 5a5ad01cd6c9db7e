//! The service and request for further attempts of a call.

use std::{fmt, sync::Arc};

use parking_lot::Mutex;

use crate::{Call, CallContext};

/// A clone of the inner service, kept for attempts after the first one.
///
/// The first attempt of a call is made by the service that was polled ready. Another one needs another
/// service, polled ready for it: a clone of this one, made when it is due. So a call with one attempt
/// clones no service, only this handle.
pub struct Spare<S>(Arc<Mutex<S>>);

impl<S: Clone> Spare<S> {
    /// Keeps a clone of `service`.
    pub fn of(service: &S) -> Self {
        Self(Arc::new(Mutex::new(service.clone())))
    }

    /// A service that has not been polled ready.
    pub fn get(&self) -> S {
        self.0.lock().clone()
    }
}

impl<S> Clone for Spare<S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<S> fmt::Debug for Spare<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spare").finish_non_exhaustive()
    }
}

/// What is kept of a request while it is sent: the request if another attempt may follow, else only its
/// context.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a request has a context, too")]
pub enum Kept<Req> {
    /// To be sent again.
    Request(Req),
    /// No attempt can follow. The context has the recovery log.
    Context(CallContext),
}

impl<Req: Call> Kept<Req> {
    /// The context of the request.
    #[inline]
    pub fn context(&self) -> &CallContext {
        match self {
            Kept::Request(request) => request.context(),
            Kept::Context(context) => context,
        }
    }

    /// Takes the request for the last attempt, and keeps its context; `None` if it was taken before.
    pub fn take_last(&mut self) -> Option<Req> {
        let context = Kept::Context(self.context().clone());
        match std::mem::replace(self, context) {
            Kept::Request(request) => Some(request),
            Kept::Context(_) => None,
        }
    }
}
