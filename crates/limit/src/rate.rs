//! Rate limits: requests and tokens in a time, learned from the provider.

mod bucket;
mod event;
mod future;
mod handle;
mod key;
mod layer;
mod permit;
mod policy;
mod queue;
mod quota;
mod service;
#[cfg(feature = "shared")]
mod shared;
mod state;

pub use self::{
    future::RateFuture,
    handle::{QuotaSnapshot, RateHandle, RateSnapshot},
    key::{QuotaKey, QuotaOfTarget},
    layer::RateLimitLayer,
    permit::RatePermit,
    policy::{RatePolicy, ReleaseAt},
    service::RateLimited,
};
