//! A part of a page that a task writes.

use std::{env, fs, path::Path};

use crate::workspace::read;

/// The part between two lines of a page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Page {
    pub(crate) path: &'static str,
    pub(crate) begin: &'static str,
    pub(crate) end: &'static str,
    /// What writes it, with `UPDATE_DOCS=1`.
    pub(crate) command: &'static str,
}

impl Page {
    /// Compares what is there with `written`, or writes it with `UPDATE_DOCS=1`, unless they are the same.
    pub(crate) fn keep(
        &self,
        root: &Path,
        written: &str,
        same: impl FnOnce(&str, &str) -> bool,
    ) -> Result<(), String> {
        let Self { path: name, begin, end, command } = self;
        let path = root.join(name);
        let page = read(&path)?;
        let cut = || {
            let (head, rest) = page.split_once(begin)?;
            let (there, tail) = rest.split_once(end)?;
            Some((head, there, tail))
        };
        let (head, there, tail) =
            cut().ok_or_else(|| format!("{name} lacks the line {begin:?} or {end:?}"))?;
        if same(there, written) {
            return Ok(());
        }
        if env::var_os("UPDATE_DOCS").is_some_and(|value| value == "1") {
            println!("== {name} is written");
            return fs::write(&path, [head, begin, written, end, tail].concat())
                .map_err(|error| format!("{}: {error}", path.display()));
        }
        Err(format!("{name} has something else than the table above; UPDATE_DOCS=1 {command}"))
    }
}
