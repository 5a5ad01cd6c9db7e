//! The guard itself: what its layers share, and the handle to it.

use std::{fmt, sync::Arc, time::Duration};

use steadfast_chat::{ChatRequest, ToolCall, ToolResult};
use steadfast_core::Keyed;
use tokio::time::Instant;

use crate::{
    Advice, GuardPolicy, PolicyError, SafetyGuardLayer, Stop, TaskId, ToolGuardLayer, event,
    history::{self, From},
    ledger::Ledger,
    signature::{Compiled, Facts},
    state::Shared,
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
#[derive(Clone)]
pub struct SafetyGuard {
    shared: Arc<Shared>,
}

/// What a call with its result means.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// Nothing.
    Fine,
    /// The model should be told.
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
        let tasks = Keyed::new(policy.tasks);
        let c = Compiled::new(policy)?;
        Ok(Self { shared: Arc::new(Shared::new(c, tasks)) })
    }

    /// What it goes by.
    pub fn policy(&self) -> &GuardPolicy {
        &self.shared.c.policy
    }

    /// The layer around the model.
    pub fn layer(&self) -> SafetyGuardLayer {
        SafetyGuardLayer::from(self.clone())
    }

    /// The layer around the tools. From now on the guard's layers around models take it that every
    /// call of a named task is seen here, and do not read it out of histories.
    pub fn tool_layer(&self) -> ToolGuardLayer {
        self.shared.by_hand();
        ToolGuardLayer::new(self.clone())
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
        self.admit(task.into(), &self.shared.c.facts(call))
    }

    /// What [`check_call`](Self::check_call) would say. Changes nothing, not even that somebody
    /// asked.
    ///
    /// # Errors
    ///
    /// Why the call may not be made.
    pub fn look<'a>(&self, task: impl Into<TaskId<'a>>, call: &ToolCall) -> Result<(), Stop> {
        let now = Instant::now();
        let facts = self.shared.c.facts(call);
        match self.shared.tasks.get(&self.shared.key(task.into())) {
            Some(task) => task.book.lock().ledger.look(&self.shared.c, &facts, now),
            None => Ledger::new(Some(now)).look(&self.shared.c, &facts, now),
        }
    }

    /// The answer to a call that was not made: the stop as the call's failed result.
    pub fn refusal(call: &ToolCall, stop: &Stop) -> ToolResult {
        ToolResult {
            id: call.id.clone(),
            name: Some(call.name.clone()),
            content: vec![steadfast_chat::Part::text(stop.note())],
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
        self.observe(task.into(), &self.shared.c.facts(call), result, false)
    }

    /// The model has answered: an event, and the end of a round. It has seen all advice given
    /// before, so that what it does now is new evidence. The layer around the model says so itself.
    pub fn answered<'a>(&self, task: impl Into<TaskId<'a>>) {
        self.shared.task(task.into(), Instant::now()).book.lock().ledger.answered();
    }

    /// The user has spoken: going in circles is judged anew; what was counted stays. The layer around
    /// the model says so itself.
    pub fn user_turn<'a>(&self, task: impl Into<TaskId<'a>>) {
        self.shared.task(task.into(), Instant::now()).book.lock().ledger.user_turn(false, None);
    }

    /// Gives a task its limits anew: everything counted begins at zero together, and a stop is
    /// lifted. For operators, never for agents; it is logged. Says whether the task was known.
    pub fn extend<'a>(&self, task: impl Into<TaskId<'a>>) -> bool {
        let task = task.into();
        let Some(found) = self.shared.tasks.get(&self.shared.key(task)) else { return false };
        let (events, calls) = {
            let mut book = found.book.lock();
            let was = (book.ledger.counters.events, book.ledger.counters.calls);
            let was = book.read.take().map_or(was, |(events, calls, _)| (events, calls));
            book.ledger = Ledger::new(Some(Instant::now()));
            book.extended = true;
            was
        };
        event::extended(task, events, calls);
        true
    }

    /// Forgets a task that is over. Says whether it was known.
    pub fn forget<'a>(&self, task: impl Into<TaskId<'a>>) -> bool {
        self.shared.tasks.remove(&self.shared.key(task.into())).is_some()
    }

    /// A task as it stands, if it is known.
    pub fn get<'a>(&self, task: impl Into<TaskId<'a>>) -> Option<TaskSnapshot> {
        let task = self.shared.tasks.get(&self.shared.key(task.into()))?;
        Some(task.snapshot(Instant::now()))
    }

    /// Every task as it stands, in no order.
    pub fn snapshot(&self) -> Vec<TaskSnapshot> {
        let now = Instant::now();
        self.shared.tasks.entries().iter().map(|(_, task)| task.snapshot(now)).collect()
    }

    /// How many stops there have been.
    pub fn stops(&self) -> u64 {
        self.shared.stops()
    }

    /// What a request's own history says of the task since the user last spoke: the same verdict
    /// that the same calls would have had one by one. Remembers nothing. For whoever does not see
    /// the tools run, such as a gateway; the layer around the model does it by itself.
    pub fn from_history(&self, request: &ChatRequest) -> Verdict {
        let now = Instant::now();
        let c = &self.shared.c;
        let Some(mut ledger) = history::read(c, request, From::LastTurn, None, now) else {
            return Verdict::Fine;
        };
        // The gravest of what is to be said.
        let gravest = ledger.pending().iter().max_by_key(|advice| advice.weight());
        let gravest = gravest.cloned();
        match (ledger.may_answer(c, now), gravest) {
            (Err(stop), _) => Verdict::Stop(stop),
            (Ok(()), Some(advice)) => Verdict::Warn(advice),
            (Ok(()), None) => Verdict::Fine,
        }
    }

    pub(crate) fn admit(&self, task: TaskId<'_>, facts: &Facts<'_>) -> Result<(), Stop> {
        self.shared.by_hand();
        let now = Instant::now();
        let task = self.shared.task(task, now);
        let mut book = task.book.lock();
        let first = book.ledger.stopped(now).is_none();
        let admitted = book.ledger.admit(&self.shared.c, facts, now);
        drop(book);
        if let Err(stop) = &admitted
            && first
        {
            self.shared.stopped(task.id(), stop, false, &Default::default());
        }
        admitted
    }

    /// `told` says that the caller passes the advice on to the model.
    pub(crate) fn observe(
        &self,
        task: TaskId<'_>,
        facts: &Facts<'_>,
        result: &ToolResult,
        told: bool,
    ) -> Verdict {
        if history::is_ours(result) {
            return Verdict::Fine;
        }
        let now = Instant::now();
        let outcome = self.shared.c.outcome(result);
        let task = self.shared.task(task, now);
        let mut book = task.book.lock();
        let first = book.ledger.stopped(now).is_none();
        let advice = book.ledger.observe(&self.shared.c, facts, outcome);
        if let Some(advice) = &advice
            && told
        {
            book.ledger.told(advice);
        }
        let stop = book.ledger.stopped(now);
        drop(book);
        let log = Default::default();
        match (stop, advice) {
            (Some(stop), _) => {
                if first {
                    self.shared.stopped(task.id(), &stop, false, &log);
                }
                Verdict::Stop(stop)
            }
            (None, Some(advice)) => {
                if told {
                    event::advised(task.id(), std::slice::from_ref(&advice), &log);
                }
                Verdict::Warn(advice)
            }
            (None, None) => Verdict::Fine,
        }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl fmt::Debug for SafetyGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SafetyGuard")
            .field("tasks", &self.shared.tasks.len())
            .field("stops", &self.stops())
            .finish_non_exhaustive()
    }
}
