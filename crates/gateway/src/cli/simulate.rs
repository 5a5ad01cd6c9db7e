//! `steadfast simulate`: a configuration in a world.

use std::{fmt::Write as _, fs, path::Path, time::Duration};

use serde_json::{Value, json};

use super::{Exit, SimulateArgs, print, why};
use crate::{
    config::{Config, Source},
    simulate::{
        Contender, Figures, Simulation, SimulationOptions, Variation, World, read_recording,
    },
};

/// What `serve` finds with three keys in the environment.
const DEFAULT: &str = include_str!("simulate.toml");

pub(super) fn run(args: &SimulateArgs) -> Result<(), Exit> {
    let world = World::find(&args.world).map_err(Exit::usage)?;
    let options = options(args)?;
    let source = match &args.config {
        Some(file) => Source::file(file)?,
        None => Source::text(DEFAULT),
    };
    let simulation = |source: &Source| -> Result<Simulation, Exit> {
        let config = Config::read(source)?;
        Ok(Simulation::new(config, source.clone(), world.clone(), options.clone())?)
    };
    if let Some(variation) = &args.vary {
        let variation: Variation = variation.parse().map_err(Exit::usage)?;
        let mut all = Vec::new();
        for (name, source) in variation.of(&source).map_err(Exit::usage)? {
            let mut figures = simulation(&source)?.run(Contender::Steadfast)?;
            figures.name = name;
            all.push(figures);
        }
        return Ok(print::result(varied(args, &options, &variation, &all).trim_end())?);
    }
    let simulation = simulation(&source)?;
    let all = simulation.run_all()?;
    // Before anything is printed, whose reader may have seen enough.
    for (file, text) in [
        (&args.html, Simulation::html as fn(&Simulation, &[Figures]) -> String),
        (&args.svg, Simulation::svg),
    ] {
        if let Some(file) = file {
            write(file, &text(&simulation, &all))?;
        }
    }
    let shown =
        if args.json { in_json(args, &options, &all).to_string() } else { simulation.text(&all) };
    print::result(shown.trim_end())?;
    asserted(args, &all[0])
}

fn write(file: &Path, text: &str) -> Result<(), Exit> {
    fs::write(file, text).map_err(|error| {
        Exit::failed(format_args!("{} can not be written: {error}", file.display()))
    })
}

/// # Errors
///
/// When something that was asserted does not hold.
fn asserted(args: &SimulateArgs, figures: &Figures) -> Result<(), Exit> {
    let violations = args.asserts.iter().filter_map(|assertion| assertion.check(figures).err());
    let violations: Vec<_> = violations.collect();
    for violation in &violations {
        print::report(violation);
        if let Some(call) = &violation.call {
            print::report(format_args!(
                "a call that shows it, by a clock that begins with the simulation:\n{}",
                why::story_text(&call.whole())
            ));
        }
    }
    match violations.len() {
        0 => Ok(()),
        broken => Err(Exit::failed(format_args!(
            "{broken} of {} assertions do not hold",
            args.asserts.len()
        ))),
    }
}

fn options(args: &SimulateArgs) -> Result<SimulationOptions, Exit> {
    let options = SimulationOptions { seed: args.seed, ..SimulationOptions::default() };
    if let Some(file) = &args.replay {
        return Ok(options.replaying(read_recording(file).map_err(Exit::usage)?));
    }
    let length = Duration::try_from_secs_f64(args.hours * 3_600.0).unwrap_or_default();
    if !(1..=366 * 24 * 3_600).contains(&length.as_secs()) {
        return Err(Exit::usage(
            "--hours: from 0.0003, which is a second, to 8784, which is a year",
        ));
    }
    if !(args.rate > 0.0 && args.rate <= 100_000.0) {
        return Err(Exit::usage("--rate: more than 0 and at most 100000 calls a second"));
    }
    Ok(SimulationOptions { length, rate: args.rate, ..options })
}

fn in_json(args: &SimulateArgs, options: &SimulationOptions, all: &[Figures]) -> Value {
    json!({
        "world": args.world,
        "hours": options.length.as_secs_f64() / 3_600.0,
        "rate": options.rate,
        "seed": options.seed,
        "runs": all.iter().map(Figures::json).collect::<Vec<_>>(),
    })
}

/// A row a value.
fn varied(
    args: &SimulateArgs,
    options: &SimulationOptions,
    variation: &Variation,
    all: &[Figures],
) -> String {
    if args.json {
        return in_json(args, options, all).to_string();
    }
    let seconds = |ms: Option<u32>| f64::from(ms.unwrap_or(0)) / 1e3;
    let width = all.iter().map(|one| one.name.len()).max().unwrap_or(0);
    let mut out = format!(
        "{:width$}  {:>11} {:>8} {:>12} {:>12} {:>9} {:>11}\n",
        variation, "answered", "lost", "p99 first", "p99 added", "attempts", "cost"
    );
    for one in all {
        let _ = writeln!(
            out,
            "{:width$}  {:>9.3} % {:>8} {:>10.2} s {:>10.2} s {:>9.3} {:>11}",
            one.name,
            100.0 * one.answered_share(),
            one.lost_calls(),
            seconds(one.first.quantile(0.99)),
            seconds(one.added.quantile(0.99)),
            one.attempts_a_call(),
            format!("${:.2}", one.dollars()),
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_what_serve_finds_with_three_keys() {
        let found = Config::from_keys(|_| true).unwrap();
        let read = Source::text(DEFAULT).parse().unwrap();
        assert_eq!(format!("{read:?}"), format!("{found:?}"));
    }
}
