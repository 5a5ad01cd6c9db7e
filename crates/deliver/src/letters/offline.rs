//! The letters of a process that runs, or of none: for a command line.

use std::path::{Path, PathBuf};

use steadfast_store::FileRepair;

use super::{
    DeadLetter, LetterDrain, LetterEnd, LetterQueuePolicy,
    boxed::LetterBox,
    file::{LastRecords, LetterFile},
};
use crate::{DeliverError, DeliveryFolder, clock, folder::is_missing, journal::JournalFile as _};

/// The letters in a folder, as they were when they were read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LetterList {
    /// Those that wait, the oldest first.
    pub waiting: Vec<DeadLetter>,
    /// The last that have ended, the oldest first.
    pub ended: Vec<DeadLetter>,
    /// What could not be read: lines that were changed, and the record that is being written at this moment.
    pub repair: FileRepair,
}

impl LetterList {
    /// Reads the letters in this folder without a lock, while another process may be writing them. Changes nothing; blocks. A
    /// folder without letters has none.
    ///
    /// # Errors
    ///
    /// The operating system's error.
    pub fn read(folder: impl AsRef<Path>) -> Result<Self, DeliverError> {
        match LetterFile::read(folder.as_ref()) {
            Ok((letters, repair)) => Ok(Self::of(&letters, repair)),
            Err(error) if is_missing(&error) => Ok(Self::default()),
            Err(error) => Err(error.into()),
        }
    }

    fn of(letters: &LastRecords, repair: FileRepair) -> Self {
        let (mut waiting, ended): (Vec<_>, Vec<_>) =
            letters.letters().cloned().partition(DeadLetter::is_waiting);
        waiting.sort_by_key(|letter| letter.kept_ms);
        Self { waiting, ended, repair }
    }

    /// The letter of this key.
    pub fn get(&self, key: &str) -> Option<&DeadLetter> {
        self.waiting.iter().chain(&self.ended).find(|letter| &*letter.key == key)
    }
}

/// The letters in a folder that no process delivers from, to be changed by hand. All of it blocks.
#[derive(Debug)]
pub struct OfflineLetters {
    file: LetterFile,
    letters: LetterBox,
    /// Unlocked after the file is closed.
    _folder: DeliveryFolder,
    path: PathBuf,
}

impl OfflineLetters {
    /// Locks the folder and reads its letters.
    ///
    /// # Errors
    ///
    /// [`DeliverError::Locked`] while another process delivers from it, which is then to be asked instead; the operating
    /// system's error.
    pub fn open(folder: impl Into<PathBuf>) -> Result<Self, DeliverError> {
        let path = folder.into();
        let folder = DeliveryFolder::open_blocking(&path)?;
        let policy = LetterQueuePolicy::default();
        let (file, _) = LetterFile::open(&path, policy.ended)?;
        // Of a queue with another policy, none is given up here.
        let policy = LetterQueuePolicy { letters: usize::MAX, bytes: usize::MAX, ..policy };
        let (mut letters, now) = (LetterBox::new(policy), clock::now_ms());
        for letter in file.letters() {
            letters.load(letter.clone(), now);
        }
        Ok(Self { file, letters, _folder: folder, path })
    }

    /// The letters.
    ///
    /// # Errors
    ///
    /// The operating system's error.
    pub fn list(&self) -> Result<LetterList, DeliverError> {
        LetterList::read(&self.path)
    }

    /// Drops the letter of this key: it ends in the record [`LetterEnd::Discarded`].
    ///
    /// # Errors
    ///
    /// [`DeliverError::NoLetter`]; the operating system's error.
    pub fn discard(&mut self, key: &str) -> Result<(), DeliverError> {
        let Some(letter) = self.letters.discard(key, clock::now_ms()) else {
            return Err(DeliverError::NoLetter(key.into()));
        };
        debug_assert_eq!(letter.end, Some(LetterEnd::Discarded));
        Ok(self.file.append(&[letter])?)
    }

    /// Makes letters due as soon as a process delivers from this folder, with all their retries and their full time; how many.
    ///
    /// One that was being sent when its process was killed is drained by its [key](LetterDrain::Key) alone: a person has to decide
    /// about it. Otherwise it ends [unclear](LetterEnd::Unclear) at the next start.
    ///
    /// # Errors
    ///
    /// The operating system's error.
    pub fn drain(&mut self, which: &LetterDrain) -> Result<usize, DeliverError> {
        let now = clock::now_ms();
        // One that had ended waits again from here on.
        let _ = self.letters.drain(which, now);
        let mut changed: Vec<DeadLetter> = Vec::new();
        for letter in self.letters.waiting() {
            let wanted = match which {
                LetterDrain::All => !letter.sending,
                LetterDrain::Destination(destination) => {
                    !letter.sending && letter.destination == *destination
                }
                LetterDrain::Key(key) => letter.key == *key,
            };
            if wanted {
                let age = letter.expires_ms.saturating_sub(letter.kept_ms);
                let mut letter = letter.clone();
                (letter.kept_ms, letter.next_ms, letter.attempts) = (now, now, 0);
                letter.sending = false;
                letter.expires_ms = now.saturating_add(age);
                changed.push(letter);
            }
        }
        self.file.append(&changed)?;
        Ok(changed.len())
    }
}

impl std::fmt::Debug for LetterFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LetterFile").finish_non_exhaustive()
    }
}
