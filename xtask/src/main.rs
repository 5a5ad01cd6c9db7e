//! The tasks of this workspace: `cargo xtask <task>`.
//!
//! Plain `cargo` calls with the right flags, so that a person, the editor and CI run the same.

mod bench;
mod chaos;
mod fuzz;
mod sdk;

use std::{
    env,
    path::Path,
    process::{Command, ExitCode},
};

/// Crates that must build by themselves, with each of their features.
const LAYERS: &[&str] = &[
    "steadfast-core",
    "steadfast-classify",
    "steadfast-retry",
    "steadfast-breaker",
    "steadfast-failover",
    "steadfast-timeout",
    "steadfast-guard",
    "steadfast-recover",
    "steadfast-compact",
    "steadfast-client",
    "steadfast-sim",
    "steadfast-testkit",
    "steadfast",
];

const USAGE: &str = "\
usage: cargo xtask <task>

  test       every test of the workspace, doc tests and the vendors' SDKs included
  fmt        rustfmt, check only
  lint       clippy on everything, warnings are errors
  docs       rustdoc, warnings are errors
  features   each layer crate alone, with each of its features
  examples   build and run the examples
  demo       the demo once, in release mode
  chaos      ten thousand seeds of the whole stack in bad weather; part of `test`
  fuzz       every fuzz target for 5 minutes; `fuzz [--seconds N] [--seed N] [target...]`
  sdk        the vendors' SDKs against the gateway; `sdk [word...]` those with the words in their name
  bench      what layers and gateway cost, into docs/performance.md; `bench [layers|gateway] [--quick] [--peers]`
  deny       licences, advisories and duplicate versions (when cargo-deny is installed)
  ci         all of the above but `bench`";

fn main() -> ExitCode {
    let task = env::args().nth(1).unwrap_or_default();
    let rest: Vec<String> = env::args().skip(2).collect();
    let result = match task.as_str() {
        "test" => test(&rest),
        "fmt" => fmt(),
        "lint" => lint(),
        "docs" => docs(),
        "features" => features(),
        "examples" => examples(),
        "demo" => demo(),
        "chaos" => chaos::run(&rest),
        "fuzz" => fuzz::run(&rest),
        "sdk" => sdk::run(&rest),
        "bench" => bench::run(&rest),
        "deny" => deny(),
        "ci" => ci(),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}

fn ci() -> Result<(), String> {
    fmt()?;
    lint()?;
    docs()?;
    features()?;
    test(&[])?;
    examples()?;
    demo()?;
    deny()?;
    fuzz::run(&["--seconds", "5", "--seed", "1"].map(str::to_owned))
}

fn test(rest: &[String]) -> Result<(), String> {
    let mut args = vec!["test", "--workspace", "--all-features", "--locked"];
    args.extend(rest.iter().map(String::as_str));
    cargo("test", &args, &[])?;
    // Whoever wants some tests named them.
    if !rest.is_empty() {
        return Ok(());
    }
    chaos::run(&[])?;
    sdk::run(&[])
}

fn fmt() -> Result<(), String> {
    cargo("fmt", &["fmt", "--all", "--check"], &[])?;
    cargo("fmt", &["fmt", "--manifest-path", "fuzz/Cargo.toml", "--check"], &[])
}

fn lint() -> Result<(), String> {
    cargo(
        "lint",
        &[
            "clippy",
            "--workspace",
            "--all-targets",
            "--all-features",
            "--locked",
            "--",
            "-D",
            "warnings",
        ],
        &[],
    )
}

fn docs() -> Result<(), String> {
    cargo(
        "docs",
        &["doc", "--workspace", "--all-features", "--no-deps", "--locked"],
        &[("RUSTDOCFLAGS", "-D warnings")],
    )
}

fn features() -> Result<(), String> {
    for name in LAYERS {
        cargo("features", &["check", "--locked", "-p", name, "--no-default-features"], &[])?;
        for feature in features_of(name)? {
            let args =
                ["check", "--locked", "-p", name, "--no-default-features", "--features", &feature];
            cargo("features", &args, &[])?;
        }
    }
    Ok(())
}

/// The features a crate declares, read from its manifest.
fn features_of(name: &str) -> Result<Vec<String>, String> {
    let folder = name.strip_prefix("steadfast-").unwrap_or("steadfast");
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates").join(folder).join("Cargo.toml");
    let text = std::fs::read_to_string(&path)
        .map_err(|error| format!("can not read {}: {error}", path.display()))?;
    Ok(text
        .lines()
        .skip_while(|line| line.trim() != "[features]")
        .skip(1)
        .take_while(|line| !line.starts_with('['))
        .filter_map(|line| line.split_once('='))
        .map(|(key, _)| key.trim().to_owned())
        .filter(|key| !key.starts_with('#') && !key.is_empty())
        .collect())
}

fn examples() -> Result<(), String> {
    for name in [
        "example-axum-service",
        "example-raw-hyper",
        "example-reqwest",
        "example-async-openai",
        "example-streaming-failover",
    ] {
        cargo("examples", &["run", "--quiet", "--locked", "-p", name], &[])?;
    }
    Ok(())
}

fn demo() -> Result<(), String> {
    cargo("demo", &["run", "--release", "--locked", "--", "demo", "--once"], &[])
}

fn deny() -> Result<(), String> {
    let there = Command::new("cargo").args(["deny", "--version"]).output();
    if !there.is_ok_and(|output| output.status.success()) {
        println!(
            "== deny: skipped, cargo-deny is not installed (cargo install cargo-deny --locked)"
        );
        return Ok(());
    }
    // Advisories need a database from the network; the rest is local.
    cargo("deny", &["deny", "check", "bans", "licenses", "sources"], &[])
}

/// Runs cargo with `args` and says so.
fn cargo(step: &str, args: &[&str], vars: &[(&str, &str)]) -> Result<(), String> {
    println!("== {step}: cargo {}", args.join(" "));
    let cargo = env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let status = Command::new(cargo)
        .args(args)
        .envs(vars.iter().copied())
        .status()
        .map_err(|error| format!("can not start cargo: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{step} failed ({status})")) }
}

/// Where cargo builds.
fn target() -> std::path::PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), Into::into)
}
