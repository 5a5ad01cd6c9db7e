//! `siege` and `soak`: attacks on the release binary of the gateway, and an hour of mixed load, over sockets.

use crate::{CHAOS, QUICK, RELEASE};

/// The minutes of the soak after all checks.
const SHORT_SOAK: &str = "5";

/// Runs the checks of `siege/`: those whose name has every word in it, without the slow ones with `--quick`; without either all of them, and
/// a short soak.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    // What holds in memory and time does so in an optimised program alone.
    let is_quick = args.iter().any(|argument| argument == QUICK);
    start("siege", if is_quick { CHAOS } else { RELEASE }, args)?;
    if args.is_empty() { soak(&[SHORT_SOAK.to_owned()]) } else { Ok(()) }
}

/// Runs the soak for an hour, or for the minutes given.
pub(crate) fn soak(args: &[String]) -> Result<(), String> {
    let minutes = match args {
        [] => "60",
        [minutes] if minutes.parse::<u32>().is_ok_and(|minutes| minutes >= 2) => minutes,
        _ => return Err("`soak [minutes]`, at least 2, such as `soak 5`".to_owned()),
    };
    start("soak", RELEASE, &["--soak".to_owned(), minutes.to_owned()])
}

/// Builds the gateway in `profile`, and attacks it.
fn start(step: &str, profile: &str, args: &[String]) -> Result<(), String> {
    let build = ["build", "--profile", profile, "--locked", "-p", "steadfast-gateway"];
    crate::cargo(step, &[&build[..], &["--bin", "steadfast"]].concat(), &[])?;
    let binary = crate::target().join(profile).join("steadfast");
    let binary = binary.to_str().ok_or("the path of the gateway is not UTF-8")?;
    // What attacks is as checked as a test, and quick enough to be no hindrance.
    let own = ["run", "--locked", "--profile", CHAOS, "-p", "steadfast-siege", "--", binary];
    let args: Vec<&str> = own.into_iter().chain(args.iter().map(String::as_str)).collect();
    crate::cargo(step, &args, &[])
}
