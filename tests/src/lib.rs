//! Helpers of the integration tests.

#[cfg(feature = "gateway")]
pub mod gateway;
pub mod harness;
pub mod seeds;
