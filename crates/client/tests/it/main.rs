//! The public interface: bytes in, bytes out.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "these are tests, helpers included")]

mod answers;
#[cfg(feature = "bedrock")]
mod bedrock;
mod client;
mod codecs;
mod embeddings;
mod errors;
mod fixtures;
mod fuzzed;
mod mutated;
#[cfg(feature = "hyper")]
mod network;
mod nobodys_fault;
mod platforms;
mod requests;
mod responses;
mod sdks;
mod streams;
mod table;
mod translate;
mod vanish;
