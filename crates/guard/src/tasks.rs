//! The tasks of one guard, each with its state.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use parking_lot::Mutex;
use steadfast_core::{CallContext, Keep, Keyed, RecoveryLog};
use tokio::time::Instant;

use crate::{
    Stop, TaskSnapshot, event,
    signature::Compiled,
    state::{TaskState, head},
};

/// Which task: by its name and, where several tenants share one guard, whose it is. Two tenants'
/// tasks of one name are two tasks.
///
/// A name alone, and a pair of tenant and name, will do wherever one is wanted:
///
/// ```
/// use steadfast_guard::SafetyGuard;
///
/// let guard = SafetyGuard::default();
/// assert!(!guard.extend("task 7"), "nobody knows it");
/// assert!(!guard.extend(("acme", "task 7")), "nor of that tenant");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TaskId<'a> {
    /// Whose it is, when that is known.
    pub tenant: Option<&'a str>,
    /// The task, or the session of which each turn of the user is one.
    pub name: &'a str,
}

impl<'a> TaskId<'a> {
    /// The task that a call with this context belongs to: the one it names, else its session.
    pub fn of(context: &'a CallContext) -> Option<Self> {
        let name = context.task().or_else(|| context.session())?;
        Some(Self { tenant: context.tenant(), name })
    }
}

impl<'a> From<&'a str> for TaskId<'a> {
    fn from(name: &'a str) -> Self {
        Self { tenant: None, name }
    }
}

impl<'a> From<&'a String> for TaskId<'a> {
    fn from(name: &'a String) -> Self {
        Self::from(name.as_str())
    }
}

impl<'a> From<(&'a str, &'a str)> for TaskId<'a> {
    fn from((tenant, name): (&'a str, &'a str)) -> Self {
        Self { tenant: Some(tenant), name }
    }
}

/// What all layers of one guard share.
#[derive(Debug)]
pub(crate) struct Tasks {
    pub(crate) c: Compiled,
    /// By a hash of the task's name and tenant, seeded anew in each process.
    pub(crate) keyed: Keyed<u64, Task>,
    /// The tool half sees the calls of named tasks one by one: histories need not be read.
    tool_half: AtomicBool,
    pub(crate) stops: AtomicU64,
}

/// One task.
#[derive(Debug)]
pub(crate) struct Task {
    tenant: Option<Box<str>>,
    name: Box<str>,
    pub(crate) state: Mutex<TaskState>,
}

/// The most that is kept of a task's name, in bytes, to be shown: it comes from outside.
const LONGEST: usize = 256;

impl Keep for Task {
    /// A stopped task that was forgotten would be one that runs again.
    fn keep(&self, _: Instant) -> bool {
        self.state.lock().stopped.is_some()
    }
}

impl Tasks {
    pub(crate) fn new(c: Compiled) -> Self {
        let keyed = Keyed::new(c.policy.tasks);
        Self { c, keyed, tool_half: AtomicBool::new(false), stops: AtomicU64::new(0) }
    }

    pub(crate) fn use_tool_half(&self) {
        if !self.has_tool_half() {
            self.tool_half.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn has_tool_half(&self) -> bool {
        self.tool_half.load(Ordering::Relaxed)
    }

    /// The task of that name, which begins now if it is new.
    pub(crate) fn task(&self, id: TaskId<'_>, now: Instant) -> Arc<Task> {
        let shown = |name: &str| head(name, LONGEST).into();
        self.keyed.get_or_insert_with(&self.c.hash(id), now, || Task {
            tenant: id.tenant.map(shown),
            name: shown(id.name),
            state: Mutex::new(TaskState::new(Some(now))),
        })
    }

    /// The task of that name, if it is known.
    pub(crate) fn get(&self, id: TaskId<'_>) -> Option<Arc<Task>> {
        self.keyed.get(&self.c.hash(id))
    }

    pub(crate) fn stopped(&self, task: TaskId<'_>, stop: &Stop, inside: bool, log: &RecoveryLog) {
        self.stops.fetch_add(1, Ordering::Relaxed);
        event::stopped(task, stop, inside, log);
    }
}

impl Task {
    pub(crate) fn id(&self) -> TaskId<'_> {
        TaskId { tenant: self.tenant.as_deref(), name: &self.name }
    }

    pub(crate) fn snapshot(&self, now: Instant) -> TaskSnapshot {
        let state = self.state.lock();
        TaskSnapshot {
            tenant: self.tenant.clone(),
            task: self.name.clone(),
            events: state.events,
            calls: state.calls,
            tools: state.by_tool(),
            elapsed: state.elapsed(now),
            stop: state.stopped(now),
        }
    }
}
