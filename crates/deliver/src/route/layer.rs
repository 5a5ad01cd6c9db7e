//! The layer, its settings and its handle.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use steadfast_core::Spare;
use tower_layer::Layer;

use super::{RouteFallback, RoutePolicy};
use crate::{Announcement, DeliveryKind, DeliveryLedger, DeliveryRoute, PolicyError};

/// Announces through the parent agent; what it does not announce in time goes directly to the channel, the inner service.
///
/// Announcements and notices go this way. Replies go directly: they are the agent's own words. The parent is a
/// `Service<Announcement>`, whose reply means that the message was delivered; whatever it replies is dropped. Dropping the
/// parent's future has to end its turn: what it may still send afterwards is sent twice, unless it goes through a
/// [`SendOnceLayer`](crate::SendOnceLayer) with the same ledger and key. A turn that several share
/// ([`BatchLayer`](crate::BatchLayer), with the same ledger) is waited for until its task has ended it.
///
/// Every service made by one layer value, and by its clones, shares one set of counters.
#[must_use = "a layer does nothing until it wraps a service"]
pub struct RouteFallbackLayer<P> {
    parent: Spare<P>,
    shared: Arc<RouteShared>,
}

/// What all services of one layer share.
pub(crate) struct RouteShared {
    pub(crate) policy: RoutePolicy,
    pub(crate) ledger: DeliveryLedger,
    skip: Option<SkipParent>,
    counts: Arc<Counts>,
}

type SkipParent = Arc<dyn Fn() -> bool + Send + Sync>;

#[derive(Debug, Default)]
struct Counts {
    parent: AtomicU64,
    direct: AtomicU64,
    parent_failed: AtomicU64,
}

impl<P: Clone> RouteFallbackLayer<P> {
    /// Through this parent, for as long as the default policy says.
    pub fn new(parent: P, ledger: DeliveryLedger) -> Self {
        let policy = RoutePolicy::default();
        let shared = RouteShared { policy, ledger, skip: None, counts: Arc::default() };
        Self { parent: Spare::of(&parent), shared: Arc::new(shared) }
    }
}

impl<P> RouteFallbackLayer<P> {
    /// With this policy.
    ///
    /// # Errors
    ///
    /// When the policy is invalid.
    pub fn with_policy(self, policy: RoutePolicy) -> Result<Self, PolicyError> {
        policy.validate()?;
        Ok(self.with(|shared| shared.policy = policy))
    }

    /// Notices of failures skip the parent while `skip` is true: it is asked for each, and must not block. For a provider that is
    /// degraded, which the parent would need for its turn.
    pub fn skip_parent_when(self, skip: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        self.with(|shared| shared.skip = Some(Arc::new(skip)))
    }

    fn with(self, change: impl FnOnce(&mut RouteShared)) -> Self {
        let RouteShared { policy, ledger, skip, .. } = &*self.shared;
        let (policy, ledger, skip) = (*policy, ledger.clone(), skip.clone());
        let mut shared = RouteShared { policy, ledger, skip, counts: Arc::default() };
        change(&mut shared);
        Self { parent: self.parent, shared: Arc::new(shared) }
    }

    /// The policy in force.
    pub fn policy(&self) -> &RoutePolicy {
        &self.shared.policy
    }

    /// A handle that reads the layer's counters and resets them.
    pub fn handle(&self) -> RouteHandle {
        RouteHandle(self.shared.counts.clone())
    }
}

impl RouteShared {
    /// Why a message goes directly; `None`: to the parent.
    pub(crate) fn skips_parent(&self, message: &Announcement) -> Option<&'static str> {
        match message.kind {
            DeliveryKind::Reply => Some("replies do not need the parent"),
            DeliveryKind::Notice if self.skip.as_ref().is_some_and(|skip| skip()) => {
                Some("the parent is skipped")
            }
            DeliveryKind::Announcement | DeliveryKind::Notice => None,
        }
    }

    pub(crate) fn went(&self, route: DeliveryRoute) {
        match route {
            DeliveryRoute::Parent => self.counts.parent.fetch_add(1, Ordering::Relaxed),
            _ => self.counts.direct.fetch_add(1, Ordering::Relaxed),
        };
    }

    pub(crate) fn parent_failed(&self) {
        self.counts.parent_failed.fetch_add(1, Ordering::Relaxed);
    }
}

impl<P: Clone, S> Layer<S> for RouteFallbackLayer<P> {
    type Service = RouteFallback<S, P>;

    fn layer(&self, inner: S) -> Self::Service {
        RouteFallback::new(inner, self.parent.clone(), self.shared.clone())
    }
}

impl<P> Clone for RouteFallbackLayer<P> {
    fn clone(&self) -> Self {
        Self { parent: self.parent.clone(), shared: self.shared.clone() }
    }
}

impl<P> fmt::Debug for RouteFallbackLayer<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RouteFallbackLayer").field("shared", &self.shared).finish_non_exhaustive()
    }
}

impl fmt::Debug for RouteShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RouteShared")
            .field("policy", &self.policy)
            .field("skips", &self.skip.is_some())
            .field("counts", &self.counts)
            .finish_non_exhaustive()
    }
}

/// Reads and resets the counters of a [`RouteFallbackLayer`]. Cheap to clone.
#[derive(Clone, Debug)]
pub struct RouteHandle(Arc<Counts>);

/// By which route messages went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RouteSnapshot {
    /// Announced by the parent.
    pub parent: u64,
    /// Given to the channel.
    pub direct: u64,
    /// Those of them that the parent had not announced.
    pub parent_failed: u64,
}

impl RouteHandle {
    /// The counts so far.
    pub fn snapshot(&self) -> RouteSnapshot {
        let Counts { parent, direct, parent_failed } = &*self.0;
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        RouteSnapshot {
            parent: read(parent),
            direct: read(direct),
            parent_failed: read(parent_failed),
        }
    }

    /// Sets the counts to zero.
    pub fn reset(&self) {
        let Counts { parent, direct, parent_failed } = &*self.0;
        for count in [parent, direct, parent_failed] {
            count.store(0, Ordering::Relaxed);
        }
    }
}
