//! What commands on a folder of files have in common. Texts in it are others': all of it is shown escaped.

use std::{error::Error, fmt::Write as _, path::Path, time::UNIX_EPOCH};

use serde::Serialize;

use super::{Exit, print};
use crate::escape;

/// The last second of the year 9999, which RFC 3339 can write, in milliseconds since 1970.
const LAST_MS: u64 = 253_402_300_799_000;

/// That there is such a folder. The crates take a missing one for an empty one, and here it is mostly misspelt.
pub(super) fn check(folder: &Path) -> Result<(), Exit> {
    match folder.metadata() {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => Err(Exit::usage(format_args!("{}: is no folder", name(folder)))),
        Err(error) => Err(Exit::usage(format_args!("{}: can not be read: {error}", name(folder)))),
    }
}

/// A folder's name, to be shown.
pub(super) fn name(folder: &Path) -> String {
    escape::text(&folder.to_string_lossy()).into_owned()
}

/// `error` with its causes, in a line.
pub(super) fn failed(error: &dyn Error) -> Exit {
    let mut message = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        // Some have the text of their cause in their own.
        if !message.contains(&text) {
            message = format!("{message}: {text}");
        }
        cause = error.source();
    }
    Exit::failed(escape::text(&message))
}

/// Prints `value` as JSON.
pub(super) fn print_json(value: &impl Serialize) -> Result<(), Exit> {
    let text = serde_json::to_string_pretty(value).map_err(Exit::failed)?;
    Ok(print::result(escape::json(&text))?)
}

/// Prints `rows` below each other, in columns of equal width.
pub(super) fn print_rows<const N: usize>(rows: &[[String; N]]) -> Result<(), Exit> {
    let rows: Vec<_> =
        rows.iter().map(|row| row.each_ref().map(|cell| escape::text(cell))).collect();
    let mut widths = [0; N];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut out = String::new();
    for row in &rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(widths) {
            // Writing to a string does not fail.
            let _ = write!(line, "{cell:width$}  ");
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    Ok(print::result(out.trim_end_matches('\n'))?)
}

/// Adds the lines of `text` to `out`, each behind `indent`: no line of it looks like one of ours.
pub(super) fn push_text(out: &mut String, indent: &str, text: &str) {
    for line in text.lines() {
        out.push_str(indent);
        out.push_str(&escape::text(line));
        out.push('\n');
    }
}

/// A time in milliseconds since 1970, as RFC 3339.
pub(super) fn time(ms: u64) -> String {
    if ms > LAST_MS {
        return "never".to_owned();
    }
    let time = UNIX_EPOCH + std::time::Duration::from_millis(ms);
    humantime::format_rfc3339_seconds(time).to_string()
}
