//! What the fuzz targets do with the bytes they are given; `fuzz_targets/` only calls it.
//!
//! Each module has one `run`. It returns when the bytes were handled as promised and panics when
//! not: the promises are written as assertions there. `docs/fuzzing.md` has them in words.

#![forbid(unsafe_code)]

pub mod answer;
pub mod array;
pub mod body;
pub mod config;
pub mod error_body;
mod input;
pub mod line;
pub mod request;
mod said;
pub mod sse;
pub mod stream;
pub mod transcript;
pub mod wait;
