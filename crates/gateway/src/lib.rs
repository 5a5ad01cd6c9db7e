//! The steadfast gateway as a library: configuration, the stack made of it, the server, and the
//! command line.

mod authority;
pub mod cli;
pub mod config;
pub mod keys;
mod logs;
pub mod metrics;
pub mod server;
pub mod stack;
