//! The files of a thread. All of it blocks.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use steadfast_store::{
    AppendLog, Document, FileRepair, FolderLock, Loaded, StoreError, remove_leftovers, replace,
};

use crate::{
    SaveError, SessionEntry,
    entry::{ContextFile, ContextHead, ContextRecord},
    name::{Named, folder_name, thread_of},
    reconcile::{ContextFound, LogDigest, Reconciled, reconcile},
};

/// Where the files of a thread are.
#[derive(Clone, Debug)]
pub(crate) struct Paths {
    pub(crate) folder: PathBuf,
    pub(crate) log: PathBuf,
    pub(crate) context: PathBuf,
    pub(crate) attachments: PathBuf,
    /// The id of a thread whose folder's name does not have it.
    pub(crate) id: PathBuf,
}

impl Paths {
    pub(crate) fn of(root: &Path, thread: &str) -> Self {
        Self::in_folder(root.join(folder_name(thread)))
    }

    pub(crate) fn in_folder(folder: PathBuf) -> Self {
        Self {
            log: folder.join("log.jsonl"),
            context: folder.join("context.jsonl"),
            attachments: folder.join("attachments"),
            id: folder.join("thread"),
            folder,
        }
    }
}

/// A thread as it was found.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) history: Reconciled,
    pub(crate) log: FileRepair,
    /// The damaged files of the context.
    pub(crate) aside: Vec<PathBuf>,
    /// Why the files can be read, and not written to for now.
    pub(crate) unwritable: Option<StoreError>,
}

/// Why a thread can not be opened.
#[derive(Debug)]
pub(crate) enum OpenError {
    Store(StoreError),
    Foreign,
}

impl From<StoreError> for OpenError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// The files of an open thread.
#[derive(Debug)]
pub(crate) struct Disk {
    thread: Box<str>,
    paths: Paths,
    keys: usize,
    lock: Option<FolderLock>,
    /// `None` while the files can not be written to.
    log: Option<AppendLog<SessionEntry>>,
    /// The session and the turn that were read: what is there must still end with them when it is written to for the first time.
    base: (u64, u64),
}

impl Disk {
    pub(crate) fn new(root: &Path, thread: &str, keys: usize) -> Self {
        let paths = Paths::of(root, thread);
        Self { thread: thread.into(), paths, keys, lock: None, log: None, base: (1, 0) }
    }

    pub(crate) fn paths(&self) -> &Paths {
        &self.paths
    }

    /// Opens the files. When there is no space, or no permission to write, they are read only, and the writing is tried again at
    /// the next save.
    pub(crate) fn open(&mut self) -> Result<Found, OpenError> {
        let found = match self.open_to_write() {
            Err(OpenError::Store(error)) if error.is_full() || error.is_denied() => {
                let mut found = read(&self.paths, self.keys)?;
                found.unwritable = Some(error);
                found
            }
            found => found?,
        };
        self.base = (found.history.head.session, found.history.head.turn);
        Ok(found)
    }

    fn open_to_write(&mut self) -> Result<Found, OpenError> {
        if self.lock.is_none() {
            let is_new = !self.paths.folder.exists();
            self.lock = Some(FolderLock::acquire(&self.paths.folder)?);
            if is_new {
                sync_parents(&self.paths.folder);
            }
        }
        self.check_id()?;
        for folder in [&self.paths.folder, &self.paths.attachments] {
            // What can not be removed is in nobody's way: no name of a temporary file is used twice.
            let _ = remove_leftovers(folder);
        }
        let (context, aside) = found(Document::new(&self.paths.context).load()?);
        let mut digest = LogDigest::new(context.file(), self.keys);
        let (log, repair) = AppendLog::open(&self.paths.log, |record| digest.visit(record.value))?;
        self.log = Some(log);
        let history = reconcile(context, digest, repair.bad_lines == 0);
        Ok(Found { history, log: repair, aside, unwritable: None })
    }

    /// A folder whose name is not the thread's id has the id in a file.
    fn check_id(&self) -> Result<(), OpenError> {
        let name = self.paths.folder.file_name().unwrap_or_default().to_string_lossy();
        if thread_of(&name) != Named::Long {
            return Ok(());
        }
        match fs::read(&self.paths.id) {
            Ok(id) if id == self.thread.as_bytes() => Ok(()),
            Ok(_) => Err(OpenError::Foreign),
            // Also when it can not be read: then it can not be replaced either.
            Err(_) => Ok(replace(&self.paths.id, self.thread.as_bytes())?),
        }
    }

    /// Appends to the log.
    pub(crate) fn append(&mut self, entries: &[SessionEntry]) -> Result<(), SaveError> {
        Ok(self.writable()?.append_all(entries)?)
    }

    /// Replaces the context.
    pub(crate) fn save(
        &mut self,
        head: ContextHead,
        messages: &[steadfast_chat::Message],
    ) -> Result<(), SaveError> {
        self.writable()?;
        let records = ContextFile::records(head, messages);
        Ok(Document::<ContextRecord>::new(&self.paths.context).save(&records)?)
    }

    /// The log, which is opened when it could not be before.
    fn writable(&mut self) -> Result<&mut AppendLog<SessionEntry>, SaveError> {
        if self.log.is_none() {
            let found = match self.open_to_write() {
                Ok(found) => found.history.head,
                Err(OpenError::Store(error)) => return Err(error.into()),
                Err(OpenError::Foreign) => return Err(self.changed()),
            };
            if (found.session, found.turn) != self.base {
                self.log = None;
                return Err(self.changed());
            }
        }
        let folder = &self.paths.folder;
        self.log.as_mut().ok_or_else(|| SaveError::Changed { folder: folder.clone() })
    }

    /// Somebody else wrote to the files while they could not be locked.
    fn changed(&self) -> SaveError {
        SaveError::Changed { folder: self.paths.folder.clone() }
    }

    /// Closes the files, and unlocks the folder.
    pub(crate) fn close(&mut self) {
        self.log = None;
        self.lock = None;
    }
}

/// Makes a new folder last, and the folder that it is in, which may be new as well. Where a folder can not be opened its name lasts by
/// itself or not at all.
pub(crate) fn sync_parents(folder: &Path) {
    for parent in folder.ancestors().skip(1).take(2) {
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        let _ = fs::File::open(parent).and_then(|parent| parent.sync_all());
    }
}

/// Reads the files of a thread, and changes nothing.
pub(crate) fn read(paths: &Paths, keys: usize) -> Result<Found, OpenError> {
    let (context, aside) = found(Document::new(&paths.context).read()?);
    let mut digest = LogDigest::new(context.file(), keys);
    let repair = read_log(paths, |entry| digest.visit(entry))?;
    let history = reconcile(context, digest, repair.bad_lines == 0);
    Ok(Found { history, log: repair, aside, unwritable: None })
}

/// Reads the log of a thread; none is an empty one.
pub(crate) fn read_log(
    paths: &Paths,
    mut visit: impl FnMut(SessionEntry),
) -> Result<FileRepair, StoreError> {
    match AppendLog::read(&paths.log, |record| visit(record.value)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(FileRepair::default()),
        read => read,
    }
}

/// What a document has for us, and its damaged files.
pub(crate) fn found(loaded: Loaded<ContextRecord>) -> (ContextFound, Vec<PathBuf>) {
    let file = |records, found: fn(ContextFile) -> ContextFound| {
        ContextFile::from_records(records).map_or(ContextFound::Lost, found)
    };
    match loaded {
        Loaded::Missing => (ContextFound::Missing, Vec::new()),
        Loaded::Current(records) => (file(records, ContextFound::Current), Vec::new()),
        // A crash between the two renames of a save: nothing is damaged, and the log has the turn.
        Loaded::Backup { values, aside: None } => (file(values, ContextFound::Current), Vec::new()),
        Loaded::Backup { values, aside } => {
            (file(values, ContextFound::Backup), aside.into_iter().collect())
        }
        Loaded::Lost { aside } => (ContextFound::Lost, aside),
        _ => (ContextFound::Lost, Vec::new()),
    }
}
