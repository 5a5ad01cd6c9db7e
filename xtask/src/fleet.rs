//! `cargo xtask fleet`: several gateways that share what they know, by a real store, as processes on loopback.

use std::{env, path::PathBuf};

use crate::{CHAOS, QUICK, RELEASE, tool};

/// The program of a store, and Debian's package of it. Another one that speaks the same, such as `valkey-server`, is named by
/// `STEADFAST_STORE`.
pub(crate) const STORE: (&str, &str) = ("redis-server", "redis-server");

/// Builds the gateway and what measures it, and prints a row for each figure with the bar it is held to. With `--quick` it is
/// shorter, on a binary that builds sooner, and a figure that misses its bar is no failure. `STEADFAST_GATEWAY` is a binary that
/// is built already.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let quick = match args {
        [] => false,
        [quick] if quick == QUICK => true,
        _ => return Err(format!("`fleet` takes {QUICK} or nothing")),
    };
    let store = env::var("STEADFAST_STORE").ok();
    if store.is_none() {
        tool::debian(STORE.0, STORE.1)?;
    }
    let profile = if quick { CHAOS } else { RELEASE };
    let built = |name: &str| crate::target().join(profile).join(name);
    let mut build =
        vec!["build", "--profile", profile, "--locked", "-p", "steadfast-bench-gateway"];
    let gateway: PathBuf = match env::var_os("STEADFAST_GATEWAY") {
        Some(binary) => binary.into(),
        None => {
            build.extend(["-p", "steadfast-gateway"]);
            built("steadfast")
        }
    };
    crate::cargo("fleet", &build, &[])?;
    let mut bench = std::process::Command::new(built("steadfast-bench-gateway"));
    bench.arg("fleet").arg("--gateway").arg(gateway);
    bench.args(store.iter().flat_map(|store| ["--store", store]));
    bench.args(quick.then_some(QUICK));
    crate::run("fleet", "steadfast-bench-gateway fleet", &mut bench)?;
    // In virtual time, as windows are hours: four nodes that are killed, cut off and lose their store.
    let runs = if quick { "100" } else { "1000" };
    let caps =
        ["test", "--profile", CHAOS, "--locked", "-p", "steadfast-core", "--test", "spend_shared"];
    crate::cargo("fleet", &caps, &[("STEADFAST_SEEDS", runs)])?;
    println!(
        "| spend cap, 4 nodes, kills and partitions | never exceeded in `strict`; in `share` by less than a lease a node | {runs} runs each | holds |"
    );
    Ok(())
}
