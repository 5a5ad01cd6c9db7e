//! Ten thousand seeds of chaos: the whole stack under weather nobody planned for.
//!
//! The same test as in `cargo test`, which tries 300 seeds, in the profile `chaos`: unoptimised,
//! this many would take six times as long. The gateway is left out of the build, since nothing of
//! it is needed.

/// How many seeds. STEADFAST_CHAOS_SEEDS says otherwise.
const SEEDS: &str = "10000";

/// Runs them; `rest` goes to the test's own arguments.
pub(crate) fn run(rest: &[String]) -> Result<(), String> {
    let mut args = vec![
        "test",
        "--locked",
        "--profile",
        "chaos",
        "-p",
        "steadfast-tests",
        "--no-default-features",
        "--test",
        "chaos",
        "whatever_happens",
        "--",
    ];
    args.extend(rest.iter().map(String::as_str));
    let seeds = std::env::var("STEADFAST_CHAOS_SEEDS").unwrap_or_else(|_| SEEDS.to_owned());
    crate::cargo("chaos", &args, &[("STEADFAST_CHAOS_SEEDS", &seeds)])
}
