//! Announcements of one session share a turn of the parent.

mod layer;
mod open;
mod policy;
mod service;
mod turn;

pub use self::{
    layer::BatchLayer,
    policy::BatchPolicy,
    service::{Batch, BatchFuture},
    turn::ParentTurn,
};
