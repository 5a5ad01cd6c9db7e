//! The code of the fuzz targets; `fuzz_targets/` only calls it.
//!
//! Each module has one `run`, which panics when one of its assertions fails. `docs/fuzzing.md`
//! lists the assertions.

#![forbid(unsafe_code)]

pub mod answer;
pub mod array;
pub mod body;
pub mod config;
mod content;
pub mod error_body;
mod input;
pub mod line;
pub mod request;
pub mod server_front;
pub mod sse;
pub mod stream;
pub mod transcript;
pub mod wait;
