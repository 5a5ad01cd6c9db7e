//! `steadfast classify`: what provider errors mean.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Write},
    path::Path,
};

use super::{ClassifyArgs, Exit, print};

pub(super) fn run(args: &ClassifyArgs) -> Result<(), Exit> {
    let name = args.file.as_deref().map_or("standard input".into(), Path::to_string_lossy);
    let input: Box<dyn BufRead> = match &args.file {
        None => Box::new(io::stdin().lock()),
        Some(path) => Box::new(BufReader::new(
            File::open(path)
                .map_err(|error| Exit::usage(format_args!("{name} can not be read: {error}")))?,
        )),
    };
    match lines(input, &mut io::stdout().lock(), &name)? {
        0 => Ok(()),
        wrong => Err(Exit::failed(format_args!("{name}: lines that can not be read: {wrong}"))),
    }
}

/// A verdict for each line; how many lines could not be read. A line that is wrong is named on
/// standard error and answered with an `error` object, so that lines in and lines out correspond.
fn lines(input: impl BufRead, out: &mut impl Write, name: &str) -> io::Result<usize> {
    let mut wrong = 0;
    for (index, line) in input.split(b'\n').enumerate() {
        let line = line?;
        let text = String::from_utf8_lossy(&line);
        if text.trim().is_empty() {
            continue;
        }
        match steadfast::classify::json::line(&text) {
            Ok(verdict) => writeln!(out, "{verdict}")?,
            Err(error) => {
                wrong += 1;
                print::report(format_args!("steadfast: {name}:{}: {error}", index + 1));
                writeln!(out, "{}", serde_json::json!({ "error": error.to_string() }))?;
            }
        }
    }
    Ok(wrong)
}
