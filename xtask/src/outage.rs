//! `outage`: a provider is down for ten minutes: what callers of the default gateway notice, and what the
//! provider is asked.

/// Runs outages of ten minutes, or of the seconds given, in virtual time: about a minute on two cores.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let seconds = match args {
        [] => "600",
        [seconds] if seconds.parse::<u64>().is_ok() => seconds,
        _ => return Err("`outage [seconds]`, such as `outage 120`".to_owned()),
    };
    let args = [
        "test",
        "--locked",
        "--profile",
        "chaos",
        "-p",
        "steadfast-tests",
        "--test",
        "outage",
        "--",
        "--nocapture",
        "--test-threads=1",
    ];
    crate::cargo("outage", &args, &[("STEADFAST_OUTAGE", seconds)])
}
