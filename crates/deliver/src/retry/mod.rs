//! The same destination again, shortly after.

mod decide;
mod future;
mod layer;
mod policy;
mod service;

pub use self::{
    future::RetryFuture,
    layer::{DeliveryRetryHandle, DeliveryRetryLayer, DeliveryRetrySnapshot},
    policy::DeliveryRetryPolicy,
    service::DeliveryRetry,
};
