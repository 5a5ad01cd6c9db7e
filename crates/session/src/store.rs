//! The threads of a folder.

use std::{
    collections::HashMap,
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::Mutex;
use steadfast_core::RecoveryLog;
use tokio::{sync::OwnedSemaphorePermit, time::Instant};

use crate::{
    PolicyError, SaveError, SessionError, SessionPolicy, SessionScope, SessionThread,
    disk::OpenError,
    event, inspect,
    slot::{Saved, Slot, WaitingCaller},
};

/// The conversations of an agent, in a folder of files. Cheap to clone; clones share what is open.
///
/// Each thread has a folder of its own in it, named after the thread:
///
/// | file | what |
/// |---|---|
/// | `context.jsonl` | the history of the live session, as its model is given it; replaced at each turn's end, the one before is `context.jsonl.bak` |
/// | `log.jsonl` | every turn of every session; appended to before the context is replaced |
/// | `attachments/` | files that came with messages |
/// | `.lock` | locked by the process that has the thread open |
/// | `*.bad*` | what could not be read: for people, never read again |
///
/// All work on files is done in blocking tasks of the runtime.
#[derive(Clone)]
pub struct SessionStore(Arc<StoreState>);

struct StoreState {
    root: PathBuf,
    policy: SessionPolicy,
    slots: Mutex<HashMap<Arc<str>, Arc<Slot>>>,
}

/// What a store has open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionSnapshot {
    /// Threads that are open.
    pub open: usize,
    /// Callers that wait for their turn in one of them.
    pub waiting: usize,
    /// Threads with turns, or with a replaced history, that could not be saved, by name.
    pub unsaved: Vec<Arc<str>>,
}

/// What [`SessionStore::flush`] did.
#[derive(Debug, Default)]
#[must_use = "what is not saved is lost with the process"]
#[non_exhaustive]
pub struct FlushReport {
    /// Threads that were saved.
    pub saved: usize,
    /// Threads that could not be, and why.
    pub failed: Vec<(Arc<str>, SaveError)>,
}

impl SessionStore {
    /// The threads in this folder, which is made with the first of them. Nothing is read yet.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self::unchecked(root.into(), SessionPolicy::default())
    }

    /// With this policy.
    ///
    /// # Errors
    ///
    /// The policy is invalid.
    pub fn with_policy(
        root: impl Into<PathBuf>,
        policy: SessionPolicy,
    ) -> Result<Self, PolicyError> {
        policy.validate()?;
        Ok(Self::unchecked(root.into(), policy))
    }

    fn unchecked(root: PathBuf, policy: SessionPolicy) -> Self {
        Self(Arc::new(StoreState { root, policy, slots: Mutex::default() }))
    }

    /// The folder.
    pub fn root(&self) -> &Path {
        &self.0.root
    }

    /// Opens a thread for one turn: waits until nobody else has one in it, in the order in which callers came, and loads it when it
    /// is not open yet. A thread that does not exist has an empty history; its files are made with its first turn at the latest.
    ///
    /// Dropping the future gives the place in the queue up.
    ///
    /// # Errors
    ///
    /// The files can not be read, another process has them, or a limit of the policy is reached.
    pub async fn open(&self, thread: &str) -> Result<SessionThread, SessionError> {
        let (slot, permit) = self.enter(thread).await?;
        self.load(&slot, permit).await
    }

    /// The slot of the thread, and its permit.
    async fn enter(&self, thread: &str) -> Result<(Arc<Slot>, OwnedSemaphorePermit), SessionError> {
        let slot = self.slot(thread).await?;
        let most = self.0.policy.max_waiting;
        let permit = if let Ok(permit) = slot.permit.clone().try_acquire_owned() {
            permit
        } else {
            let _waiting = WaitingCaller::enter(&slot, most)
                .ok_or_else(|| SessionError::Busy { thread: thread.into(), waiting: most })?;
            let permit = slot.permit.clone().acquire_owned().await;
            permit.map_err(|_| SessionError::Interrupted)?
        };
        Ok((slot, permit))
    }

    async fn load(
        &self,
        slot: &Arc<Slot>,
        permit: OwnedSemaphorePermit,
    ) -> Result<SessionThread, SessionError> {
        let now = Instant::now();
        if !slot.is_open() {
            let loading = slot.clone();
            let opened = blocking(move || {
                let opened = loading.open(now)?;
                // What the files were behind: the turns of the log, or a history that was lost.
                Ok((opened, loading.save()))
            });
            let (was_opened, saved) = opened.await?.map_err(|error| open_error(slot, error))?;
            if was_opened && let Some(memory) = slot.memory() {
                let (head, report) = (memory.head, memory.report.clone());
                drop(memory);
                event::opened(&slot.thread, head.session, head.turn, &report);
            }
            report_saved(slot, &saved, &RecoveryLog::default());
        }
        match slot.memory() {
            Some(mut memory) => memory.used = now,
            None => return Err(SessionError::Interrupted),
        }
        Ok(SessionThread::new(slot.clone(), permit))
    }

    /// The slot of the thread, made if it has none. Closes others that are idle, and where there are too many, the one that was not
    /// used for longest.
    async fn slot(&self, thread: &str) -> Result<Arc<Slot>, SessionError> {
        loop {
            let closable;
            {
                let mut slots = self.0.slots.lock();
                let found = slots.get(thread).cloned();
                let has_room = found.is_some() || slots.len() < self.0.policy.max_open;
                let now = Instant::now();
                let is_idle = |used: Option<Instant>| {
                    used.is_some_and(|used| now.duration_since(used) > self.0.policy.idle)
                };
                closable = closable_slots(&slots, Some(thread), |used| !has_room || is_idle(used));
                if has_room {
                    let slot = found.unwrap_or_else(|| {
                        let name = Arc::<str>::from(thread);
                        let slot = Slot::new(&self.0.root, name.clone(), self.0.policy.keys);
                        slots.entry(name).or_insert_with(|| Arc::new(slot)).clone()
                    });
                    drop(slots);
                    for (slot, permit, _) in closable {
                        let store = self.clone();
                        tokio::task::spawn_blocking(move || store.close_slot(&slot, permit));
                    }
                    return Ok(slot);
                }
            }
            // Those that are not open yet, then those that were not used for longest.
            let oldest = closable.into_iter().min_by_key(|(_, _, used)| *used);
            let Some((slot, permit, _)) = oldest else {
                return Err(SessionError::TooManyOpen { open: self.0.policy.max_open });
            };
            let store = self.clone();
            blocking(move || store.close_slot(&slot, permit)).await?;
        }
    }

    /// Closes it, and forgets it unless somebody waits for it.
    fn close_slot(&self, slot: &Arc<Slot>, permit: OwnedSemaphorePermit) {
        let was_open = slot.close();
        let thread = slot.thread.clone();
        drop(permit);
        let mut slots = self.0.slots.lock();
        // The map's, and ours.
        if Arc::strong_count(slot) == 2 && !slot.is_open() {
            slots.remove(&thread);
        }
        drop(slots);
        if was_open {
            event::closed(&thread);
        }
    }

    /// Starts a new session, with an empty history, in the thread that this scope names; returns its number. The log keeps the turns
    /// of the session before. Waits until no turn runs in the thread.
    ///
    /// # Errors
    ///
    /// The scope names more or less than exactly one live session; or as [`open`](Self::open).
    pub async fn roll_over(&self, scope: &SessionScope) -> Result<u64, SessionError> {
        let thread = self.resolve(scope).await?;
        let mut open = self.open(&thread).await?;
        scope.check(&thread, open.session()).inspect_err(event::refused)?;
        Ok(open.roll_over().await)
    }

    /// The id of the one thread that this scope names.
    ///
    /// # Errors
    ///
    /// It names none, or several; or the folder can not be read.
    pub async fn resolve(&self, scope: &SessionScope) -> Result<String, SessionError> {
        let open: Vec<Arc<str>> = {
            let slots = self.0.slots.lock();
            slots.values().filter(|slot| slot.is_open()).map(|slot| slot.thread.clone()).collect()
        };
        let root = self.0.root.clone();
        let saved = blocking(move || inspect::threads(&root)).await??;
        let saved = saved.iter().map(|(thread, _)| thread.as_str());
        let found = scope.resolve(saved.chain(open.iter().map(AsRef::as_ref)));
        Ok(found.inspect_err(event::refused)?.to_owned())
    }

    /// Keeps a file that came with a message, and returns its path: written under a temporary name and renamed, so that there never
    /// is a part of one. Names are escaped as those of threads are. A file of this name is replaced.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open), and whatever the operating system says of the file.
    pub async fn attach(
        &self,
        thread: &str,
        name: &str,
        bytes: impl Into<Vec<u8>>,
    ) -> Result<PathBuf, SessionError> {
        self.open(thread).await?.attach(name, bytes).await
    }

    /// Saves what could not be saved before: for the end of the process, and whenever there may be space again.
    pub async fn flush(&self) -> FlushReport {
        let unsaved: Vec<Arc<Slot>> = {
            let slots = self.0.slots.lock();
            let unsaved =
                |slot: &&Arc<Slot>| slot.memory().is_some_and(|memory| !memory.is_saved());
            slots.values().filter(unsaved).cloned().collect()
        };
        let mut report = FlushReport::default();
        for slot in unsaved {
            let saving = slot.clone();
            let saved = match blocking(move || saving.save()).await {
                Ok(saved) => saved,
                Err(_) => Saved { error: Some(SaveError::Interrupted), ..Saved::default() },
            };
            report_saved(&slot, &saved, &RecoveryLog::default());
            match saved.error {
                Some(error) => report.failed.push((slot.thread.clone(), error)),
                None => report.saved += 1,
            }
        }
        report
    }

    /// Closes and unlocks every thread that is not in use and is saved. Threads open again when they are used.
    pub async fn close_idle(&self) {
        let closable = closable_slots(&self.0.slots.lock(), None, |_| true);
        for (slot, permit, _) in closable {
            let store = self.clone();
            let _ = blocking(move || store.close_slot(&slot, permit)).await;
        }
    }

    /// What is open.
    pub fn snapshot(&self) -> SessionSnapshot {
        let slots = self.0.slots.lock();
        let mut snapshot = SessionSnapshot::default();
        for slot in slots.values() {
            snapshot.open += usize::from(slot.is_open());
            snapshot.waiting += slot.waiting.load(std::sync::atomic::Ordering::Relaxed);
            if slot.is_unsaved() {
                snapshot.unsaved.push(slot.thread.clone());
            }
        }
        snapshot.unsaved.sort_unstable();
        snapshot
    }
}

impl fmt::Debug for SessionStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionStore")
            .field("root", &self.0.root)
            .field("policy", &self.0.policy)
            .field("state", &self.snapshot())
            .finish()
    }
}

/// The threads that nobody uses, but for this one, with their permits.
fn closable_slots(
    slots: &HashMap<Arc<str>, Arc<Slot>>,
    besides: Option<&str>,
    wanted: impl Fn(Option<Instant>) -> bool,
) -> Vec<(Arc<Slot>, OwnedSemaphorePermit, Option<Instant>)> {
    let closable = |slot: &Arc<Slot>| {
        let used = slot.used();
        // The map has one. Whoever has another uses it, or is about to.
        let is_free = Arc::strong_count(slot) == 1 && besides != Some(&*slot.thread);
        let permit = (is_free && wanted(used) && !slot.is_unsaved())
            .then(|| slot.permit.clone().try_acquire_owned().ok())?;
        Some((slot.clone(), permit?, used))
    };
    slots.values().filter_map(closable).collect()
}

fn open_error(slot: &Slot, error: OpenError) -> SessionError {
    let thread = slot.thread.clone();
    match error {
        OpenError::Store(source) if source.is_locked() => SessionError::Locked { thread, source },
        OpenError::Store(source) => SessionError::Unreadable { thread, source },
        OpenError::Foreign => {
            SessionError::Foreign { folder: slot.with_disk(|disk| disk.paths().folder.clone()) }
        }
    }
}

/// Reports how a save went.
pub(crate) fn report_saved(slot: &Slot, saved: &Saved, log: &RecoveryLog) {
    if let Some(error) = &saved.error {
        event::unsaved(&slot.thread, saved, error, log);
    } else if saved.late {
        event::saved_late(&slot.thread);
    }
}

/// Work that blocks.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, SessionError> {
    tokio::task::spawn_blocking(work).await.map_err(|_| SessionError::Interrupted)
}
