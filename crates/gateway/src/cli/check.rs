//! `steadfast check`: what a configuration comes to.

use super::{CheckArgs, Exit, print};
use crate::{
    config::{Config, ConfigErrors, schema},
    server::usable_state_file,
    stack::{Gateway, Report},
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
    if args.json {
        print::result(serde_json::to_string_pretty(&report).map_err(Exit::failed)?)?;
    } else {
        print::result(report.to_string().trim_end())?;
    }
    Ok(())
}
