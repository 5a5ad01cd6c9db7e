//! `cargo xtask deny`: what the dependencies are, as `deny.toml` allows.

use std::process::Command;

use crate::{tool::Tool, workspace};

const CARGO_DENY: Tool = Tool { name: "cargo-deny", version: "0.20.2" };

/// Checks everything that needs no network.
pub(crate) fn run() -> Result<(), String> {
    let tool = CARGO_DENY.path()?;
    let args = ["--locked", "check", "bans", "licenses", "sources"];
    let mut command = Command::new(&tool);
    command.args(args).current_dir(workspace::root());
    crate::run("deny", &format!("cargo deny {}", args.join(" ")), &mut command)
}
