//! Anthropic messages.

pub(crate) mod binding;
pub(crate) mod blocks;
pub(crate) mod errors;
pub(crate) mod read;
pub(crate) mod render;
pub(crate) mod routes;
pub(crate) mod rules;
pub(crate) mod thinking;
pub(crate) mod tools;
pub(crate) mod turns;
