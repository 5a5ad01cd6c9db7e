//! What the sources give, over real sockets and with the files, commands and environments that they read.

#![cfg(any(feature = "aws", feature = "google"))]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "these are tests, helpers included")]

#[cfg(feature = "aws")]
mod aws;
mod endpoint;
mod fetched;
#[cfg(feature = "google")]
mod google;
