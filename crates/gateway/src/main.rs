//! The `steadfast` binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    steadfast_gateway::cli::run()
}
