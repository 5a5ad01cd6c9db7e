//! `reload`: the configuration is read again many times under load.

/// Reads it again 10,000 times, or as often as given, over sockets: about a minute on two cores after the build.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let times = match args {
        [] => "10000",
        [times] if times.parse::<u32>().is_ok() => times,
        _ => return Err("`reload [times]`, such as `reload 500`".to_owned()),
    };
    crate::at_length(
        "reload",
        "gateway",
        "reload::reloads_under_load",
        ("STEADFAST_RELOADS", times),
    )
}
