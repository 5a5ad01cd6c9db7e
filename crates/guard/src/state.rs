//! What the layers of one guard share: the tasks.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use steadfast_chat::ChatRequest;
use steadfast_core::{Keep, Keyed, RecoveryLog};
use tokio::time::Instant;

use crate::{
    Stop, TaskId, TaskSnapshot,
    counters::head,
    event,
    history::{self, From},
    ledger::Ledger,
    signature::Compiled,
};

/// What all layers of one guard share.
pub(crate) struct Shared {
    pub(crate) c: Compiled,
    /// By a hash of the task's name and tenant, seeded anew in each process.
    pub(crate) tasks: Keyed<u64, Task>,
    /// Calls are checked one by one: histories need not be read.
    by_hand: AtomicBool,
    stops: AtomicU64,
}

/// One task.
pub(crate) struct Task {
    tenant: Option<Box<str>>,
    name: Box<str>,
    pub(crate) book: Mutex<Book>,
}

/// What is known of one task.
#[derive(Debug)]
pub(crate) struct Book {
    /// Written call by call; only when it began, when histories are read.
    pub(crate) ledger: Ledger,
    /// Answers in the history before the task began; `None` before it was first seen.
    before: Option<usize>,
    /// What has come so far is not to be counted.
    pub(crate) extended: bool,
    /// What the history last said: events, calls and the stop.
    pub(crate) read: Option<(u64, u64, Option<Stop>)>,
}

/// The most that is kept of a task's name, in bytes, to be shown: it comes from outside.
const LONGEST: usize = 256;

fn shown(name: &str) -> Box<str> {
    head(name, LONGEST).into()
}

impl Keep for Task {
    /// A stopped task that was forgotten would be one that runs again.
    fn keep(&self, now: Instant) -> bool {
        self.book.lock().ledger.stopped(now).is_some()
    }
}

impl Shared {
    pub(crate) fn new(c: Compiled, tasks: Keyed<u64, Task>) -> Self {
        Self { c, tasks, by_hand: AtomicBool::new(false), stops: AtomicU64::new(0) }
    }

    pub(crate) fn stops(&self) -> u64 {
        self.stops.load(Ordering::Relaxed)
    }

    pub(crate) fn key(&self, task: TaskId<'_>) -> u64 {
        self.c.hash(task)
    }

    pub(crate) fn by_hand(&self) {
        if !self.is_by_hand() {
            self.by_hand.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn is_by_hand(&self) -> bool {
        self.by_hand.load(Ordering::Relaxed)
    }

    pub(crate) fn task(&self, id: TaskId<'_>, now: Instant) -> Arc<Task> {
        let make = || Task {
            tenant: id.tenant.map(shown),
            name: shown(id.name),
            book: Mutex::new(Book {
                ledger: Ledger::new(Some(now)),
                before: None,
                extended: false,
                read: None,
            }),
        };
        self.tasks.get_or_insert_with(&self.key(id), now, make)
    }

    pub(crate) fn stopped(&self, task: TaskId<'_>, stop: &Stop, inside: bool, log: &RecoveryLog) {
        self.stops.fetch_add(1, Ordering::Relaxed);
        event::stopped(task, stop, inside, log);
    }
}

impl Book {
    /// From where on `request` tells of this task; `per_turn` when each turn of the user is one.
    pub(crate) fn begins(&mut self, request: &ChatRequest, per_turn: bool) -> From {
        let (all, before_turn) = history::answers(request);
        let before = match self.before {
            _ if self.extended => all,
            Some(before) if before <= all && per_turn => before.max(before_turn),
            Some(before) if before <= all => before,
            // First seen, or the conversation was shortened meanwhile.
            _ => before_turn,
        };
        self.extended = false;
        self.before = Some(before);
        From::Answer(before)
    }

    /// The user has spoken, and with that begins another task.
    pub(crate) fn anew(&mut self, now: Instant) {
        self.ledger = Ledger::new(Some(now));
        (self.before, self.extended, self.read) = (None, false, None);
    }

    pub(crate) fn was_read(&mut self, events: u64, calls: u64, stop: Option<Stop>) {
        self.read = Some((events, calls, stop));
    }
}

impl Task {
    pub(crate) fn id(&self) -> TaskId<'_> {
        TaskId { tenant: self.tenant.as_deref(), name: &self.name }
    }

    pub(crate) fn snapshot(&self, now: Instant) -> TaskSnapshot {
        let book = self.book.lock();
        let counters = &book.ledger.counters;
        let (events, calls, stop) = match &book.read {
            Some((events, calls, stop)) => (*events, *calls, stop.clone()),
            None => (counters.events, counters.calls, book.ledger.stopped(now)),
        };
        let (tools, elapsed) = (counters.by_tool(), counters.elapsed(now));
        let (tenant, task) = (self.tenant.clone(), self.name.clone());
        TaskSnapshot { tenant, task, events, calls, tools, elapsed, stop }
    }

    /// When the task's time is over, as it stands now.
    pub(crate) fn until(&self, c: &Compiled) -> Option<Instant> {
        let limit = c.policy.limits.time?;
        self.book.lock().ledger.counters.began?.checked_add(limit)
    }
}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task").field("id", &self.id()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("tasks", &self.tasks.len()).finish_non_exhaustive()
    }
}
