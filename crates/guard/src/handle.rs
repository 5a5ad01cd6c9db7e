//! The guard: what its layers share, and the handle to it.

use std::{sync::Arc, time::Duration};

use steadfast_chat::{ChatRequest, ToolCall, ToolFailureKind, ToolResult};
use steadfast_core::RecoveryLog;
use tokio::time::Instant;

use crate::{
    Advice, GuardPolicy, MARK, PolicyError, SafetyGuardLayer, SafetyStop, TaskId, ToolGuardLayer,
    event, history,
    known::Counting,
    signature::{CallFacts, Compiled},
    state::{TaskEvent, TaskState},
    tasks::{Task, Tasks},
};

/// The safety guard: one handle for the layer around the model, the layer around the tools and the
/// operator. Cheap to clone; clones are the same guard.
///
/// ```
/// use steadfast_chat::{Part, ToolCall, ToolResult};
/// use steadfast_guard::{SafetyGuardHandle, GuardVerdict};
///
/// let guard = SafetyGuardHandle::default();
/// let call = ToolCall { name: "ls".into(), ..ToolCall::default() };
/// let content = vec![Part::text("a.rs  b.rs  c.rs")];
/// let result = ToolResult { content, ..ToolResult::default() };
///
/// for round in 1..=5 {
///     guard.answered("task 7"); // the model has called it again
///     guard.check_call("task 7", &call).expect("not stopped yet");
///     match guard.observe_result("task 7", &call, &result) {
///         GuardVerdict::Fine => assert!(round < 3),
///         GuardVerdict::Warn(advice) => assert!(advice.to_string().contains("same result")),
///         GuardVerdict::Stop(stop) => assert_eq!((round, stop.calls), (5, 5)),
///         _ => unreachable!(),
///     }
/// }
/// assert!(guard.check_call("task 7", &call).is_err());
/// guard.extend("task 7");
/// assert!(guard.check_call("task 7", &call).is_ok());
/// ```
#[derive(Clone, Debug)]
pub struct SafetyGuardHandle {
    tasks: Arc<Tasks>,
}

/// What a call with its result means.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GuardVerdict {
    /// Nothing.
    Fine,
    /// The model should be advised.
    Warn(Advice),
    /// The task is stopped.
    Stop(SafetyStop),
}

/// The state of one task.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TaskSnapshot {
    /// The tenant it belongs to, when that is known.
    pub tenant: Option<Box<str>>,
    /// The task.
    pub task: Box<str>,
    /// Events so far.
    pub events: u64,
    /// Calls of tools so far.
    pub calls: u64,
    /// Calls of each tool, by name.
    pub tools: Vec<(Box<str>, u32)>,
    /// Since it began or was extended.
    pub elapsed: Duration,
    /// Why it is stopped, if it is.
    pub stop: Option<SafetyStop>,
}

impl Default for SafetyGuardHandle {
    /// With [`GuardPolicy::default`].
    #[expect(clippy::expect_used, reason = "the default policy is valid; a test reads it")]
    fn default() -> Self {
        Self::new(GuardPolicy::default()).expect("the default policy is valid")
    }
}

impl SafetyGuardHandle {
    /// A guard with this policy.
    ///
    /// # Errors
    ///
    /// When the policy is invalid; see [`GuardPolicy::validate`].
    pub fn new(policy: GuardPolicy) -> Result<Self, PolicyError> {
        Ok(Self { tasks: Arc::new(Tasks::new(Compiled::new(policy)?)) })
    }

    /// This guard's policy with the tasks of `other`, and what is counted of them: a stop that `other` has
    /// made holds. The tasks are judged by the policy of the guard that a request comes to.
    #[must_use]
    pub fn sharing(&self, other: &Self) -> Self {
        Self { tasks: Arc::new(self.tasks.sharing(&other.tasks)) }
    }

    /// The policy in force.
    pub fn policy(&self) -> &GuardPolicy {
        &self.tasks.c.policy
    }

    /// The layer around the model.
    pub fn layer(&self) -> SafetyGuardLayer {
        SafetyGuardLayer::from(self.clone())
    }

    /// The layer around the tools. From now on the guard's layers around models assume that every call
    /// of a task or session passes this layer, and do not read calls from histories.
    pub fn tool_layer(&self) -> ToolGuardLayer {
        self.tasks.set_tool_layer();
        ToolGuardLayer { guard: self.clone() }
    }

    /// Counts a call that will be made. The first call that is not allowed stops the task. Like
    /// [`tool_layer`](Self::tool_layer), the first use switches the reading of histories off.
    ///
    /// # Errors
    ///
    /// Why it is not allowed; to be given to the model as the call's result
    /// ([`refusal`](Self::refusal)), so that every call has one.
    pub fn check_call<'a>(
        &self,
        task: impl Into<TaskId<'a>>,
        call: &ToolCall,
    ) -> Result<(), SafetyStop> {
        self.admit(&self.task(task), &self.tasks.c.call(call))
    }

    /// What [`check_call`](Self::check_call) would return. Changes nothing.
    ///
    /// # Errors
    ///
    /// Why the call is not allowed.
    pub fn would_allow<'a>(
        &self,
        task: impl Into<TaskId<'a>>,
        call: &ToolCall,
    ) -> Result<(), SafetyStop> {
        let (c, now) = (&self.tasks.c, Instant::now());
        match self.tasks.get(task.into()) {
            Some(task) => task.state.lock().check(c, &c.call(call), now),
            None => TaskState::new(Some(now), true).check(c, &c.call(call), now),
        }
    }

    /// The answer to a call that was not made: the stop as the call's failed result.
    pub fn refusal(call: &ToolCall, stop: &SafetyStop) -> ToolResult {
        ToolResult::failed(call, ToolFailureKind::Refused, format!("{MARK} {stop}"))
    }

    /// Records the result of a call that was made. Advice is also kept for the layer around the model,
    /// which adds it to the next request. Results made by the guard do not count.
    pub fn observe_result<'a>(
        &self,
        task: impl Into<TaskId<'a>>,
        call: &ToolCall,
        result: &ToolResult,
    ) -> GuardVerdict {
        self.observe(&self.task(task), &self.tasks.c.call(call), result, false)
    }

    /// The model has answered: an event, and the end of a round. It has seen all advice given before,
    /// so that its next calls are new evidence. The layer around the model does the same by itself;
    /// call this only without it.
    pub fn answered<'a>(&self, task: impl Into<TaskId<'a>>) {
        self.on(&self.task(task), TaskEvent::Answer, false);
    }

    /// A turn of the user: loop detection starts again; the counts of the limits are kept. The layer
    /// around the model does the same by itself; call this only without it.
    pub fn user_turn<'a>(&self, task: impl Into<TaskId<'a>>) {
        self.on(&self.task(task), TaskEvent::UserTurn, false);
    }

    /// Sets all counts of a task to zero, and lifts a stop. For operators, never for agents; it is
    /// logged. Returns whether the task was known.
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

    /// Removes a task that is over. Returns whether it was known.
    pub fn forget<'a>(&self, task: impl Into<TaskId<'a>>) -> bool {
        self.tasks.keyed().remove(&self.tasks.c.hash(task.into())).is_some()
    }

    /// The state of a task, if it is known.
    pub fn get<'a>(&self, task: impl Into<TaskId<'a>>) -> Option<TaskSnapshot> {
        Some(self.tasks.get(task.into())?.snapshot(&self.tasks.c, Instant::now()))
    }

    /// The state of every task, in no order.
    pub fn snapshot(&self) -> Vec<TaskSnapshot> {
        let (now, all) = (Instant::now(), self.tasks.keyed().entries());
        all.iter().map(|(_, task)| task.snapshot(&self.tasks.c, now)).collect()
    }

    /// How many stops there have been.
    pub fn stops(&self) -> u64 {
        self.tasks.stops()
    }

    /// The verdict on the calls in a request's history since the last turn of the user: the same that
    /// these calls would have had one by one, with the limits of a named task if the request names one.
    /// Stores nothing. For a process in which the tools do not run, such as a gateway. The layer around
    /// the model does the same by itself; call this only without it.
    pub fn from_history(&self, request: &ChatRequest) -> GuardVerdict {
        let (c, now) = (&self.tasks.c, Instant::now());
        let mut state = TaskState::new(None, request.context.task().is_some());
        let turn = history::last_turn(&request.messages);
        history::feed(c, turn, |_| Counting::New, &mut state, now, |_, _, _, _| {});
        let stop = state.on(c, TaskEvent::Ask, now);
        // Only the most important advice is reported.
        let advice = state.pending.into_iter().max_by_key(Advice::weight);
        match (stop, advice) {
            (GuardVerdict::Fine, Some(advice)) => GuardVerdict::Warn(advice),
            (stop, _) => stop,
        }
    }

    /// Counts a call that will be made.
    pub(crate) fn admit(&self, task: &Task, facts: &CallFacts<'_>) -> Result<(), SafetyStop> {
        self.tasks.set_tool_layer();
        match self.on(task, TaskEvent::Call(facts), false) {
            GuardVerdict::Stop(stop) => Err(stop),
            GuardVerdict::Fine | GuardVerdict::Warn(_) => Ok(()),
        }
    }

    /// Records a call's result. `passed_on` when the caller gives the advice to the model itself.
    pub(crate) fn observe(
        &self,
        task: &Task,
        facts: &CallFacts<'_>,
        result: &ToolResult,
        passed_on: bool,
    ) -> GuardVerdict {
        if history::is_ours(result) {
            return GuardVerdict::Fine;
        }
        let event = TaskEvent::Result(facts, self.tasks.c.result(result));
        let verdict = self.on(task, event, passed_on);
        if let GuardVerdict::Warn(advice) = &verdict
            && passed_on
        {
            event::advised(task.id(), std::slice::from_ref(advice), &RecoveryLog::default());
        }
        verdict
    }

    fn task<'a>(&self, id: impl Into<TaskId<'a>>) -> Arc<Task> {
        self.tasks.task(id.into(), Instant::now())
    }

    /// Applies an event to the state of a task, and reports the stop when it is a new one.
    fn on(&self, task: &Task, event: TaskEvent<'_>, passed_on: bool) -> GuardVerdict {
        let now = Instant::now();
        let mut state = task.state.lock();
        let first = state.stopped.is_none();
        let verdict = state.on(&self.tasks.c, event, now);
        match &verdict {
            GuardVerdict::Warn(advice) if passed_on => {
                state.pending.retain(|known| known != advice);
            }
            GuardVerdict::Stop(stop) if first => {
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
