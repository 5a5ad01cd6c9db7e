//! The data files beside the crate: one entry a line, columns separated by `|`.
//!
//! `docs/classify.md` says how to add a line, the head of each file what its columns are. The
//! files are built into the crate and read once; tests read every one of them, so an error here
//! does not leave the workspace.

use std::{collections::HashMap, hash::Hash, str::FromStr};

use aho_corasick::AhoCorasick;
use smallvec::SmallVec;
use steadfast_core::Reason;

/// A data file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Table {
    pub(crate) file: &'static str,
    pub(crate) text: &'static str,
}

/// The data file of that name.
macro_rules! table {
    ($file:literal) => {
        $crate::engine::table::Table {
            file: $file,
            text: include_str!(concat!("../../data/", $file)),
        }
    };
}
pub(crate) use table;

/// A line that is not as the head of its file says.
#[derive(Debug, thiserror::Error)]
#[error("data/{file}:{line}: {what}")]
pub(crate) struct TableError {
    file: &'static str,
    line: usize,
    what: String,
}

/// One entry.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    file: &'static str,
    line: usize,
    columns: SmallVec<[&'static str; 8]>,
}

impl Table {
    /// The entries, of which each has at least `least` and at most `most` columns.
    pub(crate) fn rows(self, least: usize, most: usize) -> Result<Vec<Row>, TableError> {
        let mut rows = Vec::new();
        for (number, line) in self.text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let columns: SmallVec<_> = line.split('|').map(str::trim).collect();
            let row = Row { file: self.file, line: number + 1, columns };
            if !(least..=most).contains(&row.columns.len()) {
                let count = row.columns.len();
                return Err(row.error(format!("{count} columns instead of {least} to {most}")));
            }
            if let Some(column) = (0..least).find(|column| row.text(*column).is_empty()) {
                return Err(row.error(format!("column {} is empty", column + 1)));
            }
            rows.push(row);
        }
        Ok(rows)
    }
}

impl Row {
    /// What is wrong with this line.
    pub(crate) fn error(&self, what: impl Into<String>) -> TableError {
        TableError { file: self.file, line: self.line, what: what.into() }
    }

    /// A column; empty when the line ends before it.
    pub(crate) fn text(&self, column: usize) -> &'static str {
        self.columns.get(column).copied().unwrap_or_default()
    }

    /// A column that may be in double quotes, which keep the spaces inside them.
    pub(crate) fn phrase(&self, column: usize) -> &'static str {
        let text = self.text(column);
        text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text)
    }

    /// A column that has to be one of `names`.
    pub(crate) fn one_of<T: Copy>(
        &self,
        column: usize,
        names: &[(&str, T)],
    ) -> Result<T, TableError> {
        let text = self.text(column);
        names.iter().find(|(name, _)| *name == text).map(|(_, value)| *value).ok_or_else(|| {
            let known: Vec<&str> = names.iter().map(|(name, _)| *name).collect();
            self.error(format!("`{text}` is none of: {}", known.join(", ")))
        })
    }

    pub(crate) fn number<T: FromStr>(&self, column: usize) -> Result<T, TableError> {
        let text = self.text(column);
        text.parse().map_err(|_| self.error(format!("`{text}` is no number that fits here")))
    }

    /// A reason that a provider's error can have.
    pub(crate) fn reason(&self, column: usize) -> Result<Reason, TableError> {
        let text = self.text(column);
        let reason = text.parse().ok().filter(|reason: &Reason| {
            !reason.is_refusal() && !matches!(reason, Reason::Unknown | Reason::Safety)
        });
        reason.ok_or_else(|| self.error(format!("`{text}` is no reason")))
    }

    /// Puts an entry into a map that has none of that key.
    pub(crate) fn insert<K, V>(
        &self,
        map: &mut HashMap<K, V>,
        key: K,
        value: V,
    ) -> Result<(), TableError>
    where
        K: Eq + Hash,
    {
        match map.insert(key, value) {
            None => Ok(()),
            Some(_) => Err(self.error(format!("`{}` is listed twice", self.text(0)))),
        }
    }
}

/// What was read of a file that is built into the crate.
pub(crate) fn built_in<T>(read: Result<T, TableError>) -> T {
    read.unwrap_or_else(|error| panic!("{error}; a test of the crate finds this first"))
}

/// What finds all of `patterns` in one walk over a text.
pub(crate) fn automaton<P: AsRef<[u8]>>(patterns: impl IntoIterator<Item = P>) -> AhoCorasick {
    AhoCorasick::new(patterns)
        .unwrap_or_else(|error| panic!("{error}: the tables are far below what this allows"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(text: &'static str) -> Result<Vec<Row>, TableError> {
        Table { file: "x.txt", text }.rows(2, 3)
    }

    #[test]
    fn comments_and_empty_lines_are_no_entries() {
        let rows = rows("# a | b\n\n x | y \n\"z \" | w | 7\n").unwrap();
        assert_eq!(rows.len(), 2);
        assert_eq!((rows[0].text(0), rows[0].text(1), rows[0].text(2)), ("x", "y", ""));
        assert_eq!((rows[1].phrase(0), rows[1].number::<u16>(2).unwrap()), ("z ", 7));
    }

    #[test]
    fn errors_name_file_line_and_what_is_wrong() {
        for (text, error) in [
            ("# x\na | b\na\n", "data/x.txt:3: 1 columns instead of 2 to 3"),
            ("a | b | c | d", "data/x.txt:1: 4 columns instead of 2 to 3"),
            ("\n| b", "data/x.txt:2: column 1 is empty"),
        ] {
            assert_eq!(rows(text).unwrap_err().to_string(), error);
        }
        let row = rows("a | circuit_open | b").unwrap().remove(0);
        for (error, what) in [
            (row.reason(0).unwrap_err(), "`a` is no reason"),
            (row.reason(1).unwrap_err(), "`circuit_open` is no reason"),
            (row.number::<u16>(2).unwrap_err(), "`b` is no number that fits here"),
            (row.one_of(2, &[("c", 1), ("d", 2)]).unwrap_err(), "`b` is none of: c, d"),
        ] {
            assert_eq!(error.to_string(), format!("data/x.txt:1: {what}"));
        }
        let mut map = HashMap::new();
        row.insert(&mut map, "a", 1).unwrap();
        let twice = row.insert(&mut map, "a", 2).unwrap_err();
        assert_eq!(twice.to_string(), "data/x.txt:1: `a` is listed twice");
    }
}
