//! The service that picks the target.

use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
};

use steadfast_core::{Call, Failure, Near, Tracking, UntilEnd};
use tower_service::Service;

use crate::{
    book::Book,
    choose::{ChooseChain, OneChain},
    future::{Reply, ResponseFuture},
    route::{Chains, LastRoute},
    sticky::{Seated, Sessions},
};

/// Sends each call to the first target that is not cooling, and on to the next when that fails.
/// Made by [`CooldownFailoverLayer`](crate::CooldownFailoverLayer).
///
/// Cloning it clones the inner service and shares everything known of the targets. Each call takes the
/// inner service along and leaves a clone, so that nothing which a layer further in reserved and did not
/// use stays behind.
#[derive(Clone)]
pub struct CooldownFailover<S, C = OneChain, T = UntilEnd> {
    inner: S,
    choose: C,
    tracking: T,
    shared: Near<Shared>,
    last: LastRoute,
}

/// What all services of a layer share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) chains: Chains,
    pub(crate) book: Arc<Book>,
    pub(crate) sessions: Sessions,
}

impl<S, C, T> CooldownFailover<S, C, T> {
    pub(crate) fn new(inner: S, choose: C, tracking: T, shared: Arc<Shared>) -> Self {
        Self { inner, choose, tracking, shared: Near::new(shared), last: LastRoute::default() }
    }

    /// The inner service.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }
}

impl<S, C, T, Req> Service<Req> for CooldownFailover<S, C, T>
where
    S: Service<Req> + Clone,
    S::Error: Into<Failure>,
    Req: Call + Clone,
    C: ChooseChain<Req>,
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
        let Self { inner, choose, tracking, shared, last } = self;
        let needs = choose.is_needed().then(|| request.needs());
        let chain = needs.as_ref().and_then(|needs| choose.choose(&request, needs));
        let route = shared.chains.route(last, chain, request.model(), &shared.book);
        let session = Seated::of(shared, request.context());
        ResponseFuture::new(inner, tracking.clone(), request, needs, session, route)
    }
}

impl<S: fmt::Debug, C, T> fmt::Debug for CooldownFailover<S, C, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CooldownFailover")
            .field("inner", &self.inner)
            .field("shared", &self.shared)
            .finish_non_exhaustive()
    }
}
