//! The registry of runs: in memory, and on disk before a run starts.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use steadfast_core::{Failover, Failure, Reason, Retry, time::later};
use steadfast_store::StoreError;
use tokio::{
    runtime::Handle,
    sync::{Notify, oneshot},
    time::Instant,
};

use crate::{
    AgentRun, GhostPolicy, NoticeSink, RunId, RunNotice, RunRecord, RunState,
    disk::Disk,
    event,
    guard::RunGuard,
    notice::BoxedSink,
    panic::{Caught, caught},
    record::{RunEnd, wall_ms},
    runs::{Ended, Runs},
};

/// How long after a failed write the next one is tried. Space returns when somebody deletes something, which takes minutes; a try costs
/// next to nothing.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// The longest time a sink may take for one notice: the parent's 30 s, the direct way and a letter, and room.
const NOTICE_LIMIT: Duration = Duration::from_secs(120);

/// The longest time for the last write.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

/// Every run and where it is. Cheap to clone; all clones are one registry.
///
/// * A run is registered before it starts. With [`open`](Self::open) that means on disk, and what a crash leaves is found by a
///   [`GhostSweep`](crate::GhostSweep) of the next process.
/// * It ends in exactly one of five states. What comes after that is recorded as late and announced to nobody.
/// * Failed, given up by the watchdog, or swept: each sends one notice to the [sink](Self::with_notices), once the state is on disk.
/// * A disk that is full or broken stops no run. The registry then is kept in memory, a WARN event reports that, and all is written
///   when that succeeds again.
///
/// The last 1,024 ended runs are kept.
#[derive(Clone)]
pub struct RunRegistry(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    /// Locked before `state` where both are.
    disk: Mutex<Option<Disk>>,
    is_durable: bool,
    runtime: Option<Handle>,
    sink: OnceLock<BoxedSink>,
    /// A run has ended, or a notice was sent or could not be.
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    runs: Runs,
    /// Those who wait for their registration to be on disk.
    waiters: Vec<oneshot::Sender<()>>,
    is_writing: bool,
    will_retry: bool,
    /// The last write has failed.
    is_unwritten: bool,
    is_stopping: bool,
    counts: RunCounts,
}

/// How many runs have ended in which way, since the registry was opened or reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunCounts {
    /// Registered.
    pub started: u64,
    /// Ended with a result.
    pub completed: u64,
    /// Ended with a failure or a panic.
    pub failed: u64,
    /// Dropped or cancelled.
    pub cancelled: u64,
    /// Given up by the watchdog.
    pub watchdog_timeout: u64,
    /// Found by the sweep.
    pub ghost_sweep: u64,
    /// Results that came after that.
    pub late: u64,
    /// Notices that were handed on.
    pub notices: u64,
}

/// A registry at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RegistrySnapshot {
    /// How many runs are marked as running, those of an earlier process included.
    pub running: usize,
    /// How many runs are known, the ended ones included.
    pub known: usize,
    /// How many records are not on disk yet; of a registry in memory, all.
    pub unwritten: usize,
    /// The last write has failed.
    pub disk_failed: bool,
    /// It takes no new runs.
    pub stopping: bool,
    /// What has happened so far.
    pub counts: RunCounts,
}

impl State {
    /// No run of this process runs, and no notice is being sent or will be without a sweep.
    fn is_idle(&self) -> bool {
        self.runs.own_running() == 0 && !self.runs.has_notices_to_send()
    }
}

impl RunRegistry {
    /// A registry that does not outlive the process.
    pub fn in_memory() -> Self {
        Self::of(State::default(), None, Handle::try_current().ok())
    }

    fn of(state: State, disk: Option<Disk>, runtime: Option<Handle>) -> Self {
        Self(Arc::new(Shared {
            state: Mutex::new(state),
            is_durable: disk.is_some(),
            disk: Mutex::new(disk),
            runtime,
            sink: OnceLock::new(),
            changed: Notify::new(),
        }))
    }

    /// The registry in this folder, which is made if it does not exist. To be called inside of tokio's runtime; the file is read on a thread for
    /// blocking work.
    ///
    /// Damaged lines are set aside beside the file and counted; the rest is read.
    ///
    /// # Errors
    ///
    /// [`StoreError::is_locked`] when another process has this registry open; whatever the operating system reports.
    pub async fn open(folder: impl Into<PathBuf>) -> Result<Self, StoreError> {
        let folder = folder.into();
        let now = Instant::now();
        let reading = tokio::task::spawn_blocking(move || {
            let mut runs = Runs::default();
            let wall = wall_ms();
            let (disk, repair) = Disk::open(&folder, |record, ordinal| {
                runs.read(record, ordinal, now, wall);
            })?;
            runs.loaded();
            event::registry_opened(repair, runs.running());
            Ok((disk, runs))
        });
        let (disk, runs) = match reading.await {
            Ok(read) => read?,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            // The runtime is being shut down, and whoever waits here with it.
            Err(_) => std::future::pending().await,
        };
        let state = State { runs, ..State::default() };
        Ok(Self::of(state, Some(disk), Some(Handle::current())))
    }

    /// The runs of the registry in this folder, in the order of their names, without a lock while another process may be
    /// writing it. Changes nothing; blocks. A folder without a registry has none.
    ///
    /// # Errors
    ///
    /// The operating system's error.
    pub fn read(folder: impl AsRef<Path>) -> Result<Vec<RunRecord>, StoreError> {
        match Disk::read(folder.as_ref()) {
            Ok(runs) => Ok(runs.into_values().collect()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Sends the notices to this sink. The first one given counts. Those that an earlier process left are sent with the next sweep.
    #[must_use]
    pub fn with_notices(self, sink: impl NoticeSink) -> Self {
        // A second sink would send what the first one has sent.
        let _ = self.0.sink.set(BoxedSink::new(sink));
        self
    }

    /// What is known of this run.
    pub fn get(&self, id: &RunId) -> Option<RunRecord> {
        self.0.state.lock().runs.get(id).cloned()
    }

    /// What is known of all runs, in the order of their names.
    pub fn runs(&self) -> Vec<RunRecord> {
        let mut runs: Vec<_> = self.0.state.lock().runs.records().cloned().collect();
        runs.sort_unstable_by(|one, other| one.id.cmp(&other.id));
        runs
    }

    /// The registry at this moment.
    pub fn snapshot(&self) -> RegistrySnapshot {
        let state = self.0.state.lock();
        RegistrySnapshot {
            running: state.runs.running(),
            known: state.runs.len(),
            unwritten: state.runs.changed(),
            disk_failed: state.is_unwritten,
            stopping: state.is_stopping,
            counts: state.counts,
        }
    }

    /// Sets the counters to zero. Runs are kept.
    pub fn reset(&self) {
        self.0.state.lock().counts = RunCounts::default();
    }

    /// Cancels a run: it is marked at once, and its future ends with a failure when it is polled next. False when it does not run.
    pub fn cancel(&self, id: &RunId) -> bool {
        let handle = self.0.state.lock().runs.handle(id);
        let first = self.end(id, RunEnd::of(RunState::Cancelled), false) == Ended::First;
        if first {
            event::run_cancelled(id);
            if let Some(handle) = handle {
                handle.give_up();
            }
        }
        first
    }

    /// Records the result of a run that came by another way than its future: of a task that went on after its run was given up. Whether
    /// it was the run's terminal state; if not, it is late and nobody is to announce it.
    pub fn report(&self, id: &RunId, result: Result<(), Reason>) -> bool {
        let end = result.map_or_else(RunEnd::failed, |()| RunEnd::of(RunState::Completed));
        self.end(id, end, true) == Ended::First
    }

    /// Takes no new runs from now on. What is dropped from now on was interrupted, not cancelled: the next process sweeps it, and whoever waits
    /// for it gets a notice.
    pub fn stop(&self) {
        self.0.state.lock().is_stopping = true;
    }

    /// Stops, waits for the runs and for notices that are being sent up to `limit`, marks the runs that still run for the sweep of the next
    /// process, writes all that, and unlocks the folder. How many runs were interrupted. A notice that was not sent in time is sent by the
    /// next process.
    ///
    /// Dropped before, it has stopped the registry and nothing else; a further call does the rest.
    pub async fn close(&self, limit: Duration) -> usize {
        self.stop();
        let deadline = later(Instant::now(), limit);
        loop {
            let mut changed = std::pin::pin!(self.0.changed.notified());
            changed.as_mut().enable();
            if self.0.state.lock().is_idle() {
                break;
            }
            if tokio::time::timeout_at(deadline, changed).await.is_err() {
                break;
            }
        }
        let interrupted = {
            let mut state = self.0.state.lock();
            state.runs.interrupt();
            state.runs.interrupted()
        };
        if self.0.is_durable {
            let shared = self.0.clone();
            let closing = tokio::task::spawn_blocking(move || {
                shared.write();
                shared.disk.lock().take();
            });
            // A disk that hangs does not keep the process. What it has not taken looks like a crash to the next one.
            let _ = tokio::time::timeout(CLOSE_LIMIT, closing).await;
        }
        event::registry_closed(interrupted);
        interrupted
    }

    /// Holds the disk, as one that hangs.
    #[cfg(test)]
    pub(crate) fn hang(&self) -> impl Sized + '_ {
        self.0.disk.lock()
    }

    /// Registers a run. The receiver is ready when it is on disk, or when that has failed; there is none in memory.
    pub(crate) fn start<T>(
        &self,
        run: &AgentRun<T>,
        now: Instant,
    ) -> Result<(RunGuard, Option<oneshot::Receiver<()>>), Failure> {
        let record = RunRecord::of(run, wall_ms());
        let waits = {
            let mut state = self.0.state.lock();
            if state.is_stopping {
                return Err(refused("the service is being restarted and starts no new run"));
            }
            if !state.runs.start(record, run.handle().clone(), now) {
                return Err(refused("a run of this name is registered already"));
            }
            state.counts.started += 1;
            self.0.is_durable.then(|| {
                let (sender, receiver) = oneshot::channel();
                state.waiters.push(sender);
                receiver
            })
        };
        self.0.write_soon();
        Ok((RunGuard::new(self.clone(), run.handle().clone(), event::span(run)), waits))
    }

    /// A run has ended; `is_result`: it has a result, which counts as late when the run had ended before.
    pub(crate) fn end(&self, id: &RunId, end: RunEnd, is_result: bool) -> Ended {
        let announces = self.0.sink.get().is_some();
        let (ended, dropped) = {
            let mut state = self.0.state.lock();
            if !is_result && state.runs.get(id).is_none_or(|record| record.state.is_terminal()) {
                return Ended::Unknown;
            }
            let ended = state.runs.end(id, end, announces, wall_ms());
            let counts = &mut state.counts;
            match ended {
                Ended::First => match end.state {
                    RunState::Running => {}
                    RunState::Completed => counts.completed += 1,
                    RunState::Failed => counts.failed += 1,
                    RunState::Cancelled => counts.cancelled += 1,
                    RunState::WatchdogTimeout => counts.watchdog_timeout += 1,
                    RunState::GhostSweep => counts.ghost_sweep += 1,
                },
                Ended::Late(_) | Ended::Unknown => counts.late += 1,
            }
            (ended, state.runs.drop_notice())
        };
        if let Ended::Late(state) = ended {
            event::late_result(id, state, end.state);
        }
        if let Some(dropped) = dropped {
            event::notice_dropped(&dropped);
        }
        self.0.changed.notify_waiters();
        self.0.after_change();
        ended
    }

    /// A run of this process was dropped before its end.
    pub(crate) fn dropped(&self, id: &RunId) {
        let is_stopping = {
            let mut state = self.0.state.lock();
            if state.is_stopping {
                state.runs.interrupt_one(id);
            }
            state.is_stopping
        };
        if is_stopping {
            self.0.changed.notify_waiters();
            self.0.after_change();
        } else {
            self.end(id, RunEnd::of(RunState::Cancelled), false);
        }
    }

    /// Ends what runs for longer than it may, and sends again what nobody has confirmed. How many runs there were.
    pub(crate) fn sweep(&self, policy: &GhostPolicy) -> usize {
        let ghosts = {
            let state = self.0.state.lock();
            if state.is_stopping {
                return 0;
            }
            state.runs.ghosts(policy.grace, policy.orphans_at_once, Instant::now())
        };
        let mut swept = 0;
        for ghost in ghosts {
            // It may have ended meanwhile.
            if self.end(&ghost.id, RunEnd::of(RunState::GhostSweep), false) == Ended::First {
                event::ghost_swept(&ghost.id, ghost.age, ghost.handle.is_none());
                swept += 1;
                if let Some(handle) = ghost.handle {
                    handle.give_up();
                }
            }
        }
        self.0.send_notices(true);
        swept
    }
}

fn refused(message: &'static str) -> Failure {
    Failure::refused_fixed(Reason::Budget, message)
        .with_retry(Retry::No)
        .with_failover(Failover::Never)
}

impl Shared {
    fn after_change(self: &Arc<Self>) {
        match self.is_durable {
            true => self.write_soon(),
            false => self.send_notices(false),
        }
    }

    /// Writes on another thread.
    fn write_soon(self: &Arc<Self>) {
        let Some(runtime) = self.runtime.as_ref().filter(|_| self.is_durable) else { return };
        if std::mem::replace(&mut self.state.lock().is_writing, true) {
            return;
        }
        let writing = Writing { shared: self.clone(), is_done: false };
        // tokio panics when there can be no more threads, and this may be called by a drop.
        let _ = caught(|| runtime.spawn_blocking(move || writing.run()));
    }

    /// Writes what has changed, until nothing has. Blocks.
    fn write(self: &Arc<Self>) {
        loop {
            // Before the records are taken: a later state is written later.
            let mut disk = self.disk.lock();
            let (records, mut waiters) = {
                let mut state = self.state.lock();
                if !state.runs.has_changed() && state.waiters.is_empty() || disk.is_none() {
                    state.is_writing = false;
                    state.waiters.clear();
                    return;
                }
                (state.runs.take_changed(), std::mem::take(&mut state.waiters))
            };
            let Some(disk) = disk.as_mut() else { return };
            let written = disk.append(&records);
            let (report, history) = {
                let mut state = self.state.lock();
                let was_unwritten = std::mem::replace(&mut state.is_unwritten, written.is_err());
                match &written {
                    Ok(first) => {
                        state.runs.written(&records, *first);
                        let bloated = disk.is_bloated(state.runs.len());
                        (was_unwritten, bloated.then(|| state.runs.on_disk()))
                    }
                    Err(_) => {
                        state.runs.not_written(&records);
                        state.is_writing = false;
                        // Those who came meanwhile have nobody to wait for any more.
                        waiters.append(&mut state.waiters);
                        (!was_unwritten, None)
                    }
                }
            };
            // Dropped, they wake those who wait: a run goes on whether it was written or not.
            drop(waiters);
            self.send_notices(false);
            match written {
                Ok(_) if report => event::registry_written(records.len()),
                Ok(_) => {}
                Err(error) => {
                    if report {
                        event::registry_unwritten(&error, records.len());
                    }
                    self.retry_later();
                    return;
                }
            }
            if let Some(history) = history
                && let Err(error) = disk.compact(&history)
            {
                event::registry_not_compacted(&error);
            }
        }
    }

    fn retry_later(self: &Arc<Self>) {
        let Some(runtime) = &self.runtime else { return };
        if std::mem::replace(&mut self.state.lock().will_retry, true) {
            return;
        }
        let shared: Weak<Self> = Arc::downgrade(self);
        runtime.spawn(async move {
            tokio::time::sleep(RETRY_AFTER).await;
            if let Some(shared) = shared.upgrade() {
                shared.state.lock().will_retry = false;
                shared.write_soon();
            }
        });
    }

    /// `again`: those too that could not be sent before.
    fn send_notices(self: &Arc<Self>, again: bool) {
        let Some(sink) = self.sink.get() else { return };
        let Some(runtime) = self.runtime.clone().or_else(|| Handle::try_current().ok()) else {
            return;
        };
        let notices = {
            let mut state = self.state.lock();
            // A disk that fails keeps nobody from hearing of it.
            let only_written = self.is_durable && !state.is_unwritten;
            state.runs.take_notices(only_written, again)
        };
        for notice in notices {
            runtime.spawn(self.clone().send(sink.clone(), notice));
        }
    }

    async fn send(self: Arc<Self>, sink: BoxedSink, notice: RunNotice) {
        let (id, kind) = (notice.run.clone(), notice.kind);
        let mut sending = Caught::new(async move { sink.send(notice).await });
        let sent = tokio::time::timeout(NOTICE_LIMIT, &mut sending).await;
        drop(sending);
        let result = match sent {
            Ok(Ok(Ok(via))) => Ok(via),
            Ok(Ok(Err(failure))) => Err(event::chain(&failure)),
            Ok(Err(panicked)) => Err(panicked.to_string()),
            Err(_) => Err("it took longer than two minutes".to_owned()),
        };
        let first = {
            let mut state = self.state.lock();
            let first = state.runs.notified(&id, result.as_ref().ok().copied());
            state.counts.notices += u64::from(first);
            first
        };
        match result {
            Ok(via) if first => event::notice_sent(&id, kind, via),
            Ok(_) => {}
            Err(error) => event::notice_failed(&id, kind, &error),
        }
        self.after_change();
        self.changed.notify_waiters();
    }
}

/// A write that is queued or under way.
struct Writing {
    shared: Arc<Shared>,
    is_done: bool,
}

impl Writing {
    fn run(mut self) {
        self.shared.write();
        self.is_done = true;
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        // The runtime has dropped the task instead of running it, or it has panicked.
        if !self.is_done {
            let mut state = self.shared.state.lock();
            state.is_writing = false;
            state.waiters.clear();
        }
    }
}

impl fmt::Debug for RunRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunRegistry")
            .field("is_durable", &self.0.is_durable)
            .field("snapshot", &self.snapshot())
            .finish_non_exhaustive()
    }
}
