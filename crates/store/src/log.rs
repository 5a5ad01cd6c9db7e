//! A file of records that is appended to.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Write},
    marker::PhantomData,
    path::{Path, PathBuf},
};

use serde::{Serialize, de::DeserializeOwned};

use crate::{
    FileRepair, Record, StoreError, aside,
    record::{decode, encode},
    replace::{Temporary, sync_folder},
};

/// Records that are appended one by one, a line each.
///
/// What [`append`](Self::append) returned for is on the disk and is read by every later [`open`](Self::open). There must be one
/// writer: hold the [`FolderLock`](crate::FolderLock) of the file's folder.
#[derive(Debug)]
pub struct AppendLog<T> {
    path: PathBuf,
    file: File,
    /// The length of the records in it.
    len: u64,
    /// Whether there may be more in the file than that: what an append has left that failed.
    torn: bool,
    /// Whether the folder may still have another file under the log's name, after a power cut.
    unnamed: bool,
    next: u64,
    value: PhantomData<fn(T)>,
}

impl<T: Serialize + DeserializeOwned> AppendLog<T> {
    /// Opens the log, which is made if it does not exist, and visits its records in their order.
    ///
    /// Lines that are no record, and what an interrupted append left at the end, are appended to the file beside it whose name
    /// ends in `.bad`; then they are removed from the log, and counted. A line whose value is no `T`, as a later version may have
    /// written it, is such a line.
    ///
    /// # Errors
    ///
    /// The operating system's error: also when there is something to set aside and no space to do that. The file is then as it
    /// was; records may have been visited.
    pub fn open(
        path: impl Into<PathBuf>,
        mut visit: impl FnMut(Record<T>),
    ) -> Result<(Self, FileRepair), StoreError> {
        let path = path.into();
        let mut options = File::options();
        options.read(true).append(true).create(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = options.open(&path).map_err(StoreError::of("open", &path))?;
        // Also of a log that there was: whoever made or replaced it may have failed to.
        sync_folder(&path)?;
        let mut bad = Vec::new();
        let scan = scan(&file, |_, record| visit(record), |line| bad.push(line.to_vec()))
            .map_err(StoreError::of("read", &path))?;
        let next = scan.last.saturating_add(1);
        let mut log = Self {
            path,
            file,
            len: scan.len,
            torn: false,
            unnamed: false,
            next,
            value: PhantomData,
        };
        if !bad.is_empty() {
            aside::keep_lines(&log.path, &bad)?;
        }
        if scan.repair.bad_lines > 0 {
            log.copy_records()?;
        } else if scan.repair.torn_bytes > 0 {
            log.torn = true;
            log.cut()?;
        } else if scan.unended {
            log.write(b"\n")?;
        }
        Ok((log, scan.repair))
    }

    /// Visits the records of a log and changes nothing: for other processes, while the log is written to. An append that is being
    /// made is seen as torn bytes.
    ///
    /// # Errors
    ///
    /// The operating system's error; a file that does not exist is one.
    pub fn read(path: &Path, mut visit: impl FnMut(Record<T>)) -> Result<FileRepair, StoreError> {
        let file = File::open(path).map_err(StoreError::of("open", path))?;
        let scan = scan(&file, |_, record| visit(record), |_| ());
        Ok(scan.map_err(StoreError::of("read", path))?.repair)
    }

    /// Appends this value. When this returns its ordinal, the record is on the disk.
    ///
    /// # Errors
    ///
    /// The value can not be written as JSON, or the operating system's error. The record is then not in the log, and the next append is
    /// as good as any: what this one left is removed first.
    pub fn append(&mut self, value: &T) -> Result<u64, StoreError> {
        let ordinal = self.next;
        self.append_all(std::slice::from_ref(value))?;
        Ok(ordinal)
    }

    /// Appends these values, and waits for the disk once.
    ///
    /// # Errors
    ///
    /// As [`append`](Self::append): after an error none of them is in the log. A crash may leave the first of them.
    pub fn append_all(&mut self, values: &[T]) -> Result<(), StoreError> {
        let mut lines = Vec::new();
        for (ordinal, value) in (self.next..).zip(values) {
            encode(ordinal, value, &mut lines)
                .map_err(|error| StoreError::new("append to", &self.path, error.into()))?;
        }
        self.write(&lines)?;
        self.next += values.len() as u64;
        Ok(())
    }

    /// Replaces the records of the log by these, whose ordinals must rise and have been given by this log. Readers see the old file
    /// or the new one.
    ///
    /// # Errors
    ///
    /// The ordinals do not rise, a value can not be written as JSON, or the operating system's error. The log is as it was; where the
    /// error is that its folder could not be synced, it has these records, and the next append syncs the folder first.
    pub fn rewrite<'a>(
        &mut self,
        records: impl IntoIterator<Item = (u64, &'a T)>,
    ) -> Result<(), StoreError>
    where
        T: 'a,
    {
        let mut lines = Vec::new();
        let mut last = 0;
        for (ordinal, value) in records {
            if ordinal <= last || ordinal >= self.next {
                let error =
                    format!("the ordinal {ordinal} is not between {last} and {}", self.next);
                let error = io::Error::new(io::ErrorKind::InvalidInput, error);
                return Err(StoreError::new("replace", &self.path, error));
            }
            last = ordinal;
            encode(ordinal, value, &mut lines)
                .map_err(|error| StoreError::new("replace", &self.path, error.into()))?;
        }
        self.replace(|file| file.write_all(&lines))
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The length of the log, in bytes.
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no record.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Replaces the file by one with its records alone.
    fn copy_records(&mut self) -> Result<(), StoreError> {
        let old = File::open(&self.path).map_err(StoreError::of("open", &self.path))?;
        self.replace(|file| {
            let mut written = Ok(());
            let copy = |line: &[u8], _: Record<T>| {
                if written.is_ok() {
                    written = file.write_all(line).and_then(|()| file.write_all(b"\n"));
                }
            };
            scan(&old, copy, |_| ())?;
            written
        })
    }

    fn replace(
        &mut self,
        write: impl FnOnce(&mut io::BufWriter<&File>) -> io::Result<()>,
    ) -> Result<(), StoreError> {
        let mut new = Temporary::beside(&self.path)?;
        new.write(write)?;
        let len = new.len()?;
        // From here on the log is the new file, whatever fails: what is appended to the old one nobody reads.
        self.file = new.rename()?;
        (self.len, self.torn, self.unnamed) = (len, false, true);
        self.sync_name()
    }

    /// Makes the name of a file that has replaced another last.
    fn sync_name(&mut self) -> Result<(), StoreError> {
        if self.unnamed {
            sync_folder(&self.path)?;
            self.unnamed = false;
        }
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.sync_name()?;
        self.cut()?;
        self.torn = true;
        let written = self.file.write_all(bytes).and_then(|()| self.file.sync_data());
        if let Err(error) = written {
            // Tried again before the next append: nothing is ever appended to a part of a line.
            let _ = self.cut();
            return Err(StoreError::new("append to", &self.path, error));
        }
        self.torn = false;
        self.len += bytes.len() as u64;
        Ok(())
    }

    /// Removes what an interrupted append has left.
    fn cut(&mut self) -> Result<(), StoreError> {
        if self.torn {
            let cut = self.file.set_len(self.len).and_then(|()| self.file.sync_data());
            cut.map_err(StoreError::of("repair", &self.path))?;
            self.torn = false;
        }
        Ok(())
    }
}

/// What a file is made of.
#[derive(Default)]
struct Scan {
    repair: FileRepair,
    /// The last ordinal.
    last: u64,
    /// The end of the last whole line, or of the last record if that has no line feed.
    len: u64,
    /// Whether the last record has no line feed: the crash was between the two.
    unended: bool,
}

fn scan<T: DeserializeOwned>(
    file: &File,
    mut good: impl FnMut(&[u8], Record<T>),
    mut bad: impl FnMut(&[u8]),
) -> io::Result<Scan> {
    let mut reader = BufReader::with_capacity(64 << 10, file);
    let (mut scan, mut line) = (Scan::default(), Vec::new());
    loop {
        line.clear();
        let read = reader.read_until(b'\n', &mut line)? as u64;
        if read == 0 {
            return Ok(scan);
        }
        let ended = line.pop_if(|byte| *byte == b'\n').is_some();
        match decode(&line).filter(|record| record.ordinal > scan.last) {
            Some(record) => {
                scan.repair.records += 1;
                (scan.last, scan.unended) = (record.ordinal, !ended);
                good(&line, record);
            }
            None if ended => {
                scan.repair.bad_lines += 1;
                bad(&line);
            }
            None => {
                scan.repair.torn_bytes = read;
                bad(&line);
                return Ok(scan);
            }
        }
        scan.len += read;
    }
}
