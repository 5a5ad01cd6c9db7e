//! The steadfast gateway as a library: configuration, the stack made of it, the server, and the
//! command line.

// They panic when the reader is gone.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod admission;
mod authority;
pub mod cli;
pub mod config;
mod escape;
mod fleet;
pub mod keys;
mod logs;
pub mod metrics;
mod responses;
mod secrets;
pub mod server;
pub mod simulate;
pub mod stack;
mod stories;
mod traces;
mod webhook;
