//! Attacks on the gateway, over sockets, as a caller, a provider, a page in a browser, another tenant and the machine
//! would make them: `cargo xtask siege`. And a soak: `cargo xtask soak`.
//!
//! The gateway is the release binary, started as a process; the providers behind it are here.

#![forbid(unsafe_code)]

mod check;
mod checks;
mod frames;
mod process;
mod provider;
mod run;
mod site;
mod soak;
mod text;
mod wire;

use std::{env, path::PathBuf, process::ExitCode};

const USAGE: &str = "usage: steadfast-siege BINARY [--quick] [WORD...]\n       \
                     steadfast-siege BINARY --soak MINUTES\n";

fn main() -> ExitCode {
    let mut words: Vec<String> = env::args().skip(1).collect();
    if words.is_empty() {
        eprint!("{USAGE}");
        return ExitCode::from(2);
    }
    let binary = PathBuf::from(words.remove(0));
    let quick = words.iter().position(|word| word == "--quick").map(|at| words.remove(at));
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("siege: no runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    let held = match &words[..] {
        [soak, minutes] if soak == "--soak" => match minutes.parse() {
            Ok(minutes) => runtime.block_on(soak::run(&binary, minutes)),
            Err(_) => {
                eprint!("{USAGE}");
                return ExitCode::from(2);
            }
        },
        words => runtime.block_on(run::run(&binary, quick.is_some(), words)),
    };
    if held { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
