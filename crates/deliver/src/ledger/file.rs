//! The ledger's file.

use std::{collections::VecDeque, path::Path, sync::Arc};

use serde::{Deserialize, Serialize};
use steadfast_store::{AppendLog, FileRepair, StoreError};

use crate::journal::JournalFile;

const NAME: &str = "ledger.jsonl";

/// That a message was delivered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LedgerRecord {
    pub(crate) key: Arc<str>,
    pub(crate) at_ms: u64,
}

pub(crate) struct LedgerFile {
    log: AppendLog<LedgerRecord>,
    /// The last records, with their ordinals: what a shorter file has.
    last: VecDeque<(u64, LedgerRecord)>,
    next: u64,
    records: usize,
    keys: usize,
}

impl LedgerFile {
    /// Opens the file in this folder; with what it has, the oldest first.
    pub(crate) fn open(
        folder: &Path,
        keys: usize,
    ) -> Result<(Self, Vec<LedgerRecord>, FileRepair), StoreError> {
        let mut last = VecDeque::new();
        let mut records = 0;
        let (log, repair) = AppendLog::open(folder.join(NAME), |record| {
            records += 1;
            last.push_back((record.ordinal, record.value));
            if last.len() > keys {
                last.pop_front();
            }
        })?;
        let found = last.iter().map(|(_, record): &(u64, LedgerRecord)| record.clone()).collect();
        let next = last.back().map_or(1, |(ordinal, _)| ordinal + 1);
        Ok((Self { log, last, next, records, keys }, found, repair))
    }
}

impl JournalFile for LedgerFile {
    type Record = LedgerRecord;

    const NAME: &'static str = NAME;

    fn append(&mut self, records: &[LedgerRecord]) -> Result<(), StoreError> {
        self.log.append_all(records)?;
        for record in records {
            self.last.push_back((self.next, record.clone()));
            self.next += 1;
            self.records += 1;
        }
        while self.last.len() > self.keys {
            self.last.pop_front();
        }
        // A file of twice what is remembered, and not before there is something to gain.
        if self.records > 2 * self.keys.max(64) {
            self.log.rewrite(self.last.iter().map(|(ordinal, record)| (*ordinal, record))).ok();
            self.records = self.last.len();
        }
        Ok(())
    }

    fn compress(&self, records: &mut Vec<LedgerRecord>) {
        let surplus = records.len().saturating_sub(self.keys);
        records.drain(..surplus);
    }
}
