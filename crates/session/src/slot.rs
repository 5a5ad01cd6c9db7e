//! One open thread, shared by its callers.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};
use tokio::{sync::Semaphore, time::Instant};

use crate::{
    SaveError,
    disk::{Disk, OpenError},
    memory::Memory,
};

/// One thread. Its memory is changed under a short lock by whoever has the permit; its files are used under a lock of their own, in
/// blocking tasks alone, and follow the memory. So a caller that goes away in the middle of a save leaves nothing half done: the
/// save goes on without it.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) thread: Arc<str>,
    /// Of whom runs a turn.
    pub(crate) permit: Arc<Semaphore>,
    /// How many wait for the permit.
    pub(crate) waiting: AtomicUsize,
    /// `None` until it is opened, and when it was closed.
    memory: Mutex<Option<Memory>>,
    /// Locked before `memory`.
    disk: Mutex<Disk>,
}

/// What a save did.
#[derive(Debug, Default)]
pub(crate) struct Saved {
    pub(crate) error: Option<SaveError>,
    /// Whether a save before had failed, and this one wrote what that could not.
    pub(crate) late: bool,
    /// Entries that are not in the log.
    pub(crate) waiting: usize,
    /// Entries that never will be.
    pub(crate) dropped: usize,
    /// A crash loses nothing.
    pub(crate) durable: bool,
}

impl Slot {
    pub(crate) fn new(root: &Path, thread: Arc<str>, keys: usize) -> Self {
        Self {
            permit: Arc::new(Semaphore::new(1)),
            waiting: AtomicUsize::new(0),
            memory: Mutex::new(None),
            disk: Mutex::new(Disk::new(root, &thread, keys)),
            thread,
        }
    }

    /// The state, when it is open.
    pub(crate) fn memory(&self) -> Option<MappedMutexGuard<'_, Memory>> {
        MutexGuard::try_map(self.memory.lock(), Option::as_mut).ok()
    }

    /// Whether it is open.
    pub(crate) fn is_open(&self) -> bool {
        self.memory.lock().is_some()
    }

    /// Whether it has what a crash would lose.
    pub(crate) fn is_unsaved(&self) -> bool {
        self.memory.lock().as_ref().is_some_and(|memory| !memory.is_durable())
    }

    /// When it was used last; `None` when it is not open.
    pub(crate) fn used(&self) -> Option<Instant> {
        self.memory.lock().as_ref().map(|memory| memory.used)
    }

    /// Opens it, unless it is open. Blocks. Returns whether it was opened just now.
    pub(crate) fn open(&self, now: Instant) -> Result<bool, OpenError> {
        let mut disk = self.disk.lock();
        if self.is_open() {
            return Ok(false);
        }
        let found = disk.open().inspect_err(|_| disk.close())?;
        *self.memory.lock() = Some(Memory::of(found, now));
        Ok(true)
    }

    /// Writes what is not on the disk. Blocks.
    pub(crate) fn save(&self) -> Saved {
        let mut disk = self.disk.lock();
        let Some(unsaved) = self.memory().and_then(|memory| memory.to_save()) else {
            return Saved { durable: true, ..Saved::default() };
        };
        // The log first: with it alone no turn is lost. When it can not be written, the context may be, with the history at least.
        let appended = match unsaved.entries.as_slice() {
            [] => Ok(()),
            entries => disk.append(entries),
        };
        if let Some(mut memory) = self.memory() {
            match appended {
                Ok(()) => memory.appended(unsaved.entries.len()),
                Err(_) => memory.not_appended(),
            }
        }
        let replaced = match unsaved.context {
            true => disk.save(unsaved.head, &unsaved.history),
            false => Ok(()),
        };
        let Some(mut memory) = self.memory() else { return Saved::default() };
        if replaced.is_ok() {
            memory.saved(&unsaved);
        }
        let error = appended.and(replaced).err();
        let was_failing = std::mem::replace(&mut memory.failing, error.is_some());
        Saved {
            late: was_failing && error.is_none(),
            waiting: memory.unsaved.len(),
            dropped: memory.dropped,
            durable: memory.is_durable(),
            error,
        }
    }

    /// Uses the files, when nobody else does. Blocks.
    pub(crate) fn with_disk<T>(&self, work: impl FnOnce(&mut Disk) -> T) -> T {
        work(&mut self.disk.lock())
    }

    /// Closes it, unless it has what a crash would lose. Blocks. Whoever calls it has the permit.
    pub(crate) fn close(&self) -> bool {
        self.save();
        let mut disk = self.disk.lock();
        let mut memory = self.memory.lock();
        if memory.as_ref().is_some_and(|memory| !memory.is_durable()) {
            return false;
        }
        let was_open = memory.take().is_some();
        drop(memory);
        disk.close();
        was_open
    }
}

/// Counts a caller that waits.
#[derive(Debug)]
pub(crate) struct WaitingCaller<'a>(&'a AtomicUsize);

impl<'a> WaitingCaller<'a> {
    /// `None` when as many as `most` wait.
    pub(crate) fn enter(slot: &'a Slot, most: usize) -> Option<Self> {
        let enter = |waiting| (waiting < most).then_some(waiting + 1);
        slot.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, enter).ok()?;
        Some(Self(&slot.waiting))
    }
}

impl Drop for WaitingCaller<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
