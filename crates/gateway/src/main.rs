//! The `steadfast` binary.

use std::process::ExitCode;

/// A call makes dozens of small allocations, most of them in hyper and http: this allocator needs a
/// third of the instructions for them that glibc's does. Measured by `cargo xtask bench gateway`.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    steadfast_gateway::cli::run()
}
