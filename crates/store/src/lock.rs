//! One writer a folder.

use std::{
    fs::{self, File, TryLockError},
    io::{self, Write},
    path::{Path, PathBuf},
    process,
};

use crate::{StoreError, replace::sync_folder};

/// The name of the file that is locked. It has the process that holds the lock, for people; only the lock itself counts.
const NAME: &str = ".lock";

/// A folder that no other process writes to while this value exists.
///
/// The lock is the operating system's (`flock` where there is one): it ends with the process, however that ends, so none is ever
/// left behind. It is advisory: programs that do not ask for it are not hindered.
#[derive(Debug)]
#[must_use = "the folder is unlocked when the lock is dropped"]
pub struct FolderLock {
    file: File,
    folder: PathBuf,
}

impl FolderLock {
    /// Locks this folder, which is made if it does not exist. Does not wait.
    ///
    /// # Errors
    ///
    /// [`StoreError::is_locked`] when somebody else holds it; whatever the operating system says of the folder.
    pub fn acquire(folder: impl AsRef<Path>) -> Result<Self, StoreError> {
        let folder = folder.as_ref();
        if !folder.is_dir() {
            fs::create_dir_all(folder).map_err(StoreError::of("make the folder", folder))?;
            sync_folder(folder)?;
        }
        let path = folder.join(NAME);
        let mut file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(StoreError::of("open the lock", &path))?;
        file.try_lock().map_err(|error| {
            let error = match error {
                TryLockError::WouldBlock => io::Error::new(
                    io::ErrorKind::WouldBlock,
                    "another process writes to this folder",
                ),
                TryLockError::Error(error) => error,
            };
            StoreError::new("lock", &path, error)
        })?;
        // For people alone, so that a full disk is no reason not to start.
        let _ = file.set_len(0).and_then(|()| writeln!(file, "{}", process::id()));
        Ok(Self { file, folder: folder.to_owned() })
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Drop for FolderLock {
    fn drop(&mut self) {
        // A child process that is just being started may still have the descriptor: closing ours would not unlock it.
        let _ = self.file.unlock();
    }
}
