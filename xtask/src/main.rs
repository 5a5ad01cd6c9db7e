//! The tasks of this workspace: `cargo xtask <task>`.
//!
//! Plain `cargo` calls with the right flags, so that a person, the editor and CI run the same.

mod agents;
mod bench;
mod boards;
mod browser;
mod chaos;
mod deny;
mod dominance;
mod events;
mod examples;
mod fleet;
mod frameworks;
mod fuzz;
mod hack;
mod links;
mod msrv;
mod names;
mod new_layer;
mod outage;
mod package;
mod page;
mod program;
mod reload;
mod scripts;
mod sdk;
mod siege;
mod simulate;
mod tool;
mod unit;
mod words;
mod workspace;

use std::{
    env,
    process::{Command, ExitCode},
};

/// For a part, or for programs that build sooner than those of [`RELEASE`].
const QUICK: &str = "--quick";

/// The profile of what is measured, and run by users.
const RELEASE: &str = "release";

/// The profile of what runs long in tests.
const CHAOS: &str = "chaos";

/// A task. This table is the usage, what `ci` runs and, by `ci --list`, what `.ci/run` runs.
struct Step {
    name: &'static str,
    /// What it does, for the usage.
    what: &'static str,
    /// What CI gives it; `None` when CI does not run it by itself.
    ci: Option<&'static [&'static str]>,
    run: Run,
}

enum Run {
    Plain(fn() -> Result<(), String>),
    WithArguments(fn(&[String]) -> Result<(), String>),
}

/// Quick steps first, and the tests last, so that the closing lines are theirs.
const STEPS: &[Step] = &[
    Step { name: "fmt", what: "rustfmt, check only", ci: Some(&[]), run: Run::Plain(fmt) },
    Step {
        name: "lint",
        what: "the words check, one name for one public type, clippy on everything, warnings are errors",
        ci: Some(&[]),
        run: Run::Plain(lint),
    },
    Step {
        name: "words",
        what: "the words of xtask/words.txt, a part of `lint`; `words [path...]`: these paths instead",
        ci: None,
        run: Run::WithArguments(words::run),
    },
    Step {
        name: "docs",
        what: "rustdoc, warnings are errors; files that pages name are there, events in docs/events.md",
        ci: Some(&[]),
        run: Run::Plain(docs),
    },
    Step {
        name: "unit",
        what: "systemd can read dist/steadfast.service, and it is confined",
        ci: Some(&[]),
        run: Run::Plain(unit::run),
    },
    Step {
        name: "template",
        what: "a layer made by `new-layer` builds, passes its contract, clippy and rustfmt",
        ci: Some(&[]),
        run: Run::Plain(new_layer::template),
    },
    Step {
        name: "hack",
        what: "each published crate with each of its features, and its tests alone; `hack [--quick] [package...]`: \
               without the tests",
        ci: Some(&[QUICK]),
        run: Run::WithArguments(hack::run),
    },
    Step {
        name: "msrv",
        what: "everything builds with the oldest supported compiler, all features on",
        ci: Some(&[]),
        run: Run::Plain(msrv::run),
    },
    Step {
        name: "deny",
        what: "duplicate versions, licences, sources; advisories from the folder ADVISORY_DB",
        // Its tool takes five minutes to build; a change of dependencies is held to it.
        ci: None,
        run: Run::Plain(deny::run),
    },
    Step {
        name: "package",
        what: "the published crates package, and build from their packages; `package --no-verify`: without that",
        // That takes minutes, and finds what is built without the workspace; a release is held to it.
        ci: Some(&["--no-verify"]),
        run: Run::WithArguments(package::run),
    },
    Step {
        name: "examples",
        what: "build and run the examples",
        ci: Some(&[]),
        run: Run::Plain(examples::run),
    },
    Step {
        name: "demo",
        what: "the demo once, in release mode; `demo --quick`: as the tests are built",
        ci: Some(&[QUICK]),
        run: Run::WithArguments(demo),
    },
    Step {
        name: "fuzz",
        what: "every fuzz target for 5 minutes; `fuzz [--seconds N] [--seed N] [target...]`",
        // It is as long as one likes, and what it finds is new: `test` has the seeds.
        ci: None,
        run: Run::WithArguments(fuzz::run),
    },
    Step {
        name: "fleet",
        what: "several gateways that share what they know by a store, in release mode: a table of what that is worth and costs; \
               `fleet --quick`: shorter, on a binary that builds sooner",
        // What it measures takes a machine with nothing else to do; that it works is tested.
        ci: None,
        run: Run::WithArguments(fleet::run),
    },
    Step {
        name: "siege",
        what: "attacks on the release binary over sockets, then a soak of 5 minutes; `siege [--quick] [word...]`: \
               the attacks with the words in their name, `--quick` without those that take long, on a binary \
               that builds sooner",
        ci: Some(&[QUICK]),
        run: Run::WithArguments(siege::run),
    },
    Step {
        name: "agents",
        what: "real coding agents in front of the gateway, two of them; `agents [--all] [word...]`: all of them in \
               every column, or the agents and columns with the words in their name",
        ci: Some(&[]),
        run: Run::WithArguments(agents::run),
    },
    Step {
        name: "frameworks",
        what: "frameworks in front of the gateway, each once; `frameworks [--all] [word...]`: all of them each way, or \
               those with the words in their name",
        ci: Some(&[]),
        run: Run::WithArguments(frameworks::run),
    },
    Step {
        name: "boards",
        what: "Prometheus' rules and Grafana's board, against a real Prometheus",
        ci: Some(&[]),
        run: Run::Plain(boards::run),
    },
    Step {
        name: "browser",
        what: "the dashboard in a real Chromium; `browser --pictures`: and writes those of the documentation; \
               `browser --load`: what open pages cost under load, instead; `browser --soak [minutes]`: that \
               nothing grows meanwhile",
        ci: Some(&[]),
        run: Run::WithArguments(browser::run),
    },
    Step {
        name: "test",
        what: "every test, doc tests, `chaos` and `sdk` included; `test [filter...]`: cargo test alone",
        ci: Some(&[]),
        run: Run::WithArguments(test),
    },
    Step {
        name: "dominance",
        what: "10,000 worlds: the default stack against the best single target; `dominance [worlds]`; \
               `dominance --fleets [worlds]`: 2,000, fleets of 2 to 64; `dominance --sockets [worlds]`: 500, the default gateway over sockets",
        ci: None,
        run: Run::WithArguments(dominance::run),
    },
    Step {
        name: "outage",
        what: "a provider is down for ten minutes: what callers notice, and what it is asked; `outage [seconds]`",
        ci: None,
        run: Run::WithArguments(outage::run),
    },
    Step {
        name: "simulate",
        what: "the five worlds of docs/simulate.md, their tables and pictures; `simulate --quick`: shorter, only printed",
        ci: None,
        run: Run::WithArguments(simulate::run),
    },
    Step {
        name: "reload",
        what: "the configuration is read again 10,000 times under load; `reload [times]`",
        ci: None,
        run: Run::WithArguments(reload::run),
    },
    Step {
        name: "soak",
        what: "an hour of mixed load with faults, floods and slow callers: nothing grows; `soak [minutes]`",
        ci: None,
        run: Run::WithArguments(siege::soak),
    },
    Step {
        name: "chaos",
        what: "ten thousand seeds of the whole stack with random faults",
        ci: None,
        run: Run::WithArguments(chaos::run),
    },
    Step {
        name: "sdk",
        what: "the vendors' SDKs against the gateway; `sdk [word...]`: those with the words in their name",
        ci: None,
        run: Run::WithArguments(sdk::run),
    },
    Step {
        name: "bench",
        what: "what layers and gateway cost, into docs/performance.md; `bench [layers|gateway] [--peers]`, \
               only printed with `--quick` or `gateway --only PART,...`",
        ci: None,
        run: Run::WithArguments(bench::run),
    },
    Step {
        name: "new-layer",
        what: "a crate with a layer that passes its contract; `new-layer NAME [--dir WORKSPACE]`",
        ci: None,
        run: Run::WithArguments(new_layer::run),
    },
    Step {
        name: "ci",
        what: "all that has to pass, in this order; `ci --list` prints it, a step a line",
        ci: None,
        run: Run::WithArguments(ci),
    },
];

fn main() -> ExitCode {
    let task = env::args().nth(1).unwrap_or_default();
    let rest: Vec<String> = env::args().skip(2).collect();
    let Some(step) = STEPS.iter().find(|step| step.name == task) else {
        eprint!("{}", usage());
        return ExitCode::from(2);
    };
    match step.run(&rest) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}

impl Step {
    fn run(&self, arguments: &[String]) -> Result<(), String> {
        match self.run {
            Run::WithArguments(run) => run(arguments),
            Run::Plain(run) if arguments.is_empty() => run(),
            Run::Plain(_) => Err(format!("`{}` takes no arguments", self.name)),
        }
    }
}

fn usage() -> String {
    let width = STEPS.iter().map(|step| step.name.len()).max().unwrap_or(0);
    let lines = STEPS.iter().map(|step| format!("  {:width$}  {}\n", step.name, step.what));
    format!("usage: cargo xtask <task>\n\n{}", lines.collect::<String>())
}

fn ci(arguments: &[String]) -> Result<(), String> {
    let steps = STEPS.iter().filter_map(|step| Some((step, step.ci?)));
    match arguments {
        [] => {
            for (step, arguments) in steps {
                let arguments: Vec<String> = arguments.iter().map(|word| (*word).into()).collect();
                step.run(&arguments)?;
            }
            Ok(())
        }
        [list] if list == "--list" => {
            for (step, arguments) in steps {
                println!("{}", [&[step.name], arguments].concat().join(" "));
            }
            Ok(())
        }
        _ => Err("`ci` takes `--list` or nothing".to_owned()),
    }
}

fn test(filters: &[String]) -> Result<(), String> {
    for (name, package) in [fleet::STORE, ("nginx", "nginx"), ("openssl", "openssl")] {
        tool::debian(name, package)?;
    }
    let mut args = vec!["test", "--workspace", "--all-features", "--locked"];
    args.extend(filters.iter().map(String::as_str));
    cargo("test", &args, &[])?;
    // Whoever wants some tests named them.
    if !filters.is_empty() {
        return Ok(());
    }
    // An allocator of one's own needs a program of its own.
    let own = ["-p", "steadfast-testkit", "--no-default-features", "--test", "own_allocator"];
    cargo("test", &[&["test", "--locked"], &own[..]].concat(), &[])?;
    chaos::run(&[])?;
    sdk::run(&[])
}

fn fmt() -> Result<(), String> {
    cargo("fmt", &["fmt", "--all", "--check"], &[])?;
    cargo("fmt", &["fmt", "--manifest-path", "fuzz/Cargo.toml", "--check"], &[])
}

fn lint() -> Result<(), String> {
    words::run(&[])?;
    names::run()?;
    let scope = ["clippy", "--workspace", "--all-targets", "--all-features", "--locked"];
    cargo("lint", &[&scope[..], &["--", "-D", "warnings"]].concat(), &[])
}

fn docs() -> Result<(), String> {
    links::run()?;
    events::run()?;
    let scope = ["doc", "--workspace", "--all-features", "--no-deps", "--locked"];
    cargo("docs", &scope, &[("RUSTDOCFLAGS", "-D warnings")])
}

fn demo(arguments: &[String]) -> Result<(), String> {
    match arguments {
        [] => cargo("demo", &["run", "--release", "--locked", "--", "demo", "--once"], &[]),
        [quick] if quick == QUICK => {
            let mut command = Command::new(program::gateway("demo")?);
            run("demo", "steadfast demo --once", command.args(["demo", "--once"]))
        }
        _ => Err(format!("`demo` takes `{QUICK}` or nothing")),
    }
}

/// Runs a test of several crates optimised and for as long as `setting` says, with what it prints.
fn at_length(step: &str, test: &str, which: &str, setting: (&str, &str)) -> Result<(), String> {
    let (profile, package) = (["--profile", CHAOS], ["-p", "steadfast-tests", "--test", test]);
    let own = ["--", "--nocapture", which];
    let args = [&["test", "--locked"], &profile[..], &package, &own].concat();
    cargo(step, &args, &[setting])
}

/// Runs cargo with `args` and prints what it runs.
fn cargo(step: &str, args: &[&str], vars: &[(&str, &str)]) -> Result<(), String> {
    let mut command = Command::new(env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()));
    command.args(args).envs(vars.iter().copied());
    run(step, &format!("cargo {}", args.join(" ")), &mut command)
}

/// Runs `command`, which is printed as `line`.
fn run(step: &str, line: &str, command: &mut Command) -> Result<(), String> {
    println!("== {step}: {line}");
    let status = command.status().map_err(|error| format!("can not run `{line}`: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{step} failed ({status})")) }
}

/// Where cargo builds.
fn target() -> std::path::PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace::root().join("target"), Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_the_tests_come_last_in_ci() {
        for (index, step) in STEPS.iter().enumerate() {
            assert!(STEPS[..index].iter().all(|other| other.name != step.name), "{}", step.name);
        }
        let ci: Vec<_> = STEPS.iter().filter(|step| step.ci.is_some()).collect();
        assert_eq!(ci.last().map(|step| step.name), Some("test"));
    }

    #[test]
    fn the_usage_names_every_step() {
        let usage = usage();
        assert!(STEPS.iter().all(|step| usage.contains(&format!("\n  {} ", step.name))), "{usage}");
    }
}
