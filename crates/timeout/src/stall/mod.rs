//! Limits of one attempt.

mod layer;
mod service;

pub use self::{layer::StallTimeoutLayer, service::StallTimeout};
