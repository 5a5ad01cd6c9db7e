//! `dominance`: the default stack against the best single target, in many worlds of virtual time.

use crate::CHAOS;

const HELP: &str = "`dominance [--fleets | --sockets] [worlds]`, such as `dominance 1000`";

/// Over sockets, in real time.
const SOCKETS: &str = "--sockets";

/// Runs worlds 1 to the number given, or to 10,000, in about seven minutes on two cores; with `--sockets` 500
/// of a minute through the default gateway over sockets, fifty at once, in about ten minutes; with `--fleets` 2,000 before
/// fleets of 2 to 64 stacks.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    /// What is compared: the flag, how many worlds, the test, and the variable that says how many.
    const KINDS: [(&str, &str, &str, &str); 3] = [
        ("", "10000", "the_default_stack", "STEADFAST_WORLDS"),
        ("--fleets", "2000", "fleets_against", "STEADFAST_FLEET_WORLDS"),
        (SOCKETS, "500", "sockets", "STEADFAST_SOCKET_WORLDS"),
    ];
    let flag = args.first().filter(|first| first.starts_with("--")).map_or("", String::as_str);
    let kind = KINDS.iter().find(|(known, ..)| *known == flag);
    let (flag, usual, filter, variable) = *kind.ok_or(HELP)?;
    let worlds = match &args[usize::from(!flag.is_empty())..] {
        [] => usual,
        [worlds] if worlds.parse::<u64>().is_ok() => worlds,
        _ => return Err(HELP.to_owned()),
    };
    let mut cargo = vec!["test", "--locked", "--profile", CHAOS, "-p", "steadfast-tests"];
    cargo.extend(["--test", "dominance"]);
    if flag != SOCKETS {
        cargo.push("--no-default-features");
    }
    cargo.extend(["--", "--nocapture", filter]);
    crate::cargo("dominance", &cargo, &[(variable, worlds)])
}
