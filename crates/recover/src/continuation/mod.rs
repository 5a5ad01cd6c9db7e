//! Cut-off answers continued.

pub(crate) mod course;
pub(crate) mod event;
pub(crate) mod events;
pub(crate) mod layer;
pub(crate) mod policy;
