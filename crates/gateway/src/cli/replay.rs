//! `steadfast replay`: what the guard makes of a recorded conversation, as a named task. With
//! `--loops-only` nothing is counted, as by default for a task that nobody named.

use std::io::{self, Write};

use serde_json::json;
use steadfast::guard::{GuardPolicy, Replayed, SafetyGuardHandle};

use super::{Exit, ReplayArgs, input};
use crate::config::Config;

pub(super) fn run(args: &ReplayArgs) -> Result<(), Exit> {
    let mut policy = GuardPolicy::default();
    if let Some(file) = &args.config {
        let (config, _) = Config::load(Some(file))?;
        policy = if config.guard.enabled { config.guard.policy } else { GuardPolicy::off() };
    }
    if args.loops_only {
        policy = policy.loops_only();
    }
    let guard = SafetyGuardHandle::new(policy).map_err(Exit::usage)?;
    let request = input::request(args.file.as_deref(), args.dialect)?;
    let mut out = io::stdout().lock();
    for (index, Replayed { tool, verdict, .. }) in guard.replay(&request).iter().enumerate() {
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
