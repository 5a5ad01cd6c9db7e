//! Records that are replaced together.

use std::{
    fs::{self, File},
    io::{self, BufRead, BufReader, Write},
    marker::PhantomData,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    StoreError, aside,
    record::{decode, encode},
    replace::{Temporary, sync_folder},
};

/// A list of records that is saved as a whole, with the generation before as a backup beside it (`.bak`).
///
/// A save is whole or did not happen, whenever the process is killed. There must be one writer: hold the
/// [`FolderLock`](crate::FolderLock) of the file's folder.
#[derive(Debug)]
pub struct Document<T> {
    path: PathBuf,
    backup: PathBuf,
    value: PhantomData<fn(T)>,
}

/// What [`Document::load`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Loaded<T> {
    /// Nothing was ever saved.
    Missing,
    /// The last save.
    Current(Vec<T>),
    /// The save before the last. The last was damaged and is now the file `aside`, or is gone (`None`).
    Backup {
        /// The records.
        values: Vec<T>,
        /// Where the damaged file is now.
        aside: Option<PathBuf>,
    },
    /// Neither can be read. The damaged files are now these.
    Lost {
        /// Where the damaged files are now.
        aside: Vec<PathBuf>,
    },
}

/// One of the two files.
enum Generation<T> {
    Missing,
    Whole(Vec<T>),
    Damaged,
}

/// The first record.
#[derive(Serialize, Deserialize)]
struct Head {
    /// How many follow.
    records: u64,
}

impl<T: Serialize + DeserializeOwned> Document<T> {
    /// The document in this file. Nothing is read yet.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        Self { backup: aside::with_suffix(&path, ".bak"), path, value: PhantomData }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file of the generation before.
    pub fn backup_path(&self) -> &Path {
        &self.backup
    }

    /// Reads the last save; where it is damaged, the one before. A damaged file is renamed, with the date in its name
    /// (`.bad-2026-05-04T03-02-01Z`), so that a later save can not replace it.
    ///
    /// # Errors
    ///
    /// The operating system's error, of reading or renaming. A file that may not be read is never taken for a damaged or missing one.
    pub fn load(&self) -> Result<Loaded<T>, StoreError> {
        let current = generation(&self.path)?;
        if let Generation::Whole(values) = current {
            return Ok(Loaded::Current(values));
        }
        let backup = generation(&self.backup)?;
        let mut aside = Vec::new();
        for (generation, path) in [(&current, &self.path), (&backup, &self.backup)] {
            if matches!(generation, Generation::Damaged) {
                aside.push(aside::keep_file(path)?);
            }
        }
        Ok(match backup {
            Generation::Whole(values) => Loaded::Backup { values, aside: aside.pop() },
            _ if aside.is_empty() => Loaded::Missing,
            _ => Loaded::Lost { aside },
        })
    }

    /// As [`load`](Self::load), for other processes: nothing is renamed, so the names in what it returns are those of the damaged
    /// files.
    ///
    /// # Errors
    ///
    /// The operating system's error.
    pub fn read(&self) -> Result<Loaded<T>, StoreError> {
        let current = match generation(&self.path)? {
            Generation::Whole(values) => return Ok(Loaded::Current(values)),
            Generation::Damaged => Some(self.path.clone()),
            Generation::Missing => None,
        };
        Ok(match (generation(&self.backup)?, current) {
            (Generation::Whole(values), aside) => Loaded::Backup { values, aside },
            (Generation::Missing, None) => Loaded::Missing,
            (Generation::Missing, Some(current)) => Loaded::Lost { aside: vec![current] },
            (Generation::Damaged, current) => {
                Loaded::Lost { aside: current.into_iter().chain([self.backup.clone()]).collect() }
            }
        })
    }

    /// Saves these records. When this returns, they are on the disk, and the save before is the backup.
    ///
    /// # Errors
    ///
    /// A value can not be written as JSON, or the operating system's error. The last save is as it was; where the error is that the
    /// folder could not be synced, it is this one, which a power cut may undo.
    pub fn save<'a>(
        &self,
        values: impl IntoIterator<Item = &'a T, IntoIter: ExactSizeIterator>,
    ) -> Result<(), StoreError>
    where
        T: 'a,
    {
        let values = values.into_iter();
        let mut new = Temporary::beside(&self.path)?;
        new.write(|file| {
            let mut line = Vec::new();
            encode(1, &Head { records: values.len() as u64 }, &mut line)?;
            for (ordinal, value) in (2..).zip(values) {
                file.write_all(&line)?;
                line.clear();
                encode(ordinal, value, &mut line)?;
            }
            file.write_all(&line)
        })?;
        self.back_up()?;
        new.rename()?;
        sync_folder(&self.path)
    }

    /// Makes the last save the backup. It keeps its name, so that readers find it until the next one is there.
    fn back_up(&self) -> Result<(), StoreError> {
        let second = Temporary::name(&self.backup);
        let backed_up = match fs::hard_link(&self.path, &second) {
            Ok(()) => {
                let renamed = fs::rename(&second, &self.backup);
                // It is still there when that failed, and when the backup was the same file already, because a save was killed
                // after this: a rename of a file to itself does nothing.
                let _ = fs::remove_file(&second);
                renamed
            }
            // Some file systems have no second names: for a moment there is the backup alone.
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                fs::rename(&self.path, &self.backup)
            }
            missing => missing,
        };
        match backed_up {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(StoreError::new("back up", &self.path, error))
            }
            _ => Ok(()),
        }
    }

    /// Removes the document and its backup.
    ///
    /// # Errors
    ///
    /// The operating system's error.
    pub fn remove(&self) -> Result<(), StoreError> {
        // The backup first: it is not to come back as the last save.
        for path in [&self.backup, &self.path] {
            match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(StoreError::new("remove", path, error));
                }
                _ => {}
            }
        }
        sync_folder(&self.path)
    }
}

fn generation<T: DeserializeOwned>(path: &Path) -> Result<Generation<T>, StoreError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Generation::Missing),
        Err(error) => return Err(StoreError::new("open", path, error)),
    };
    let values = records(file).map_err(StoreError::of("read", path))?;
    Ok(values.map_or(Generation::Damaged, Generation::Whole))
}

/// The records of a whole file; `None` when anything is missing or changed.
fn records<T: DeserializeOwned>(file: File) -> io::Result<Option<Vec<T>>> {
    let mut reader = BufReader::new(file);
    let mut line = Vec::new();
    let mut next_line = |line: &mut Vec<u8>| {
        line.clear();
        reader.read_until(b'\n', line)?;
        Ok::<_, io::Error>(line.pop_if(|byte| *byte == b'\n').is_some())
    };
    if !next_line(&mut line)? {
        return Ok(None);
    }
    let Some(head) = decode::<Head>(&line).filter(|head| head.ordinal == 1) else {
        return Ok(None);
    };
    let mut values = Vec::new();
    while next_line(&mut line)? {
        match decode::<T>(&line) {
            Some(record) if record.ordinal == values.len() as u64 + 2 => values.push(record.value),
            _ => return Ok(None),
        }
    }
    Ok((line.is_empty() && values.len() as u64 == head.value.records).then_some(values))
}
