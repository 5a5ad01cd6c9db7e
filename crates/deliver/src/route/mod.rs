//! Through the parent agent, else directly to the channel.

mod future;
mod layer;
mod policy;
mod service;

pub use self::{
    future::RouteFuture,
    layer::{RouteFallbackLayer, RouteHandle, RouteSnapshot},
    policy::RoutePolicy,
    service::RouteFallback,
};
