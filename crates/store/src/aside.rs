//! What can not be read is kept for people.

use std::{
    ffi::OsString,
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    time::SystemTime,
};

use steadfast_core::time::wall;

use crate::{StoreError, replace::sync_folder};

/// `path` with more at its end: `log.jsonl.bad`.
pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    PathBuf::from(name)
}

/// Appends these lines to the file for bad lines, and waits until they are on the disk.
pub(crate) fn keep_lines(path: &Path, lines: &[Vec<u8>]) -> Result<(), StoreError> {
    let path = with_suffix(path, ".bad");
    let mut options = File::options();
    options.append(true).create(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut bytes = lines.join(&b'\n');
    bytes.push(b'\n');
    options
        .open(&path)
        .and_then(|mut file| file.write_all(&bytes).and_then(|()| file.sync_all()))
        .map_err(StoreError::of("set lines aside in", &path))?;
    sync_folder(&path)
}

/// Renames a file that can not be read, with the date in its new name: `context.jsonl.bad-2026-05-04T03-02-01Z`.
pub(crate) fn keep_file(path: &Path) -> Result<PathBuf, StoreError> {
    let aside = free_name(path, wall());
    fs::rename(path, &aside).map_err(StoreError::of("set aside", path))?;
    sync_folder(path)?;
    Ok(aside)
}

/// A name that no file has.
fn free_name(path: &Path, now: SystemTime) -> PathBuf {
    let date = humantime::format_rfc3339_seconds(now).to_string().replace(':', "-");
    let numbers = std::iter::once(String::new()).chain((2u32..).map(|n| format!("-{n}")));
    let names = numbers.map(|number| with_suffix(path, &format!(".bad-{date}{number}")));
    names.into_iter().find(|name| !name.exists()).unwrap_or_else(|| with_suffix(path, ".bad"))
}
