//! `steadfast classify`: what provider errors mean.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Write},
    process::ExitCode,
};

use super::{ClassifyArgs, FAILED, USAGE, fail};

pub(crate) fn run(args: &ClassifyArgs) -> ExitCode {
    let input: Box<dyn BufRead> = match &args.file {
        None => Box::new(io::stdin().lock()),
        Some(path) => match File::open(path) {
            Ok(file) => Box::new(BufReader::new(file)),
            Err(error) => {
                return fail(USAGE, format_args!("{} can not be read: {error}", path.display()));
            }
        },
    };
    let name =
        args.file.as_ref().map_or("standard input".into(), |path| path.display().to_string());
    match lines(input, &mut io::stdout().lock(), &name) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(FAILED),
        // Whoever reads has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => fail(FAILED, format_args!("{name}: {error}")),
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
                eprintln!("steadfast: {name}:{}: {error}", index + 1);
                writeln!(out, "{}", serde_json::json!({ "error": error.to_string() }))?;
            }
        }
    }
    Ok(wrong)
}
