//! A file that is replaced as a whole.

use std::{
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

use crate::StoreError;

/// What the name of a temporary file ends with.
const TEMPORARY: &str = ".tmp";

/// Replaces the file with these bytes: whoever opens it, also after a crash, finds the old bytes or the new ones, whole.
///
/// The bytes are written to a new file in the same folder, `fsync`ed, renamed, and the folder is `fsync`ed. The file's owner alone can
/// read it, unless a file exists there, whose permissions are kept.
///
/// # Errors
///
/// The operating system's error. No temporary file is left, and the file is as it was; where the error is that its folder could not be
/// synced, it has the new bytes, which a power cut may undo.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    let mut new = Temporary::beside(path)?;
    new.write(|file| file.write_all(bytes))?;
    new.rename()?;
    sync_folder(path)
}

/// A file that will have another's name. Dropped before, it is removed.
pub(crate) struct Temporary<'a> {
    file: File,
    name: TemporaryName,
    target: &'a Path,
}

/// The name of a temporary file. Dropped, there is no such file any more.
struct TemporaryName(PathBuf);

impl<'a> Temporary<'a> {
    /// An empty file in the folder of `target`.
    pub(crate) fn beside(target: &'a Path) -> Result<Self, StoreError> {
        let path = Self::name(target);
        let mut options = File::options();
        // As a log is opened, which the file may be from then on.
        options.read(true).append(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = options.open(&path).map_err(StoreError::of("write", target))?;
        Ok(Self { file, name: TemporaryName(path), target })
    }

    /// A name that no file has.
    pub(crate) fn name(target: &Path) -> PathBuf {
        let name = format!("{}{:016x}{TEMPORARY}", beginning(target), fastrand::u64(..));
        folder(target).join(name)
    }

    /// Writes it, and waits until it is on the disk.
    pub(crate) fn write(
        &mut self,
        write: impl FnOnce(&mut BufWriter<&File>) -> io::Result<()>,
    ) -> Result<(), StoreError> {
        let mut writer = BufWriter::new(&self.file);
        write(&mut writer)
            .and_then(|()| writer.flush())
            .and_then(|()| match fs::metadata(self.target) {
                Ok(old) => self.file.set_permissions(old.permissions()),
                Err(_) => Ok(()),
            })
            .and_then(|()| self.file.sync_all())
            .map_err(StoreError::of("write", self.target))
    }

    /// Its length, in bytes.
    pub(crate) fn len(&self) -> Result<u64, StoreError> {
        let metadata = self.file.metadata().map_err(StoreError::of("read", self.target))?;
        Ok(metadata.len())
    }

    /// Gives it the name, and returns the file. Only [`sync_folder`] makes that last.
    pub(crate) fn rename(self) -> Result<File, StoreError> {
        fs::rename(&self.name.0, self.target).map_err(StoreError::of("replace", self.target))?;
        Ok(self.file)
    }
}

impl Drop for TemporaryName {
    fn drop(&mut self) {
        // There is none after a rename. What can not be removed now is removed by `remove_leftovers`.
        let _ = fs::remove_file(&self.0);
    }
}

/// Removes the temporary files that a killed process left in this folder, and returns how many there were.
///
/// Only who holds the folder's [`FolderLock`](crate::FolderLock) may do this: the files of a living writer are the same.
///
/// # Errors
///
/// The folder can not be read. A file that can not be removed is left.
pub fn remove_leftovers(folder: &Path) -> Result<usize, StoreError> {
    remove_temporary(folder, ".")
}

/// Removes the temporary files that a killed process left beside this file when it [replaced](replace) it, and returns how many there
/// were. There must be no other writer of the file.
///
/// # Errors
///
/// As [`remove_leftovers`].
pub fn remove_leftovers_of(path: &Path) -> Result<usize, StoreError> {
    remove_temporary(folder(path), &beginning(path))
}

fn remove_temporary(folder: &Path, beginning: &str) -> Result<usize, StoreError> {
    let entries = fs::read_dir(folder).map_err(StoreError::of("read the folder", folder))?;
    let is_ours = |entry: &fs::DirEntry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        name.starts_with(beginning) && name.ends_with(TEMPORARY)
    };
    let ours = entries.filter_map(Result::ok).filter(is_ours);
    Ok(ours.filter(|entry| fs::remove_file(entry.path()).is_ok()).count())
}

/// What the names of this file's temporary files begin with.
fn beginning(path: &Path) -> String {
    format!(".{}.", path.file_name().unwrap_or_default().to_string_lossy())
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Makes a change of names in the folder of this file last.
#[cfg(unix)]
pub(crate) fn sync_folder(path: &Path) -> Result<(), StoreError> {
    let folder = folder(path);
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(StoreError::of("sync the folder", folder))
}

/// Elsewhere a folder can not be opened, and a rename lasts by itself or not at all.
#[cfg(not(unix))]
pub(crate) fn sync_folder(_path: &Path) -> Result<(), StoreError> {
    Ok(())
}
