//! The service around the inner one.

use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
};

use parking_lot::Mutex;
use steadfast_core::{Call, CallContext, Failure, RetryBudget, Tracking, UntilEnd};
use tower_service::Service;

use crate::{RetryHandle, future::ResponseFuture, state::Shared};

/// What a [`RetryBackoff`] answers with when its inner service answers with `R`: the reply after
/// its first content, with the lease on it that puts back the budget when it ends well.
pub type Reply<T, R> = <T as Tracking<R>>::Committed;

/// Makes calls of the inner service again; see [`RetryBackoffLayer`](crate::RetryBackoffLayer).
///
/// The first attempt is the inner service's, which is ready. Retries are made by a clone of it, polled
/// ready before each: a clone that is made when the first retry is due, of one that was put aside when
/// this service was made.
#[derive(Clone)]
#[must_use = "services do nothing unless called"]
pub struct RetryBackoff<S, T = UntilEnd> {
    inner: S,
    own: Arc<Own<S>>,
    tracking: T,
}

/// What a service and its clones have in common, apart from those of the same layer: a call counts
/// its pointers here, where cores that use services of their own do not meet.
pub(crate) struct Own<S> {
    pub(crate) shared: Arc<Shared>,
    /// What retries are made with clones of. Locked for the cloning.
    spare: Mutex<S>,
    budget: Option<RetryBudget>,
}

impl<S> Own<S> {
    /// The budget a request draws from.
    pub(crate) fn budget<'a>(&'a self, context: &'a CallContext) -> Option<&'a RetryBudget> {
        let brought = context.budget.as_ref().filter(|_| self.shared.takes_brought());
        brought.or(self.budget.as_ref())
    }
}

impl<S: Clone> Own<S> {
    pub(crate) fn spare(&self) -> S {
        self.spare.lock().clone()
    }
}

impl<S, T> RetryBackoff<S, T> {
    pub(crate) fn new(inner: S, shared: Arc<Shared>, tracking: T) -> Self
    where
        S: Clone,
    {
        let budget = shared.own_budget().map(RetryBudget::renewed);
        let own = Own { shared, spare: Mutex::new(inner.clone()), budget };
        Self { inner, own: Arc::new(own), tracking }
    }

    /// Looks at the layer's state and resets it.
    pub fn handle(&self) -> RetryHandle {
        RetryHandle(self.own.shared.clone())
    }

    /// The inner service.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }
}

impl<S, Req, T> Service<Req> for RetryBackoff<S, T>
where
    S: Service<Req> + Clone,
    S::Error: Into<Failure>,
    Req: Call + Clone,
    T: Tracking<S::Response> + Clone,
{
    type Response = Reply<T, S::Response>;
    type Error = Failure;
    type Future = ResponseFuture<S, Req, T>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    #[inline]
    fn call(&mut self, request: Req) -> Self::Future {
        self.own.shared.called();
        ResponseFuture::new(&mut self.inner, request, self.own.clone(), self.tracking.clone())
    }
}

impl<S: fmt::Debug, T> fmt::Debug for RetryBackoff<S, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryBackoff")
            .field("inner", &self.inner)
            .field("config", &self.own.shared.config)
            .finish()
    }
}
