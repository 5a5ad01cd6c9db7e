//! `dominance`: the default stack against the best single target, in many worlds of virtual time.

/// Runs worlds 1 to the number given, or to 10,000, in about seven minutes on two cores.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let worlds = match args {
        [] => "10000",
        [worlds] if worlds.parse::<u64>().is_ok() => worlds,
        _ => return Err("`dominance [worlds]`, such as `dominance 1000`".to_owned()),
    };
    let args = [
        "test",
        "--locked",
        "--profile",
        "chaos",
        "-p",
        "steadfast-tests",
        "--no-default-features",
        "--test",
        "dominance",
        "--",
        "--nocapture",
    ];
    crate::cargo("dominance", &args, &[("STEADFAST_WORLDS", worlds)])
}
