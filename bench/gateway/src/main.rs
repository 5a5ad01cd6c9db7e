//! What the gateway costs: CPU, latency and memory, beside a minimal reverse proxy and, when they
//! are installed, peer gateways.
//!
//! ```text
//! steadfast-bench-gateway [--quick] [--peers] [--gateway PATH] [--only PART,...]
//! ```
//!
//! Everything runs on this machine over loopback, each part in a separate process: the load, the
//! upstream, and the variant under test. The report is Markdown on standard output, progress goes
//! to standard error. `PART` is one of `whole`, `streams`, `memory`, `instructions`.
//!
//! The same binary is also the other parts, for profiling by hand: `upstream` is the provider,
//! `fleet` has several gateways that share what they know, `proxy ADDR` the minimal reverse proxy, `load ADDR REQUESTS CONNECTIONS` requests whole answers,
//! `load ADDR STREAM CONNECTIONS` streams such as `bench-stream-1000-20-8`.

mod fit;
mod fleet;
mod instructions;
mod load;
mod measure;
mod memory;
mod peers;
mod process;
mod proxy;
mod report;
mod responses;
mod serve;
mod upstream;
mod variant;
mod wire;

use std::{path::PathBuf, process::ExitCode};

/// What `--only` can select.
const PARTS: [&str; 4] = ["whole", "streams", "memory", "instructions"];

/// Every error ends the bench with its message.
pub(crate) type Error = Box<dyn std::error::Error + Send + Sync>;

/// The command line.
pub(crate) struct Options {
    /// A minute instead of ten.
    pub(crate) quick: bool,
    /// Peers are installed when they are missing.
    pub(crate) peers: bool,
    /// The gateway's binary.
    pub(crate) gateway: PathBuf,
    /// The parts to run; all when empty.
    pub(crate) only: Vec<String>,
}

impl Options {
    fn read(mut args: impl Iterator<Item = String>) -> Result<Self, Error> {
        let beside = std::env::current_exe()?.with_file_name("steadfast");
        let mut options = Self { quick: false, peers: false, gateway: beside, only: Vec::new() };
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or(format!("{arg} needs a value"));
            match arg.as_str() {
                "--quick" => options.quick = true,
                "--peers" => options.peers = true,
                "--gateway" => options.gateway = value()?.into(),
                "--only" => options.only = parts(&value()?)?,
                other => {
                    return Err(format!(
                        "`{other}` is not known; there are --quick, --peers, --gateway PATH and \
                         --only {}",
                        PARTS.join(",")
                    )
                    .into());
                }
            }
        }
        Ok(options)
    }

    /// Whether `part` is to be run.
    pub(crate) fn wants(&self, part: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == part)
    }
}

/// The parts that a list names.
fn parts(list: &str) -> Result<Vec<String>, Error> {
    match list.split(',').find(|part| !PARTS.contains(part)) {
        Some(part) => {
            let known = PARTS.join(", ");
            Err(format!("--only: there is no part `{part}`; there are {known}").into())
        }
        None => Ok(list.split(',').map(str::to_owned).collect()),
    }
}

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1).peekable();
    let done = match args.peek().map(String::as_str) {
        Some("upstream") => upstream::run(),
        Some("proxy") => proxy::run(args.nth(1).as_deref()),
        Some("fleet") => fleet::run(&args.skip(1).collect::<Vec<_>>()),
        Some("load") => measure::load_only(&args.skip(1).collect::<Vec<_>>()),
        _ => Options::read(args).and_then(|options| measure::run(&options)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("steadfast-bench-gateway: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_part_is_refused_with_the_known_ones() {
        assert_eq!(parts("memory,whole").unwrap(), ["memory", "whole"]);
        for wrong in ["memroy", "", "memory,", "memory, whole"] {
            let error = parts(wrong).unwrap_err().to_string();
            assert!(error.contains("whole, streams, memory, instructions"), "{error}");
        }
    }
}
