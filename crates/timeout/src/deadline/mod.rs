//! The limit of a call with everything that is done for it.

mod layer;
mod service;

pub use self::{layer::DeadlineLayer, service::DeadlineService};
