//! The file of a registry.

use std::{collections::BTreeMap, path::Path};

use steadfast_store::{AppendLog, FileRepair, FolderLock, Record, StoreError, remove_leftovers};

use crate::{RunId, RunRecord, runs::KEPT};

/// The name of the file in the registry's folder.
const NAME: &str = "runs.jsonl";

/// The log of records, of which the last one of each run counts, and the lock of its folder.
#[derive(Debug)]
pub(crate) struct Disk {
    log: AppendLog<RunRecord>,
    _lock: FolderLock,
    /// The ordinal of the next record.
    next: u64,
    /// The records in the file.
    records: u64,
    /// As many are left alone, after the file could not be compacted.
    tolerated: u64,
}

impl Disk {
    /// Opens the file of this folder and visits its records. Blocks.
    pub(crate) fn open(
        folder: &Path,
        mut visit: impl FnMut(RunRecord, u64),
    ) -> Result<(Self, FileRepair), StoreError> {
        let lock = FolderLock::acquire(folder)?;
        remove_leftovers(folder)?;
        let mut next = 1;
        let (log, repair) = AppendLog::open(folder.join(NAME), |record| {
            next = record.ordinal + 1;
            visit(record.value, record.ordinal);
        })?;
        Ok((Self { log, _lock: lock, next, records: repair.records, tolerated: 0 }, repair))
    }

    /// The last record of each run in the file of another process, which may be writing it. Blocks.
    pub(crate) fn read(folder: &Path) -> Result<BTreeMap<RunId, RunRecord>, StoreError> {
        let mut runs = BTreeMap::new();
        AppendLog::read(&folder.join(NAME), |record: Record<RunRecord>| {
            runs.insert(record.value.id.clone(), record.value);
        })?;
        Ok(runs)
    }

    /// Appends these; returns the ordinal of the first. Blocks until they are on the disk.
    pub(crate) fn append(&mut self, records: &[RunRecord]) -> Result<u64, StoreError> {
        let first = self.next;
        self.log.append_all(records)?;
        self.next += records.len() as u64;
        self.records += records.len() as u64;
        Ok(first)
    }

    /// Whether most of the file is history, when `runs` are known.
    pub(crate) fn is_bloated(&self, runs: usize) -> bool {
        self.records > self.tolerated.max(4 * runs.max(KEPT / 4) as u64)
    }

    /// Leaves these records alone in the file. Blocks.
    pub(crate) fn compact(&mut self, records: &[(u64, RunRecord)]) -> Result<(), StoreError> {
        self.tolerated = 2 * self.records;
        self.log.rewrite(records.iter().map(|(ordinal, record)| (*ordinal, record)))?;
        (self.records, self.tolerated) = (records.len() as u64, 0);
        Ok(())
    }
}
