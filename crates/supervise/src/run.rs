//! A run of an agent, and the handle by which its children are its own.

use std::{fmt, num::NonZeroU32, sync::Arc, task::Waker, time::Duration};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use steadfast_core::{
    Call, CallContext, Deadline,
    time::{millis, wall},
};
use tokio::time::Instant;

use crate::clock::RunClock;

/// The name of a run, unique over restarts.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RunId(Arc<str>);

impl RunId {
    /// A new name: the time in milliseconds, then 64 random bits, both in hexadecimal digits. Sorted, they are in the order of time.
    pub fn random() -> Self {
        let now = wall().duration_since(std::time::UNIX_EPOCH).map_or(0, millis);
        Self(format!("{now:012x}-{:016x}", fastrand::u64(..)).into())
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for RunId {
    fn from(name: &str) -> Self {
        Self(name.into())
    }
}

impl From<String> for RunId {
    fn from(name: String) -> Self {
        Self(name.into())
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

/// One run of an agent: the request of a service below a [`WatchdogLayer`](crate::WatchdogLayer).
///
/// A clone is another run: it has a name of its own. A run inside a run is made by [`child`](Self::child), so that its parent is not
/// taken for dead while it waits for it.
///
/// ```
/// use std::num::NonZeroU32;
/// use steadfast_supervise::AgentRun;
///
/// let run = AgentRun::new("find the bug").with_max_steps(NonZeroU32::new(20)).with_destination("slack:C01");
/// let part = run.child("read the log");
/// assert_eq!(part.parent().unwrap().id(), run.id());
/// assert_eq!(part.destination(), Some("slack:C01"));
/// ```
pub struct AgentRun<T> {
    /// What the agent is to do.
    pub input: T,
    /// The context of its calls: tenant, agent, task, session, deadline, recovery log.
    pub context: CallContext,
    max_steps: Option<NonZeroU32>,
    destination: Option<Arc<str>>,
    handle: RunHandle,
}

impl<T> AgentRun<T> {
    /// A run without a parent. In a turn, give it [the turn's context](Self::with_context): its caller, its recovery log, and its deadline, beyond
    /// which the run does not last.
    pub fn new(input: T) -> Self {
        Self::of(RunHandle::new(RunId::random(), None), input)
    }

    fn of(handle: RunHandle, input: T) -> Self {
        let context = CallContext::new();
        Self { input, context, max_steps: None, destination: None, handle }
    }

    /// A run that this one waits for: on behalf of the same caller, with the same recovery log and destination, and with a deadline
    /// that is not later.
    pub fn child<U>(&self, input: U) -> AgentRun<U> {
        let mut context = self.context.clone();
        (context.target, context.routed, context.preference) = (None, None, None);
        (context.attempts, context.alternatives) = (0, 0);
        if let Some(deadline) = self.handle.deadline() {
            context = context.with_deadline(deadline);
        }
        let handle = RunHandle::new(RunId::random(), Some(self.handle.clone()));
        let destination = self.destination.clone();
        AgentRun { context, destination, ..AgentRun::of(handle, input) }
    }

    /// With this name in place of a random one. A name that the registry has already is refused.
    #[must_use]
    pub fn with_id(mut self, id: impl Into<RunId>) -> Self {
        self.handle = RunHandle::new(id.into(), self.handle.parent().cloned());
        self
    }

    /// With this context.
    #[must_use]
    pub fn with_context(self, context: CallContext) -> Self {
        Self { context, ..self }
    }

    /// With this number of steps, by which its time is limited. `None`: the number is not known.
    #[must_use]
    pub fn with_max_steps(self, max_steps: Option<NonZeroU32>) -> Self {
        Self { max_steps, ..self }
    }

    /// With the channel, in the words of whoever delivers, that hears of it when the run does not succeed.
    #[must_use]
    pub fn with_destination(self, destination: impl Into<Arc<str>>) -> Self {
        Self { destination: Some(destination.into()), ..self }
    }

    /// Its name.
    pub fn id(&self) -> &RunId {
        self.handle.id()
    }

    /// How many steps it may make.
    pub const fn max_steps(&self) -> Option<NonZeroU32> {
        self.max_steps
    }

    /// The channel for its notice.
    pub fn destination(&self) -> Option<&str> {
        self.destination.as_deref()
    }

    /// The run that waits for it.
    pub fn parent(&self) -> Option<&RunHandle> {
        self.handle.parent()
    }

    /// A handle to it that outlives the request.
    pub const fn handle(&self) -> &RunHandle {
        &self.handle
    }

    /// The same run with another input.
    pub fn map<U>(self, map: impl FnOnce(T) -> U) -> AgentRun<U> {
        let Self { input, context, max_steps, destination, handle } = self;
        AgentRun { input: map(input), context, max_steps, destination, handle }
    }
}

impl<T: Clone> Clone for AgentRun<T> {
    /// Another run of the same input, with a name of its own.
    fn clone(&self) -> Self {
        Self {
            input: self.input.clone(),
            context: self.context.clone(),
            max_steps: self.max_steps,
            destination: self.destination.clone(),
            handle: RunHandle::new(RunId::random(), self.parent().cloned()),
        }
    }
}

impl<T> Call for AgentRun<T> {
    fn context(&self) -> &CallContext {
        &self.context
    }

    fn context_mut(&mut self) -> &mut CallContext {
        &mut self.context
    }
}

impl<T> fmt::Debug for AgentRun<T> {
    /// Without the input, which is the user's.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentRun")
            .field("id", self.id())
            .field("parent", &self.parent().map(RunHandle::id))
            .field("max_steps", &self.max_steps)
            .finish_non_exhaustive()
    }
}

/// A run, seen from outside: who it is, until when it may run, whether it lives.
#[derive(Clone)]
pub struct RunHandle(Arc<RunShared>);

struct RunShared {
    id: RunId,
    parent: Option<RunHandle>,
    state: Mutex<Liveness>,
}

#[derive(Default)]
struct Liveness {
    phase: Phase,
    children: Vec<RunHandle>,
    /// Of the task that polls the run.
    waker: Option<Waker>,
    /// Somebody else has ended it in the registry.
    given_up: bool,
}

#[derive(Default)]
enum Phase {
    #[default]
    Waiting,
    Running(RunClock),
    Ended,
}

/// What the watchdog knows of a run at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Due {
    pub(crate) at: Instant,
    pub(crate) elapsed: Duration,
    pub(crate) spared: Duration,
}

impl RunHandle {
    fn new(id: RunId, parent: Option<RunHandle>) -> Self {
        Self(Arc::new(RunShared { id, parent, state: Mutex::default() }))
    }

    /// Its name.
    pub fn id(&self) -> &RunId {
        &self.0.id
    }

    /// The run that waits for it.
    pub fn parent(&self) -> Option<&RunHandle> {
        self.0.parent.as_ref()
    }

    /// The latest moment at which it ends, whatever its children do; `None` while it does not run.
    pub fn deadline(&self) -> Option<Deadline> {
        match self.0.state.lock().phase {
            Phase::Running(clock) => Some(Deadline::at(clock.hard())),
            _ => None,
        }
    }

    /// Whether it runs, and its own deadline has not passed.
    pub fn is_live(&self) -> bool {
        self.is_live_at(Instant::now())
    }

    fn is_live_at(&self, now: Instant) -> bool {
        self.due(now).is_some_and(|due| due.at > now)
    }

    /// Whether it has run.
    pub fn is_ended(&self) -> bool {
        matches!(self.0.state.lock().phase, Phase::Ended)
    }

    /// It runs from `now` on, and its parent is spared as long as it does.
    pub(crate) fn start(&self, now: Instant, budget: Duration, hard: Instant) {
        self.0.state.lock().phase = Phase::Running(RunClock::new(now, budget, hard));
        if let Some(parent) = self.parent() {
            let mut state = parent.0.state.lock();
            if let Phase::Running(clock) = &mut state.phase {
                clock.waits(true, now);
                state.children.push(self.clone());
            }
        }
    }

    /// It does not run any more. The second call does nothing.
    pub(crate) fn end(&self, now: Instant) {
        let left = {
            let mut state = self.0.state.lock();
            let running = matches!(state.phase, Phase::Running(_));
            state.phase = Phase::Ended;
            running.then(|| (state.waker.take(), std::mem::take(&mut state.children)))
        };
        // Dropped after the lock is released: a waker and a handle of others can do anything.
        let Some(left) = left else { return };
        drop(left);
        let Some(parent) = self.parent() else { return };
        let waker = {
            let mut state = parent.0.state.lock();
            state.children.retain(|child| !Arc::ptr_eq(&child.0, &self.0));
            let waits = !state.children.is_empty();
            if let Phase::Running(clock) = &mut state.phase {
                clock.waits(waits, now);
            }
            // Its deadline may be earlier now.
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Ended by the sweep: the task that polls it, if any, is to stop.
    pub(crate) fn give_up(&self) {
        let waker = {
            let mut state = self.0.state.lock();
            state.given_up = true;
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub(crate) fn is_given_up(&self) -> bool {
        self.0.state.lock().given_up
    }

    /// Registers the task that is to be woken when its deadline may have changed.
    pub(crate) fn register(&self, waker: &Waker) {
        let old = {
            let mut state = self.0.state.lock();
            match &state.waker {
                Some(known) if known.will_wake(waker) => None,
                _ => state.waker.replace(waker.clone()),
            }
        };
        drop(old);
    }

    /// When it is to be given up, or asked again. `None` while it does not run.
    ///
    /// A child counts until it has ended or its own deadline has passed: one whose task is gone without a trace is no excuse.
    pub(crate) fn due(&self, now: Instant) -> Option<Due> {
        let mut dead = Vec::new();
        let due = {
            let mut state = self.0.state.lock();
            let Liveness { phase: Phase::Running(clock), children, .. } = &mut *state else {
                return None;
            };
            let mut next = None;
            children.retain(|child| {
                // Locks are taken from the parent to the child, never the other way.
                match child.due(now).map(|due| due.at).filter(|at| *at > now) {
                    Some(at) => {
                        next = Some(next.map_or(at, |next: Instant| next.min(at)));
                        true
                    }
                    None => {
                        dead.push(child.clone());
                        false
                    }
                }
            });
            clock.waits(next.is_some(), now);
            let at = next.map_or(clock.due(), |next| next.min(clock.due()));
            Due { at, elapsed: clock.elapsed(now), spared: clock.spared(now) }
        };
        drop(dead);
        Some(due)
    }
}

impl fmt::Debug for RunHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.0.state.lock();
        let phase = match state.phase {
            Phase::Waiting => "waiting",
            Phase::Running(_) => "running",
            Phase::Ended => "ended",
        };
        f.debug_struct("RunHandle")
            .field("id", &self.0.id)
            .field("phase", &phase)
            .field("children", &state.children.len())
            .finish_non_exhaustive()
    }
}
