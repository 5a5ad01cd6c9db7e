//! What scripts print.

use std::fmt::Write as _;

/// One line of a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// The version of what it runs.
    Version(String),
    /// A check that held.
    Ok { feature: String, check: String },
    /// A check that held, but not at the first request, and why that is known.
    Again { feature: String, check: String, why: String },
    /// A check that did not, and why.
    Fail { feature: String, check: String, why: String },
    /// What can not be done, and why that is not the gateway's doing.
    None { feature: String, why: String },
    /// Something for the reader.
    Note(String),
}

impl Line {
    /// A failure of the run itself.
    pub(crate) fn broken(why: String) -> Self {
        Line::Fail { feature: "run".to_owned(), check: "the script runs".to_owned(), why }
    }

    /// What it is about, if it is about a feature.
    pub(crate) fn feature(&self) -> Option<&str> {
        match self {
            Line::Ok { feature, .. }
            | Line::Again { feature, .. }
            | Line::Fail { feature, .. }
            | Line::None { feature, .. } => Some(feature),
            Line::Version(_) | Line::Note(_) => None,
        }
    }
}

/// The lines of a script's output. What is no such line is a note.
pub(crate) fn read(output: &str) -> Vec<Line> {
    let line = |text: &str| {
        let fields: Vec<_> = text.split('\t').map(str::to_owned).collect();
        match (fields[0].as_str(), &fields[1..]) {
            ("version", [version]) => Line::Version(version.clone()),
            ("ok", [feature, check]) => Line::Ok { feature: feature.clone(), check: check.clone() },
            ("again", [feature, check, why]) => {
                Line::Again { feature: feature.clone(), check: check.clone(), why: why.clone() }
            }
            ("fail", [feature, check, why]) => {
                Line::Fail { feature: feature.clone(), check: check.clone(), why: why.clone() }
            }
            ("none", [feature, _, why]) => {
                Line::None { feature: feature.clone(), why: why.clone() }
            }
            _ => Line::Note(text.to_owned()),
        }
    };
    output.lines().map(line).collect()
}

/// The version that they name.
pub(crate) fn version(lines: &[Line]) -> &str {
    let version = lines.iter().find_map(|line| match line {
        Line::Version(version) => Some(version.as_str()),
        _ => None,
    });
    version.unwrap_or("?")
}

/// Adds them to `text`, for a person.
pub(crate) fn show(text: &mut String, lines: &[Line]) {
    for line in lines {
        let _ = match line {
            Line::Version(version) => writeln!(text, "   version {version}"),
            Line::Ok { feature, check } => writeln!(text, "   ok    {feature}: {check}"),
            Line::Again { feature, check, why } => {
                writeln!(text, "   again {feature}: {check}\n         {why}")
            }
            Line::Fail { feature, check, why } => {
                writeln!(text, "   FAIL  {feature}: {check}\n         {why}")
            }
            Line::None { feature, why } => writeln!(text, "   none  {feature}: {why}"),
            Line::Note(note) => writeln!(text, "         {note}"),
        };
    }
}
