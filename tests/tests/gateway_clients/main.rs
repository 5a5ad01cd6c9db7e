//! What real clients send and expect beside the dialects themselves, over sockets.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod beside;
mod early;
mod models;
mod packed;
mod sessions;
mod stops;
