//! Looking at threads from outside: nothing is locked, nothing is changed.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde::Serialize;
use steadfast_chat::Message;
use steadfast_store::Document;

use crate::{
    Opened, SessionEntry, SessionError, SessionScope, SessionStore, TurnEntry,
    disk::{self, OpenError, Paths},
    event,
    name::{Named, thread_of},
};

/// A thread in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SessionSummary {
    /// Its id.
    pub thread: String,
    /// Its folder.
    pub folder: PathBuf,
    /// The live session.
    pub session: u64,
    /// The number of the last turn.
    pub turns: u64,
    /// The messages of the live session.
    pub messages: usize,
    /// When something was last logged, RFC 3339.
    pub last: Option<String>,
}

/// All of a thread.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct SessionTranscript {
    /// Its id.
    pub thread: String,
    /// The live session.
    pub session: u64,
    /// The history of the live session.
    pub history: Vec<Message>,
    /// Everything that was logged.
    pub entries: Vec<SessionEntry>,
}

/// What [`SessionStore::verify`] found in one thread.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ThreadCheck {
    /// Its id.
    pub thread: String,
    /// The number of the last turn.
    pub turns: u64,
    /// Lines of the log that can not be read.
    pub bad_lines: u64,
    /// Bytes at the end of the log that are no whole line: an append that was interrupted, or is being made.
    pub torn_bytes: u64,
    /// Files of the context that can not be read.
    pub damaged: usize,
    /// Turns that neither file has.
    pub missing: u64,
    /// Turns that the log has and the context has not: it was not saved since, or is being saved. They are in the history.
    pub log_ahead: u64,
    /// Turns that the context has and the log has not at its end.
    pub context_ahead: u64,
    /// How the history would be found, by the name of an [`Opened`].
    pub opens: &'static str,
    /// Whether the messages of the context are those of the log's turns. Turns of which the log has no line are not compared.
    pub agrees: bool,
    /// Files that were set aside before, for people.
    pub set_aside: usize,
    /// Why it can not be read at all.
    pub error: Option<String>,
}

impl ThreadCheck {
    /// Whether nothing is wrong: what an interrupted or running save leaves is not, nor what was set aside before.
    pub fn is_ok(&self) -> bool {
        let is_whole = self.bad_lines == 0 && self.missing == 0 && self.damaged == 0;
        self.error.is_none() && self.agrees && is_whole && self.opens != Opened::Lost.as_str()
    }
}

impl SessionStore {
    /// Every thread, by id. Blocks; for the command line.
    ///
    /// # Errors
    ///
    /// The folder, or a thread in it, can not be read.
    pub fn list(&self) -> Result<Vec<SessionSummary>, SessionError> {
        let threads = threads(self.root())?;
        threads.into_iter().map(|(thread, paths)| summary(thread, paths)).collect()
    }

    /// All of the one thread that this scope names. Blocks; for the command line.
    ///
    /// # Errors
    ///
    /// The scope names none or several, or the thread can not be read.
    pub fn show(&self, scope: &SessionScope) -> Result<SessionTranscript, SessionError> {
        let threads = threads(self.root())?;
        let found = scope.resolve(threads.iter().map(|(thread, _)| thread.as_str()));
        let thread = found.inspect_err(event::refused)?;
        let paths = Paths::of(self.root(), thread);
        let found = read(thread, &paths)?;
        let mut entries = Vec::new();
        disk::read_log(&paths, |entry| entries.push(entry))?;
        scope.check(thread, found.history.head.session).inspect_err(event::refused)?;
        Ok(SessionTranscript {
            thread: thread.to_owned(),
            session: found.history.head.session,
            history: found.history.messages,
            entries,
        })
    }

    /// Checks every thread, by id: whether its files can be read, and agree. A folder whose thread's id can not be read has its own name. Nothing is locked or changed, so it may run beside the
    /// process that writes. Blocks; for the command line.
    ///
    /// # Errors
    ///
    /// The folder can not be read. A thread that can not be is in the result.
    pub fn verify(&self) -> Result<Vec<ThreadCheck>, SessionError> {
        let threads = threads(self.root())?;
        let mut checks: Vec<_> =
            threads.into_iter().map(|(thread, paths)| check(thread, &paths)).collect();
        checks.extend(nameless(self.root())?.into_iter().map(|(name, error)| ThreadCheck {
            error: Some(format!("the file `thread` with its id can not be read: {error}")),
            thread: name,
            ..ThreadCheck::default()
        }));
        Ok(checks)
    }
}

/// The threads of a folder, by id. A folder that does not exist has none.
pub(crate) fn threads(root: &Path) -> Result<Vec<(String, Paths)>, SessionError> {
    let mut threads: Vec<(String, Paths)> = folders(root)?
        .into_iter()
        .filter_map(|(name, paths)| match thread_of(&name) {
            Named::Thread(thread) => Some((thread, paths)),
            Named::Long => Some((fs::read_to_string(&paths.id).ok()?, paths)),
            Named::Other => None,
        })
        .collect();
    threads.sort_unstable_by(|one, other| one.0.cmp(&other.0));
    Ok(threads)
}

/// The folders in a folder, with their names.
fn folders(root: &Path) -> Result<Vec<(String, Paths)>, SessionError> {
    let entries = match fs::read_dir(root).and_then(Iterator::collect::<io::Result<Vec<_>>>) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(SessionError::Folder { folder: root.to_owned(), source }),
    };
    let folders =
        entries.into_iter().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let named = folders.filter_map(|entry| {
        Some((entry.file_name().to_str()?.to_owned(), Paths::in_folder(entry.path())))
    });
    Ok(named.collect())
}

/// The folders whose thread's id is too long for their name, and the file that has it can not be read.
fn nameless(root: &Path) -> Result<Vec<(String, io::Error)>, SessionError> {
    let mut found: Vec<_> = folders(root)?
        .into_iter()
        // One that a process is just making has neither file.
        .filter(|(name, paths)| {
            thread_of(name) == Named::Long && (paths.log.exists() || paths.context.exists())
        })
        .filter_map(|(name, paths)| Some((name, fs::read_to_string(&paths.id).err()?)))
        .collect();
    found.sort_unstable_by(|one, other| one.0.cmp(&other.0));
    Ok(found)
}

fn read(thread: &str, paths: &Paths) -> Result<disk::Found, SessionError> {
    disk::read(paths, 1).map_err(|error| match error {
        OpenError::Store(source) => SessionError::Unreadable { thread: thread.into(), source },
        OpenError::Foreign => SessionError::Foreign { folder: paths.folder.clone() },
    })
}

fn summary(thread: String, paths: Paths) -> Result<SessionSummary, SessionError> {
    let found = read(&thread, &paths)?;
    let mut last = None;
    disk::read_log(&paths, |entry| {
        last = Some(match entry {
            SessionEntry::Turn(turn) => turn.at,
            SessionEntry::Started(start) => start.at,
        });
    })?;
    let head = found.history.head;
    Ok(SessionSummary {
        thread,
        folder: paths.folder,
        session: head.session,
        turns: head.turn,
        messages: found.history.messages.len(),
        last,
    })
}

fn check(thread: String, paths: &Paths) -> ThreadCheck {
    let found = match disk::read(paths, 1) {
        Ok(found) => found,
        Err(error) => {
            let error = match error {
                OpenError::Store(error) => error.to_string(),
                OpenError::Foreign => "the folder is that of another thread".to_owned(),
            };
            return ThreadCheck { thread, error: Some(error), ..ThreadCheck::default() };
        }
    };
    let history = found.history;
    ThreadCheck {
        thread,
        turns: history.head.turn,
        bad_lines: found.log.bad_lines + history.repeated,
        torn_bytes: found.log.torn_bytes,
        damaged: found.aside.len(),
        missing: history.missing,
        log_ahead: history.log_ahead,
        context_ahead: history.context_ahead,
        opens: history.how.as_str(),
        agrees: agrees(paths),
        set_aside: set_aside(&paths.folder),
        error: None,
    }
}

/// Whether the messages of the context are those of the log's turns, from the last on back to the first that the log misses, or to
/// where the history was replaced.
fn agrees(paths: &Paths) -> bool {
    // Read errors have been reported by who read the files before.
    let Ok(loaded) = Document::new(&paths.context).read() else { return false };
    let (context, _) = disk::found(loaded);
    let Some(context) = context.file() else { return true };
    let head = context.head;
    let mut turns: Vec<TurnEntry> = Vec::new();
    let read = disk::read_log(paths, |entry| match entry {
        SessionEntry::Turn(turn) if turn.session == head.session && turn.turn <= head.turn => {
            turns.push(turn);
        }
        _ => {}
    });
    let mut rest = context.messages.as_slice();
    for (expected, turn) in (head.replaced + 1..=head.turn).rev().zip(turns.iter().rev()) {
        if turn.turn != expected {
            break;
        }
        match rest.strip_suffix(turn.messages.as_slice()) {
            Some(before) => rest = before,
            None => return false,
        }
    }
    read.is_ok()
}

/// How many files a folder has that were set aside.
fn set_aside(folder: &Path) -> usize {
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    entries.filter(|entry| entry.file_name().to_string_lossy().contains(".bad")).count()
}
