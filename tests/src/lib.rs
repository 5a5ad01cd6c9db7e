//! Helpers of the integration tests.

pub mod gateway;
pub mod harness;
