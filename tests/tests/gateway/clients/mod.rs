//! What real clients send and expect beside the dialects themselves, over sockets.

mod beside;
mod early;
mod models;
mod packed;
mod sessions;
mod stops;
