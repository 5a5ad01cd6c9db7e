//! OpenAI chat completions.

pub(crate) mod errors;
pub(crate) mod messages;
pub(crate) mod read;
pub(crate) mod render;
pub(crate) mod routes;
pub(crate) mod rules;
pub(crate) mod shape;
pub(crate) mod tools;
