//! The steadfast gateway as a library: configuration, the stack made of it, the server, and the
//! command line.

pub mod cli;
pub mod config;
pub mod keys;
mod logs;
pub mod metrics;
mod secrets;
pub mod server;
pub mod stack;
