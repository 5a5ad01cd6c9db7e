//! Ten thousand seeds of chaos: the whole stack with random faults, answers that break and are cut off
//! anywhere, and every way a stream can break between two dialects.
//!
//! The same tests as in `cargo test`, which tries 300 seeds, in the profile `chaos`: unoptimised,
//! this many would take six times as long. The gateway is left out of the build, since nothing of
//! it is needed.

/// How many seeds. STEADFAST_CHAOS_SEEDS says otherwise.
const SEEDS: &str = "10000";

/// How many worlds of answers that break: each has several, of hundreds of events.
/// STEADFAST_SEEDS says otherwise.
const WORLDS: &str = "10000";

/// How many sessions of agents that think: each has dozens of turns, and 10,000 take minutes. STEADFAST_SESSIONS says
/// otherwise.
const SESSIONS: &str = "2000";

/// What the names of the tests begin with.
const TESTS: &str = "invariants_hold";

/// The files that they are in.
const FILES: [&str; 2] = ["chaos", "conversation_chaos"];

/// The file of the sessions.
const THINKING: &str = "thinking_chaos";

/// Runs them; `rest` goes to the test's own arguments.
pub(crate) fn run(rest: &[String]) -> Result<(), String> {
    let tests = |files: &[&'static str]| {
        let mut args = vec!["test", "--locked", "--profile", "chaos", "-p", "steadfast-tests"];
        args.push("--no-default-features");
        args.extend(files.iter().flat_map(|file| ["--test", file]));
        args.extend([TESTS, "--"]);
        args
    };
    let own = || rest.iter().map(String::as_str);
    let or = |name: &str, usual: &str| std::env::var(name).unwrap_or_else(|_| usual.to_owned());
    let seeds = or("STEADFAST_CHAOS_SEEDS", SEEDS);
    let worlds = or("STEADFAST_SEEDS", WORLDS);
    let env = [("STEADFAST_CHAOS_SEEDS", seeds.as_str()), ("STEADFAST_SEEDS", &worlds)];
    let mut args = tests(&FILES);
    args.extend(own());
    crate::cargo("chaos", &args, &env)?;
    let mut args = tests(&[THINKING]);
    args.extend(own());
    let sessions = or("STEADFAST_SESSIONS", SESSIONS);
    crate::cargo("chaos: thinking", &args, &[("STEADFAST_SEEDS", &sessions)])?;
    let mut args = vec!["test", "--locked", "--profile", "chaos", "-p", "steadfast-recover"];
    args.extend(["--test", "dialects", "--"]);
    args.extend(own());
    crate::cargo("chaos: broken streams", &args, &env)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace;

    /// A filter that matches nothing runs no test and passes.
    #[test]
    fn each_file_has_a_test_of_that_name() {
        let folder = workspace::root().join("tests/tests");
        for file in FILES.into_iter().chain([THINKING]) {
            let paths = [folder.join(file).join("main.rs"), folder.join(format!("{file}.rs"))];
            let path = paths.iter().find(|path| path.is_file()).expect(file);
            let text = workspace::read(path).unwrap();
            assert!(text.contains(&format!("#[test]\nfn {TESTS}")), "{}", path.display());
        }
    }
}
