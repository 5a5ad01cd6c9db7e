//! The file of the letters: each record is a letter as it was at a moment, and the last of a key counts.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    path::{Path, PathBuf},
    sync::Arc,
};

use steadfast_store::{AppendLog, FileRepair, StoreError};

use super::DeadLetter;
use crate::journal::JournalFile;

const NAME: &str = "dead-letters.jsonl";

/// The file, with what it has of each letter.
pub(crate) struct LetterFile {
    log: AppendLog<DeadLetter>,
    letters: LastRecords,
    next: u64,
    /// Lines of the file.
    records: usize,
    /// How many letters that have ended a shorter file has.
    ended: usize,
}

/// The last record of each key, by its ordinal.
#[derive(Default)]
pub(crate) struct LastRecords {
    by_ordinal: BTreeMap<u64, DeadLetter>,
    by_key: HashMap<Arc<str>, u64>,
}

impl LetterFile {
    /// Opens the file in this folder.
    pub(crate) fn open(folder: &Path, ended: usize) -> Result<(Self, FileRepair), StoreError> {
        let (mut letters, mut last, mut records) = (LastRecords::default(), 0, 0);
        let (log, repair) = AppendLog::open(path(folder), |record| {
            records += 1;
            last = record.ordinal;
            letters.add(record.ordinal, record.value);
        })?;
        Ok((Self { log, letters, next: last + 1, records, ended }, repair))
    }

    /// Reads the file of another process, which may be writing it.
    pub(crate) fn read(folder: &Path) -> Result<(LastRecords, FileRepair), StoreError> {
        let mut letters = LastRecords::default();
        let repair =
            AppendLog::read(&path(folder), |record| letters.add(record.ordinal, record.value))?;
        Ok((letters, repair))
    }

    /// The letters, in the order in which they last changed.
    pub(crate) fn letters(&self) -> impl Iterator<Item = &DeadLetter> {
        self.letters.letters()
    }

    /// Replaces the file by one with a record a letter, when less than half of its records are of use.
    fn shorten(&mut self) -> Result<(), StoreError> {
        self.letters.forget_ended(self.ended);
        // Not for a few lines.
        if self.records <= 2 * self.letters.by_ordinal.len() + 64 {
            return Ok(());
        }
        self.log
            .rewrite(self.letters.by_ordinal.iter().map(|(ordinal, letter)| (*ordinal, letter)))?;
        self.records = self.letters.by_ordinal.len();
        Ok(())
    }
}

impl JournalFile for LetterFile {
    type Record = DeadLetter;

    const NAME: &'static str = NAME;

    fn append(&mut self, records: &[DeadLetter]) -> Result<(), StoreError> {
        self.log.append_all(records)?;
        for letter in records {
            self.letters.add(self.next, letter.clone());
            self.next += 1;
            self.records += 1;
        }
        // What was to be written is; a longer file is tried again with the next record.
        self.shorten().ok();
        Ok(())
    }

    fn compress(&self, records: &mut Vec<DeadLetter>) {
        let mut seen = HashSet::new();
        let mut ended = 0;
        // The last first: one of a key, and of those that have ended no more than a file keeps, but for those that wait in the file.
        records.reverse();
        records.retain(|letter| {
            if !seen.insert(letter.key.clone()) {
                return false;
            }
            ended += usize::from(!letter.is_waiting());
            letter.is_waiting() || ended <= self.ended || self.letters.waits(&letter.key)
        });
        records.reverse();
    }
}

impl LastRecords {
    fn add(&mut self, ordinal: u64, letter: DeadLetter) {
        if let Some(old) = self.by_key.insert(letter.key.clone(), ordinal) {
            self.by_ordinal.remove(&old);
        }
        self.by_ordinal.insert(ordinal, letter);
    }

    /// The letters, in the order in which they last changed.
    pub(crate) fn letters(&self) -> impl Iterator<Item = &DeadLetter> {
        self.by_ordinal.values()
    }

    /// Whether the letter of this key waits.
    fn waits(&self, key: &str) -> bool {
        let letter = self.by_key.get(key).and_then(|ordinal| self.by_ordinal.get(ordinal));
        letter.is_some_and(DeadLetter::is_waiting)
    }

    /// Keeps the last of those that have ended.
    fn forget_ended(&mut self, kept: usize) {
        let ended = self.by_ordinal.iter().filter(|(_, letter)| !letter.is_waiting());
        let ended: Vec<u64> = ended.map(|(ordinal, _)| *ordinal).collect();
        for ordinal in &ended[..ended.len().saturating_sub(kept)] {
            if let Some(letter) = self.by_ordinal.remove(ordinal) {
                self.by_key.remove(&letter.key);
            }
        }
    }
}

fn path(folder: &Path) -> PathBuf {
    folder.join(NAME)
}

#[cfg(test)]
mod tests {
    use steadfast_core::{Failure, Reason};

    use super::*;
    use crate::{Announcement, LetterEnd};

    #[test]
    fn what_waits_for_the_disk_is_bounded_and_brings_nothing_back() {
        let letter = |key: &str| {
            let failure = Failure::new(Reason::ServerError, "down");
            DeadLetter::of(&Announcement::new(key, "x", "a text"), &failure, false, 0)
        };
        let ended = |key: &str| letter(key).ended(LetterEnd::TooOld, 1);
        let folder = tempfile::tempdir().unwrap();
        let (mut file, _) = LetterFile::open(folder.path(), 2).unwrap();
        file.append(&[letter("a"), letter("b")]).unwrap();

        // The disk takes nothing from here on.
        let mut records = vec![ended("a"), letter("c")];
        for number in 0..100 {
            let key = number.to_string();
            records.extend([letter(&key), DeadLetter { attempts: 1, ..letter(&key) }, ended(&key)]);
        }
        records.push(letter("d"));
        let keys = |records: &[DeadLetter]| {
            let keys = records.iter().map(|one| format!("{} {}", one.key, one.is_waiting()));
            keys.collect::<Vec<_>>()
        };
        file.compress(&mut records);
        // `a` waits in the file: without its end it would come back.
        assert_eq!(keys(&records), ["a false", "c true", "98 false", "99 false", "d true"]);
        file.append(&records).unwrap();
        drop(file);
        let (read, _) = LetterFile::read(folder.path()).unwrap();
        let waiting: Vec<_> = read.letters().filter(|one| one.is_waiting()).collect();
        assert_eq!(waiting.iter().map(|one| &*one.key).collect::<Vec<_>>(), ["b", "c", "d"]);
    }
}
