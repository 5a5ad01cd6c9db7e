//! `steadfast replay`: what the guard says to a recorded conversation.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use serde_json::json;
use steadfast::guard::{GuardPolicy, Replayed, SafetyGuard};

use super::{FAILED, ReplayArgs, USAGE, fail, input};
use crate::config::Config;

pub(crate) fn run(args: &ReplayArgs) -> ExitCode {
    let policy = match policy(args) {
        Ok(policy) => policy,
        Err(why) => return fail(USAGE, why),
    };
    let guard = match SafetyGuard::new(policy) {
        Ok(guard) => guard,
        Err(why) => return fail(USAGE, why),
    };
    let request = match input::request(args.file.as_deref(), args.dialect) {
        Ok(request) => request,
        Err(why) => return fail(why.code(), why),
    };
    match print(&guard.replay(&request), &mut io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever reads has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => fail(FAILED, error),
    }
}

fn policy(args: &ReplayArgs) -> Result<GuardPolicy, Box<dyn std::error::Error>> {
    let policy = match &args.config {
        None => GuardPolicy::default(),
        Some(file) => {
            let (config, _) = Config::load(Some(file))?;
            if config.guard.enabled { config.guard.policy } else { GuardPolicy::off() }
        }
    };
    Ok(if args.loops_only { policy.loops_only() } else { policy })
}

fn print(calls: &[Replayed], out: &mut impl Write) -> io::Result<()> {
    for (index, Replayed { tool, verdict, .. }) in calls.iter().enumerate() {
        let line = json!({
            "n": index + 1,
            "tool": tool,
            "verdict": verdict.as_str(),
            "rule": verdict.rule(),
        });
        writeln!(out, "{line}")?;
    }
    Ok(())
}
