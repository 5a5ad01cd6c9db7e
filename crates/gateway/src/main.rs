//! The `steadfast` binary.

use std::process::ExitCode;

/// A call makes dozens of small allocations, most of them in hyper and http, for which this allocator needs far fewer
/// instructions than glibc's; and what a flood of large requests has taken it gives back to the system within seconds.
#[cfg(unix)]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    // With them a stream would hold twice as much memory, where the system uses them unasked. Where they can not be
    // switched off there are none.
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::disable_transparent_huge_pages(true);
    steadfast_gateway::cli::run()
}
