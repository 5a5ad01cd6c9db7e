//! The service around the channel.

use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
};

use steadfast_core::{Failure, IntoFailure, Spare, inner_service};
use tower_service::Service;

use super::{RouteFuture, layer::RouteShared};
use crate::{Announcement, DeliveryReceipt};

/// Announces through the parent, else through the inner service; see [`RouteFallbackLayer`](crate::RouteFallbackLayer).
///
/// The inner service is polled ready before a message is taken, and is the one that the message goes to if the parent does not
/// announce it.
#[derive(Clone)]
#[must_use = "services do nothing unless called"]
pub struct RouteFallback<S, P> {
    inner: S,
    parent: Spare<P>,
    shared: Arc<RouteShared>,
}

inner_service!(RouteFallback<S, P>);

impl<S, P> RouteFallback<S, P> {
    pub(crate) const fn new(inner: S, parent: Spare<P>, shared: Arc<RouteShared>) -> Self {
        Self { inner, parent, shared }
    }
}

impl<P, S> Service<Announcement> for RouteFallback<S, P>
where
    P: Service<Announcement, Error: IntoFailure> + Clone,
    S: Service<Announcement, Response: Into<DeliveryReceipt>, Error: IntoFailure> + Clone,
{
    type Response = DeliveryReceipt;
    type Error = Failure;
    type Future = RouteFuture<P, S>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, message: Announcement) -> Self::Future {
        if let Some(why) = self.shared.skips_parent(&message) {
            let sent = self.inner.call(message.clone());
            return RouteFuture::direct(sent, message, why, self.shared.clone());
        }
        // The service that is ready is kept for the message; a clone of it is not ready.
        let clone = self.inner.clone();
        let channel = std::mem::replace(&mut self.inner, clone);
        RouteFuture::parent(self.parent.get(), channel, message, self.shared.clone())
    }
}

impl<P, S: fmt::Debug> fmt::Debug for RouteFallback<S, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RouteFallback")
            .field("inner", &self.inner)
            .field("shared", &self.shared)
            .finish_non_exhaustive()
    }
}
