//! `cargo xtask hack`: the published crates with each of their features, and the tests of each by themselves.

use std::process::Command;

use crate::{QUICK, tool::Tool, workspace};

/// Those that put a cloud's libraries under a crate. Each by itself again is most of the time that all others take together.
const CLOUDS: &str = "aws,google,sim-clouds";

/// The crate that has such features of another's: what is in them is compiled with the crate itself, and with all features by `lint`.
const FACADE: &str = "steadfast";

/// The largest crate, which is no layer: with all features `lint` checks it.
const GATEWAY: &str = "steadfast-gateway";

const CARGO_HACK: Tool = Tool { name: "cargo-hack", version: "0.6.46" };

/// Checks the packages named, or all published ones.
pub(crate) fn run(arguments: &[String]) -> Result<(), String> {
    let (quick, packages): (Vec<String>, Vec<String>) =
        arguments.iter().cloned().partition(|argument| argument == QUICK);
    let published: Vec<String> = workspace::crates(workspace::root())?
        .into_iter()
        .filter(workspace::Crate::is_published)
        .map(|found| found.package)
        .collect();
    if let Some(name) = packages.iter().find(|name| !published.contains(name)) {
        return Err(format!("`{name}` is no published crate; there are {}", published.join(", ")));
    }
    let wanted = if packages.is_empty() { &published } else { &packages };
    let wanted: Vec<_> = wanted.iter().map(String::as_str).collect();
    // None, each and all; without the dependencies of the tests, which turn features on that a user does not have.
    // The manifests and the lock file are put back afterwards.
    let each = ["--each-feature", "--no-dev-deps"];
    if !quick.is_empty() {
        let (around, layers): (Vec<_>, Vec<_>) =
            wanted.into_iter().partition(|name| [FACADE, GATEWAY].contains(name));
        let one =
            |wanted| around.iter().copied().filter(|name| *name == wanted).collect::<Vec<_>>();
        check(&layers, &each)?;
        check(&one(FACADE), &[&each[..], &["--exclude-features", CLOUDS]].concat())?;
        return check(&one(GATEWAY), &["--no-default-features", "--no-dev-deps"]);
    }
    check(&wanted, &each)?;
    // As `cargo test -p` builds them: in the workspace, other crates turn features on.
    check(&wanted, &["--all-targets"])
}

fn check(packages: &[&str], flags: &[&str]) -> Result<(), String> {
    if packages.is_empty() {
        return Ok(());
    }
    let mut args = vec!["hack", "check"];
    args.extend(flags);
    args.extend(packages.iter().flat_map(|package| ["-p", package]));
    let mut command = Command::new(CARGO_HACK.path()?);
    command.args(&args).current_dir(workspace::root());
    crate::run("hack", &format!("cargo {}", args.join(" ")), &mut command)
}
