//! The steadfast gateway as a library: configuration, the stack made of it, and the server.

pub mod config;
