//! What can go wrong with a file.

use std::{
    io,
    path::{Path, PathBuf},
};

use thiserror::Error;

/// A file that could not be read or written. It is as it was before, apart from what the file's own documentation says.
#[derive(Debug, Error)]
#[error("could not {action} `{}`: {error}", path.display())]
pub struct StoreError {
    action: &'static str,
    path: PathBuf,
    error: io::Error,
}

impl StoreError {
    pub(crate) fn new(action: &'static str, path: &Path, error: io::Error) -> Self {
        Self { action, path: path.to_owned(), error }
    }

    /// For `map_err`.
    pub(crate) fn of(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::new(action, path, error)
    }

    /// The file or folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The kind of the operating system's error.
    pub fn kind(&self) -> io::ErrorKind {
        self.error.kind()
    }

    /// Whether there is no space left: on the disk, in the quota, or below the limit of a file's size. The same call succeeds
    /// once there is.
    pub fn is_full(&self) -> bool {
        matches!(
            self.kind(),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
        )
    }

    /// Whether the process may not do this, or the file system is mounted read-only.
    pub fn is_denied(&self) -> bool {
        matches!(self.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
    }

    /// Whether another process, or another [`FolderLock`](crate::FolderLock) of this one, holds the folder.
    pub fn is_locked(&self) -> bool {
        self.kind() == io::ErrorKind::WouldBlock
    }
}
