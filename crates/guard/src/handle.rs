//! The guard itself: what its layers share, and the handle to it.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use steadfast_chat::{ChatRequest, ToolCall, ToolResult};
use steadfast_core::RecoveryLog;
use tokio::time::Instant;

use crate::{
    Advice, GuardPolicy, MARK, PolicyError, SafetyGuardLayer, Stop, TaskId, ToolGuardLayer, event,
    history,
    signature::{CallFacts, Compiled},
    state::{TaskEvent, TaskState},
    tasks::{Task, Tasks},
};

/// The safety guard: one handle for the layer around the model, the layer around the tools and the
/// operator. Cheap to clone; clones are the same guard.
///
/// ```
/// use steadfast_chat::{Part, ToolCall, ToolResult};
/// use steadfast_guard::{SafetyGuard, Verdict};
///
/// let guard = SafetyGuard::default();
/// let call = ToolCall { name: "ls".into(), ..ToolCall::default() };
/// let content = vec![Part::text("a.rs  b.rs  c.rs")];
/// let result = ToolResult { content, ..ToolResult::default() };
///
/// for round in 1..=5 {
///     guard.answered("task 7"); // the model has asked for it again
///     guard.check_call("task 7", &call).expect("not stopped yet");
///     match guard.observe_result("task 7", &call, &result) {
///         Verdict::Fine => assert!(round < 3),
///         Verdict::Warn(advice) => assert!(advice.to_string().contains("same result")),
///         Verdict::Stop(stop) => assert_eq!((round, stop.calls), (5, 5)),
///         _ => unreachable!(),
///     }
/// }
/// assert!(guard.check_call("task 7", &call).is_err());
/// guard.extend("task 7");
/// assert!(guard.check_call("task 7", &call).is_ok());
/// ```
#[derive(Clone, Debug)]
pub struct SafetyGuard {
    tasks: Arc<Tasks>,
}

/// What a call with its result means.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// Nothing.
    Fine,
    /// The model should be advised.
    Warn(Advice),
    /// The task is stopped.
    Stop(Stop),
}

/// One task as it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TaskSnapshot {
    /// Whose it is, when that is known.
    pub tenant: Option<Box<str>>,
    /// The task.
    pub task: Box<str>,
    /// Events so far.
    pub events: u64,
    /// Calls of tools so far.
    pub calls: u64,
    /// Calls of each tool, by name; empty when the task is read from histories.
    pub tools: Vec<(Box<str>, u32)>,
    /// Since it began or was extended.
    pub elapsed: Duration,
    /// Why it is stopped, if it is.
    pub stop: Option<Stop>,
}

impl Default for SafetyGuard {
    /// With [`GuardPolicy::default`].
    #[expect(clippy::expect_used, reason = "the default policy is valid; a test reads it")]
    fn default() -> Self {
        Self::new(GuardPolicy::default()).expect("the default policy makes sense")
    }
}

impl SafetyGuard {
    /// A guard that goes by `policy`.
    ///
    /// # Errors
    ///
    /// When the policy makes no sense; see [`GuardPolicy::validate`].
    pub fn new(policy: GuardPolicy) -> Result<Self, PolicyError> {
        Ok(Self { tasks: Arc::new(Tasks::new(Compiled::new(policy)?)) })
    }

    /// What it goes by.
    pub fn policy(&self) -> &GuardPolicy {
        &self.tasks.c.policy
    }

    /// The layer around the model.
    pub fn layer(&self) -> SafetyGuardLayer {
        SafetyGuardLayer::from(self.clone())
    }

    /// The layer around the tools. From now on the guard's layers around models take it that every
    /// call of a named task is seen here, and do not read it out of histories.
    pub fn tool_layer(&self) -> ToolGuardLayer {
        self.tasks.use_tool_half();
        ToolGuardLayer { guard: self.clone() }
    }

    /// Counts a call that is about to be made. From the first that may not be made on the task is
    /// stopped. Like [`tool_layer`](Self::tool_layer), the first use turns the reading of histories
    /// off.
    ///
    /// # Errors
    ///
    /// Why it may not be made; to be given to the model as the call's result
    /// ([`refusal`](Self::refusal)), so that every call has one.
    pub fn check_call<'a>(&self, task: impl Into<TaskId<'a>>, call: &ToolCall) -> Result<(), Stop> {
        self.admit(&self.task(task), &self.tasks.c.call(call))
    }

    /// What [`check_call`](Self::check_call) would answer. Changes nothing, not even that somebody
    /// asked.
    ///
    /// # Errors
    ///
    /// Why the call may not be made.
    pub fn would_allow<'a>(
        &self,
        task: impl Into<TaskId<'a>>,
        call: &ToolCall,
    ) -> Result<(), Stop> {
        let (c, now) = (&self.tasks.c, Instant::now());
        match self.tasks.get(task.into()) {
            Some(task) => task.state.lock().check(c, &c.call(call), now),
            None => TaskState::new(Some(now)).check(c, &c.call(call), now),
        }
    }

    /// The answer to a call that was not made: the stop as the call's failed result.
    pub fn refusal(call: &ToolCall, stop: &Stop) -> ToolResult {
        ToolResult {
            id: call.id.clone(),
            name: Some(call.name.clone()),
            content: vec![steadfast_chat::Part::text(format!("{MARK} {stop}"))],
            is_error: true,
            extra: None,
        }
    }

    /// Takes note of the result of a call that was made. Advice is also kept for the layer around
    /// the model, which adds it to the next request. The guard's own answers say nothing.
    pub fn observe_result<'a>(
        &self,
        task: impl Into<TaskId<'a>>,
        call: &ToolCall,
        result: &ToolResult,
    ) -> Verdict {
        self.observe(&self.task(task), &self.tasks.c.call(call), result, false)
    }

    /// The model has answered: an event, and the end of a round. It has seen all advice given
    /// before, so that what it does now is new evidence. The layer around the model says so itself.
    pub fn answered<'a>(&self, task: impl Into<TaskId<'a>>) {
        self.on(&self.task(task), TaskEvent::Answer, false);
    }

    /// The user has spoken: going in circles is judged anew; what was counted stays. The layer around
    /// the model says so itself.
    pub fn user_turn<'a>(&self, task: impl Into<TaskId<'a>>) {
        self.on(&self.task(task), TaskEvent::UserTurn, false);
    }

    /// Gives a task its limits anew: everything counted begins at zero together, and a stop is
    /// lifted. For operators, never for agents; it is logged. Says whether the task was known.
    pub fn extend<'a>(&self, task: impl Into<TaskId<'a>>) -> bool {
        let task = task.into();
        let Some(found) = self.tasks.get(task) else { return false };
        let (events, calls) = {
            let mut state = found.state.lock();
            let used = (state.events, state.calls);
            state.extend(Instant::now());
            used
        };
        event::extended(task, events, calls);
        true
    }

    /// Forgets a task that is over. Says whether it was known.
    pub fn forget<'a>(&self, task: impl Into<TaskId<'a>>) -> bool {
        self.tasks.keyed.remove(&self.tasks.c.hash(task.into())).is_some()
    }

    /// A task as it stands, if it is known.
    pub fn get<'a>(&self, task: impl Into<TaskId<'a>>) -> Option<TaskSnapshot> {
        Some(self.tasks.get(task.into())?.snapshot(Instant::now()))
    }

    /// Every task as it stands, in no order.
    pub fn snapshot(&self) -> Vec<TaskSnapshot> {
        let (now, all) = (Instant::now(), self.tasks.keyed.entries());
        all.iter().map(|(_, task)| task.snapshot(now)).collect()
    }

    /// How many stops there have been.
    pub fn stops(&self) -> u64 {
        self.tasks.stops.load(Ordering::Relaxed)
    }

    /// What a request's own history says of the task since the user last spoke: the same verdict
    /// that the same calls would have had one by one. Remembers nothing. For whoever does not see
    /// the tools run, such as a gateway; the layer around the model does it by itself.
    pub fn from_history(&self, request: &ChatRequest) -> Verdict {
        let (c, now) = (&self.tasks.c, Instant::now());
        let (mut state, turn) = (TaskState::default(), history::last_turn(&request.messages));
        history::feed(c, turn, 0, &mut state, now, |_, _, _, _| {});
        let stop = state.on(c, TaskEvent::Ask, now);
        // The gravest of what is to be reported.
        let gravest = state.pending.into_iter().max_by_key(Advice::weight);
        match (stop, gravest) {
            (Verdict::Fine, Some(advice)) => Verdict::Warn(advice),
            (stop, _) => stop,
        }
    }

    /// Counts a call that is about to be made.
    pub(crate) fn admit(&self, task: &Task, facts: &CallFacts<'_>) -> Result<(), Stop> {
        self.tasks.use_tool_half();
        match self.on(task, TaskEvent::Call(facts), false) {
            Verdict::Stop(stop) => Err(stop),
            Verdict::Fine | Verdict::Warn(_) => Ok(()),
        }
    }

    /// Takes note of a call's result. `passed_on` says that the caller gives advice to the model
    /// itself.
    pub(crate) fn observe(
        &self,
        task: &Task,
        facts: &CallFacts<'_>,
        result: &ToolResult,
        passed_on: bool,
    ) -> Verdict {
        if history::is_ours(result) {
            return Verdict::Fine;
        }
        let event = TaskEvent::Result(facts, self.tasks.c.result(result));
        let verdict = self.on(task, event, passed_on);
        if let Verdict::Warn(advice) = &verdict
            && passed_on
        {
            event::advised(task.id(), std::slice::from_ref(advice), &RecoveryLog::default());
        }
        verdict
    }

    fn task<'a>(&self, id: impl Into<TaskId<'a>>) -> Arc<Task> {
        self.tasks.task(id.into(), Instant::now())
    }

    /// Feeds the state of a task, and reports the stop when it is a new one.
    fn on(&self, task: &Task, event: TaskEvent<'_>, passed_on: bool) -> Verdict {
        let now = Instant::now();
        let mut state = task.state.lock();
        let first = state.stopped.is_none();
        let verdict = state.on(&self.tasks.c, event, now);
        match &verdict {
            Verdict::Warn(advice) if passed_on => state.pending.retain(|known| known != advice),
            Verdict::Stop(stop) if first => {
                drop(state);
                self.tasks.stopped(task.id(), stop, false, &RecoveryLog::default());
            }
            _ => {}
        }
        verdict
    }

    pub(crate) fn tasks(&self) -> &Arc<Tasks> {
        &self.tasks
    }
}
