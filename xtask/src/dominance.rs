//! `dominance`: the default stack against the best single target, in many worlds of virtual time.

/// Runs worlds 1 to the number given, or to 10,000, in about seven minutes on two cores; with `--sockets` 500
/// of a minute through the default gateway over sockets, fifty at once, in about ten minutes.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let sockets = args.first().is_some_and(|first| first == "--sockets");
    let worlds = match &args[usize::from(sockets)..] {
        [] if sockets => "500",
        [] => "10000",
        [worlds] if worlds.parse::<u64>().is_ok() => worlds,
        _ => return Err("`dominance [--sockets] [worlds]`, such as `dominance 1000`".to_owned()),
    };
    let mut cargo = vec![
        "test",
        "--locked",
        "--profile",
        "chaos",
        "-p",
        "steadfast-tests",
        "--test",
        "dominance",
    ];
    let (filter, variable) = match sockets {
        true => ("sockets", "STEADFAST_SOCKET_WORLDS"),
        false => {
            cargo.push("--no-default-features");
            ("the_default_stack", "STEADFAST_WORLDS")
        }
    };
    cargo.extend(["--", "--nocapture", filter]);
    crate::cargo("dominance", &cargo, &[(variable, worlds)])
}
