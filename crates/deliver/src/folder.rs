//! The folder of ledger and letters.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use steadfast_store::{FolderLock, StoreError, remove_leftovers};

/// A folder with the files of a ledger and of dead letters, locked against every other process.
///
/// It is unlocked when the last clone is gone: those of a ledger and of letters, once they are closed.
#[derive(Clone, Debug)]
pub struct DeliveryFolder(Arc<FolderLock>);

impl DeliveryFolder {
    /// Locks this folder, which is made if it does not exist, and removes what a killed process left half made.
    ///
    /// # Errors
    ///
    /// [`StoreError::is_locked`] when another process delivers from it; the operating system's error.
    pub async fn open(path: impl Into<PathBuf>) -> Result<Self, DeliverError> {
        let path = path.into();
        blocking(move || Self::open_blocking(&path)).await
    }

    pub(crate) fn open_blocking(path: &Path) -> Result<Self, StoreError> {
        let lock = FolderLock::acquire(path)?;
        remove_leftovers(path)?;
        Ok(Self(Arc::new(lock)))
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        self.0.folder()
    }
}

/// Why files of deliveries could not be opened or changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeliverError {
    /// A policy is invalid.
    #[error(transparent)]
    Policy(#[from] crate::PolicyError),
    /// Another process holds the folder: it delivers, or is asked to.
    #[error("another process delivers from this folder; ask that one, or stop it first")]
    Locked(#[source] StoreError),
    /// A file could not be read or written.
    #[error(transparent)]
    Store(StoreError),
    /// The queue is closed, or its runtime is shutting down.
    #[error("the queue of dead letters is closed")]
    Closed,
    /// The message is no letter: it has ended in a record at once.
    #[error("the message is not kept for later ({0}); its record says why")]
    Ended(crate::LetterEnd),
    /// There is no letter of this key, or not one that this can be done with.
    #[error("there is no dead letter `{0}` that this can be done with now")]
    NoLetter(Box<str>),
}

impl From<StoreError> for DeliverError {
    fn from(error: StoreError) -> Self {
        if error.is_locked() { Self::Locked(error) } else { Self::Store(error) }
    }
}

/// Runs work on files beside the runtime's workers.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, DeliverError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => Ok(done?),
        Err(_) => Err(DeliverError::Closed),
    }
}

/// A file that another process may be writing: one that does not exist is empty.
pub(crate) fn is_missing(error: &StoreError) -> bool {
    error.kind() == io::ErrorKind::NotFound
}
