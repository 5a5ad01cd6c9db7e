//! The tasks of one guard, and their state.

use std::sync::{
    Arc, LazyLock,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use parking_lot::Mutex;
use steadfast_core::{CallContext, Keep, Keyed, RecoveryLog};
use tokio::time::Instant;

use crate::{
    SafetyStop, TaskSnapshot,
    data::AUTOMATIC_MESSAGES,
    event,
    signature::Compiled,
    state::{TaskState, head},
};

/// Identifies a task: by its name and, where several tenants share one guard, its tenant. Tasks of two
/// tenants with one name are different tasks.
///
/// A name alone, or a pair of tenant and name, can be used instead:
///
/// ```
/// use steadfast_guard::SafetyGuardHandle;
///
/// let guard = SafetyGuardHandle::default();
/// assert!(!guard.extend("task 7"), "there is no such task");
/// assert!(!guard.extend(("acme", "task 7")), "nor for that tenant");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TaskId<'a> {
    /// The tenant, when that is known.
    pub tenant: Option<&'a str>,
    /// The task, or the session, of which each turn of the user is a task.
    pub name: &'a str,
}

impl<'a> TaskId<'a> {
    /// The task of a call with this context: the named task, else its session.
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

/// A guard's policy, and its tasks.
#[derive(Debug)]
pub(crate) struct Tasks {
    pub(crate) c: Compiled,
    shared: Arc<SharedTasks>,
}

/// What is known of tasks; guards of different policies can share it.
#[derive(Debug)]
struct SharedTasks {
    /// By a hash of the task's name and tenant, with a random seed.
    keyed: Keyed<u64, Task>,
    /// The tool layer counts the calls of tasks and sessions: histories need not be read.
    tool_layer: AtomicBool,
    stops: AtomicU64,
}

/// One task.
#[derive(Debug)]
pub(crate) struct Task {
    /// A hash of its tenant.
    owner: u64,
    tenant: Option<Box<str>>,
    name: Box<str>,
    pub(crate) state: Mutex<TaskState>,
}

/// How much of a task's name is kept for display, in bytes, since callers choose it.
const LONGEST: usize = 256;

impl Keep for Task {
    /// A stopped task would run again if it were evicted.
    fn keep(&self, _: Instant) -> bool {
        self.state.lock().stopped.is_some()
    }

    /// A tenant that names many tasks does not make another's run again.
    fn owner(&self) -> u64 {
        self.owner
    }
}

impl Tasks {
    pub(crate) fn new(c: Compiled) -> Self {
        // Read now, and not while a call waits.
        LazyLock::force(&AUTOMATIC_MESSAGES);
        let keyed = Keyed::new(c.policy.tasks);
        let (tool_layer, stops) = (AtomicBool::new(false), AtomicU64::new(0));
        Self { c, shared: Arc::new(SharedTasks { keyed, tool_layer, stops }) }
    }

    /// The same policy with the tasks of `other`.
    pub(crate) fn sharing(&self, other: &Self) -> Self {
        let c = self.c.hashing_as(&other.c);
        other.shared.keyed.set_policy(c.policy.tasks);
        Self { c, shared: other.shared.clone() }
    }

    pub(crate) fn keyed(&self) -> &Keyed<u64, Task> {
        &self.shared.keyed
    }

    /// How many stops there have been.
    pub(crate) fn stops(&self) -> u64 {
        self.shared.stops.load(Ordering::Relaxed)
    }

    pub(crate) fn set_tool_layer(&self) {
        if !self.has_tool_layer() {
            self.shared.tool_layer.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn has_tool_layer(&self) -> bool {
        self.shared.tool_layer.load(Ordering::Relaxed)
    }

    /// The task of that name, which begins now if it is new.
    pub(crate) fn task(&self, id: TaskId<'_>, now: Instant) -> Arc<Task> {
        let shown = |name: &str| head(name, LONGEST).into();
        self.shared.keyed.get_or_insert_with(&self.c.hash(id), now, || Task {
            owner: self.c.hash(id.tenant),
            tenant: id.tenant.map(shown),
            name: shown(id.name),
            // Until a request shows that it is a session.
            state: Mutex::new(TaskState::new(Some(now), true)),
        })
    }

    /// The task of that name, if it is known.
    pub(crate) fn get(&self, id: TaskId<'_>) -> Option<Arc<Task>> {
        self.shared.keyed.get(&self.c.hash(id))
    }

    pub(crate) fn stopped(
        &self,
        task: TaskId<'_>,
        stop: &SafetyStop,
        inside: bool,
        log: &RecoveryLog,
    ) {
        self.shared.stops.fetch_add(1, Ordering::Relaxed);
        event::stopped(task, stop, inside, log);
    }
}

impl Task {
    pub(crate) fn id(&self) -> TaskId<'_> {
        TaskId { tenant: self.tenant.as_deref(), name: &self.name }
    }

    pub(crate) fn snapshot(&self, c: &Compiled, now: Instant) -> TaskSnapshot {
        let state = self.state.lock();
        TaskSnapshot {
            tenant: self.tenant.clone(),
            task: self.name.clone(),
            events: state.events,
            calls: state.calls,
            tools: state.by_tool(),
            elapsed: state.elapsed(now).unwrap_or_default(),
            stop: state.stopped(c, now),
        }
    }
}
