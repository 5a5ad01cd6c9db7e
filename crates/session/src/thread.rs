//! A thread while one caller has it.

use std::{fmt, path::PathBuf, sync::Arc};

use steadfast_chat::{Message, SharedVec};
use steadfast_core::RecoveryLog;
use steadfast_store::replace;
use tokio::sync::OwnedSemaphorePermit;

use crate::{
    LOST_HISTORY, Opened, SessionEntry, SessionError, TurnEntry,
    disk::{read_log, sync_parents},
    entry::ContextHead,
    event,
    keys::KeyState,
    memory::Memory,
    name::folder_name,
    reconcile::LossNotice,
    slot::{Saved, Slot},
    store::{blocking, report_saved},
};

/// How a thread was found when it was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OpenReport {
    /// Where its history is from.
    pub how: Opened,
    /// Lines of the log that could not be read, or that were there twice. The first are in `log.jsonl.bad`.
    pub bad_lines: u64,
    /// The bytes of an append that a crash interrupted. They are there, too.
    pub torn_bytes: u64,
    /// Turns that neither file has, as far as the numbers of the others show it.
    pub missing: u64,
    /// Where the damaged files of the context are now.
    pub aside: Vec<PathBuf>,
    /// Whether the files can be written to: with a full disk or without permission they can not.
    pub writable: bool,
}

impl OpenReport {
    /// Whether nothing was damaged.
    pub fn is_clean(&self) -> bool {
        let nothing = self.bad_lines == 0 && self.torn_bytes == 0 && self.missing == 0;
        nothing && self.aside.is_empty() && !matches!(self.how, Opened::Backup | Opened::Lost)
    }
}

/// A turn that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a turn that is not saved is lost with the process"]
#[non_exhaustive]
pub struct TurnSaved {
    /// Its number in the thread.
    pub turn: u64,
    /// Whether it is on the disk. If not, it is in memory, and saved with the next turn or by a flush.
    pub saved: bool,
}

/// A thread while one caller has it: nobody else runs a turn in it until this value is dropped.
///
/// Its history changes as soon as a method is called, before the first wait. Dropping a future stops the waiting, not the saving.
#[must_use = "the thread is given to the next caller when this is dropped"]
pub struct SessionThread {
    slot: Arc<Slot>,
    _permit: OwnedSemaphorePermit,
}

impl SessionThread {
    pub(crate) fn new(slot: Arc<Slot>, permit: OwnedSemaphorePermit) -> Self {
        Self { slot, _permit: permit }
    }

    pub(crate) fn slot(&self) -> &Arc<Slot> {
        &self.slot
    }

    /// Its id.
    pub fn id(&self) -> &Arc<str> {
        &self.slot.thread
    }

    /// The history of the live session.
    pub fn history(&self) -> SharedVec<Message> {
        self.read(|memory| memory.history.clone()).unwrap_or_default()
    }

    /// The number of the live session, from 1.
    pub fn session(&self) -> u64 {
        self.head().session
    }

    /// The number of the last turn, over all sessions; 0 before the first.
    pub fn turn(&self) -> u64 {
        self.head().turn
    }

    /// How it was found when it was opened.
    pub fn report(&self) -> Option<OpenReport> {
        self.read(|memory| memory.report.clone())
    }

    /// What its user is to read first, if anything: that the history was lost, until a run has ended since. A turn of
    /// [`end_turn`](Self::end_turn) is a whole run.
    pub fn notice(&self) -> Option<&'static str> {
        (self.loss() == LossNotice::Due).then_some(LOST_HISTORY)
    }

    /// What its user was to read before the answer of this turn.
    pub(crate) fn notice_with(&self, turn: u64) -> Option<&'static str> {
        (self.loss() == LossNotice::With(turn)).then_some(LOST_HISTORY)
    }

    fn loss(&self) -> LossNotice {
        self.read(|memory| memory.loss).unwrap_or_default()
    }

    /// Adds a turn that was not made by a [`SessionLayer`](crate::SessionLayer), and saves it.
    ///
    /// It is added even when it can not be saved; a [`TurnSaved`] says so, and an event.
    pub async fn end_turn(&mut self, messages: Vec<Message>) -> TurnSaved {
        let turn = self.change(|memory| memory.end_turn(None, Vec::new(), messages, true, None));
        self.save(turn, &RecoveryLog::default()).await
    }

    /// Replaces the history by this one, such as a summary of it. The log keeps every turn, and the context alone has this history: it
    /// is saved once that is.
    pub async fn replace_history(&mut self, history: Vec<Message>) -> TurnSaved {
        self.change(|memory| memory.replace(history));
        self.save(self.turn(), &RecoveryLog::default()).await
    }

    /// Starts a new session, with an empty history, and returns its number.
    pub async fn roll_over(&mut self) -> u64 {
        let session = self.change(Memory::roll_over);
        let _ = self.save(self.turn(), &RecoveryLog::default()).await;
        event::rolled_over(&self.slot.thread, session);
        session
    }

    /// Keeps a file that came with a message; see [`SessionStore::attach`](crate::SessionStore::attach).
    ///
    /// # Errors
    ///
    /// Whatever the operating system says of the file.
    pub async fn attach(
        &self,
        name: &str,
        bytes: impl Into<Vec<u8>>,
    ) -> Result<PathBuf, SessionError> {
        let (slot, name, bytes) = (self.slot.clone(), folder_name(name), bytes.into());
        blocking(move || {
            let folder = slot.with_disk(|disk| disk.paths().attachments.clone());
            let path = folder.join(name);
            if !folder.exists() {
                // When it can not be made, the file can not be written, whose error is reported.
                let _ = std::fs::create_dir_all(&folder);
                sync_parents(&folder);
            }
            replace(&path, &bytes)?;
            Ok(path)
        })
        .await?
    }

    /// The turns from this to that one, as the log has them.
    pub(crate) async fn turns(
        &self,
        first: u64,
        last: u64,
    ) -> Result<Vec<TurnEntry>, SessionError> {
        let slot = self.slot.clone();
        let wanted = move |turn: &TurnEntry| (first..=last).contains(&turn.turn);
        let read = blocking(move || {
            let mut turns = Vec::new();
            let mut visit = |entry| match entry {
                SessionEntry::Turn(turn) if wanted(&turn) => turns.push(turn),
                _ => {}
            };
            let read = slot.with_disk(|disk| read_log(disk.paths(), &mut visit));
            let unsaved = slot.memory().map(|memory| memory.unsaved.clone());
            unsaved.into_iter().flatten().for_each(visit);
            read.map(|_| turns)
        });
        let source = match read.await? {
            Ok(turns) => return Ok(turns),
            Err(source) => source,
        };
        Err(SessionError::Unreadable { thread: self.slot.thread.clone(), source })
    }

    pub(crate) fn key_state(&self, key: &str) -> KeyState {
        let state =
            |memory: &mut Memory| memory.keys.state(key, memory.head.session, memory.head.turn);
        self.read(state).unwrap_or(KeyState::New)
    }

    async fn save(&self, turn: u64, log: &RecoveryLog) -> TurnSaved {
        save(&self.slot, turn, log).await
    }

    fn head(&self) -> ContextHead {
        self.read(|memory| memory.head).unwrap_or_default()
    }

    /// It is open as long as this value has the permit.
    fn read<T>(&self, read: impl FnOnce(&mut Memory) -> T) -> Option<T> {
        self.slot.memory().map(|mut memory| read(&mut memory))
    }

    fn change<T: Default>(&self, change: impl FnOnce(&mut Memory) -> T) -> T {
        self.read(change).unwrap_or_default()
    }
}

/// Saves a thread after this turn.
pub(crate) async fn save(slot: &Arc<Slot>, turn: u64, log: &RecoveryLog) -> TurnSaved {
    let saving = slot.clone();
    let saved = match blocking(move || saving.save()).await {
        Ok(saved) => saved,
        Err(_) => Saved { error: Some(crate::SaveError::Interrupted), ..Saved::default() },
    };
    report_saved(slot, &saved, log);
    TurnSaved { turn, saved: saved.durable }
}

impl fmt::Debug for SessionThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionThread")
            .field("id", self.id())
            .field("session", &self.session())
            .field("turn", &self.turn())
            .finish_non_exhaustive()
    }
}
