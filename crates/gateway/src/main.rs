//! The `steadfast` binary.

use std::process::ExitCode;

/// A call makes dozens of small allocations, most of them in hyper and http, for which this allocator needs far fewer
/// instructions than glibc's; and what a flood of large requests has taken it gives back to the system within seconds.
#[cfg(all(unix, feature = "jemalloc"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    #[cfg(target_os = "linux")]
    prepare();
    steadfast_gateway::cli::run()
}

/// What a server wants of its process. Where it is refused, the gateway runs with what it has.
#[cfg(target_os = "linux")]
fn prepare() {
    use rustix::{
        process::{Resource, getrlimit, setrlimit},
        thread::disable_transparent_huge_pages,
    };
    // With them a stream would hold twice as much memory, where the system uses them unasked.
    let _ = disable_transparent_huge_pages(true);
    // A thousand descriptors are the usual soft limit, for the sake of programs that use `select`.
    let mut descriptors = getrlimit(Resource::Nofile);
    descriptors.current = descriptors.maximum;
    let _ = setrlimit(Resource::Nofile, descriptors);
}
