//! `steadfast check`: what a configuration comes to.

use super::{CheckArgs, Exit, print};
use crate::{
    config::{Config, ConfigErrors, schema},
    escape,
    server::usable_state_file,
    stack::{Gateway, Report, fetch_credentials},
};

pub(super) fn run(args: &CheckArgs) -> Result<(), Exit> {
    if args.schema {
        return Ok(print::result(format_args!("{:#}", schema()))?);
    }
    let (config, source) = Config::load(args.config.as_deref())?;
    let report = Report::of(&config, &source)?;
    if let Some(path) = &config.server.state_file {
        usable_state_file(path)
            .map_err(|why| ConfigErrors::from(source.error("server.state_file", why)))?;
    }
    // Credentials too: a variable that is not set is found now and not at night.
    super::runtime().block_on(async { Gateway::connect(&config, &source) })?;
    if args.fetch {
        fetch(&config)?;
    }
    if args.json {
        print::result(serde_json::to_string_pretty(&report).map_err(Exit::failed)?)?;
    } else {
        print::result(report.to_string().trim_end())?;
    }
    Ok(())
}

/// Has every credential of a cloud fetched: what can not be had is found now, too.
fn fetch(config: &Config) -> Result<(), Exit> {
    let fetched = super::runtime().block_on(fetch_credentials(config));
    let failed: Vec<String> = fetched
        .iter()
        .filter_map(|(whose, why)| Some(format!("{whose}: {}", escape::text(why.as_ref()?))))
        .collect();
    match &failed[..] {
        [] => {
            let whose = fetched.iter().map(|(whose, _)| whose.as_str()).collect::<Vec<_>>();
            print::report(match &whose[..] {
                [] => "no credential of a cloud is configured".to_owned(),
                whose => format!("fetched: {}", whose.join(", ")),
            });
            Ok(())
        }
        failed => Err(Exit::failed(failed.join("\n"))),
    }
}
