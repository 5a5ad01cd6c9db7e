//! Broken streams resumed.

pub(crate) mod event;
pub(crate) mod events;
pub(crate) mod layer;
pub(crate) mod policy;
