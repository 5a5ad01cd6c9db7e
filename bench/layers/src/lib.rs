//! What each layer costs, beside its peers.
//!
//! A [`Case`] is a service built once and a loop around it. The binary `steadfast-bench-layers`
//! times the cases in turns, so that other load on the machine affects all of them alike, and
//! subtracts the bare service. The binary `allocations` runs them under a counting allocator, which
//! would slow down the timed ones.

#![expect(clippy::expect_used, reason = "a bench whose settings are wrong has nothing to measure")]

mod cases;
mod conversation;
mod drive;
pub mod measure;
mod ours;
mod peers;
pub mod report;
mod subject;
pub mod threads;

pub use self::{
    cases::{Table, tables},
    drive::Case,
};
