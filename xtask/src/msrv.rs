//! `cargo xtask msrv`: the oldest compiler that the manifest promises.

use std::process::Command;

use crate::workspace;

/// Checks the workspace with it, all features on. Where the toolchain is not here and can not be
/// installed (no rustup, or no network), it says so and passes.
pub(crate) fn run() -> Result<(), String> {
    let manifest = workspace::read(&workspace::root().join("Cargo.toml"))?;
    let version = workspace::value(&manifest, "workspace.package", "rust-version")
        .ok_or("Cargo.toml has no rust-version in [workspace.package]")?;
    if !is_installed(version) {
        println!("== msrv: rustup toolchain install {version} --profile minimal");
        let install = ["toolchain", "install", version, "--profile", "minimal", "--no-self-update"];
        if let Err(reason) = output(&install) {
            println!(
                "msrv: skipped, toolchain {version} is not here and could not be installed: {reason}"
            );
            return Ok(());
        }
    }
    let check = ["cargo", "check", "--workspace", "--all-features", "--locked"];
    let mut command = Command::new("rustup");
    // What cargo has set for this program is the other toolchain's.
    command.args(["run", version]).args(check);
    command.current_dir(workspace::root()).env_remove("CARGO").env_remove("RUSTC");
    let line = format!("cargo +{version} {}", check[1..].join(" "));
    crate::run("msrv", &line, &mut command)
}

fn is_installed(version: &str) -> bool {
    let named = format!("{version}-");
    output(&["toolchain", "list"])
        .is_ok_and(|list| list.lines().any(|line| line.starts_with(&named) || line == version))
}

/// What rustup prints, or why it failed.
fn output(args: &[&str]) -> Result<String, String> {
    let output = Command::new("rustup")
        .args(args)
        .env("RUST_BACKTRACE", "0")
        .output()
        .map_err(|error| format!("can not run rustup: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(reason(&String::from_utf8_lossy(&output.stderr)))
}

/// The error in what rustup prints behind its progress, on one line.
fn reason(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let error: Vec<&str> = lines.clone().skip_while(|line| !line.starts_with("error")).collect();
    let lines = if error.is_empty() { lines.collect() } else { error };
    lines[..lines.len().min(4)].join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_is_the_error_alone() {
        let text =
            "info: syncing channel updates\nerror: could not download\n\nCaused by:\n  refused\n";
        assert_eq!(reason(text), "error: could not download Caused by: refused");
        assert_eq!(reason("gone\n"), "gone");
        assert_eq!(reason(""), "");
    }
}
