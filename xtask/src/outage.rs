//! `outage`: a provider is down for ten minutes: what callers of the default gateway notice, and what the
//! provider is asked.

/// Runs outages of ten minutes, or of the seconds given, in virtual time: about a minute on two cores.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let seconds = match args {
        [] => "600",
        [seconds] if seconds.parse::<u64>().is_ok() => seconds,
        _ => return Err("`outage [seconds]`, such as `outage 120`".to_owned()),
    };
    crate::at_length("outage", "outage", "--test-threads=1", ("STEADFAST_OUTAGE", seconds))
}
