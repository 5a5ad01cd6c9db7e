//! `steadfast check`: what a configuration comes to.

use std::process::ExitCode;

use super::{CheckArgs, FAILED, USAGE, fail};
use crate::{
    config::{Config, ConfigErrors, schema},
    stack::{Gateway, Report},
};

pub(crate) fn run(args: &CheckArgs) -> ExitCode {
    if args.schema {
        println!("{:#}", schema());
        return ExitCode::SUCCESS;
    }
    let report = match report(args) {
        Ok(report) => report,
        Err(errors) => return fail(USAGE, errors),
    };
    if args.json {
        match serde_json::to_string_pretty(&report) {
            Ok(text) => println!("{text}"),
            Err(error) => return fail(FAILED, error),
        }
    } else {
        print!("{report}");
    }
    ExitCode::SUCCESS
}

fn report(args: &CheckArgs) -> Result<Report, ConfigErrors> {
    let (config, source) = Config::load(args.config.as_deref())?;
    let report = Report::of(&config, &source)?;
    // Credentials too: a variable that is not set is found now and not at night.
    super::runtime().block_on(async { Gateway::connect(&config, &source) })?;
    Ok(report)
}
