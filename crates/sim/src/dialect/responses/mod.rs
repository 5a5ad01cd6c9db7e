//! OpenAI responses.

pub(crate) mod errors;
pub(crate) mod items;
pub(crate) mod kept;
pub(crate) mod read;
pub(crate) mod render;
pub(crate) mod routes;
pub(crate) mod rules;
