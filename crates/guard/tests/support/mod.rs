//! Conversations and models for tests.
#![allow(dead_code, reason = "each test uses some of it")]

use std::{
    collections::VecDeque,
    future::{Ready, ready},
    sync::Arc,
    task::{Context, Poll},
};

use parking_lot::Mutex;
use steadfast_chat::{
    ChatRequest, ChatResponse, Delta, Event, Head, Message, Part, Role, StopReason, ToolCall,
    ToolRequest, ToolResult,
};
use steadfast_core::{CallContext, Dialect, Failure};
use steadfast_guard::{
    Advice, GuardPolicy, GuardVerdict, LoopRule, SafetyGuardHandle, StopCause, TaskLimits,
};
use tower::Service;

pub(crate) const TASK: &str = "task";

/// One call, its result, and whether it failed.
#[derive(Clone, Debug)]
pub(crate) struct ToolRun {
    pub(crate) tool: String,
    pub(crate) arguments: String,
    pub(crate) result: String,
    pub(crate) failed: bool,
}

pub(crate) fn tool_run(tool: &str, arguments: &str, result: &str) -> ToolRun {
    ToolRun { tool: tool.into(), arguments: arguments.into(), result: result.into(), failed: false }
}

impl ToolRun {
    pub(crate) fn failing(self) -> Self {
        Self { failed: true, ..self }
    }

    pub(crate) fn call(&self, id: &str) -> ToolCall {
        ToolCall {
            id: id.into(),
            name: self.tool.clone(),
            arguments: self.arguments.clone(),
            ..ToolCall::default()
        }
    }

    pub(crate) fn result(&self, id: &str) -> ToolResult {
        ToolResult {
            id: id.into(),
            content: vec![Part::text(self.result.as_str())],
            is_error: self.failed,
            ..ToolResult::default()
        }
    }
}

/// The conversation of `rounds`, each a batch of calls with their results.
pub(crate) fn history(rounds: &[Vec<ToolRun>]) -> Vec<Message> {
    let mut messages = vec![Message::system("be brief"), Message::user("do it")];
    for (round, batch) in rounds.iter().enumerate() {
        let ids: Vec<_> = (0..batch.len()).map(|at| format!("c{round}-{at}")).collect();
        let calls = batch.iter().zip(&ids).map(|(run, id)| Part::ToolCall(run.call(id))).collect();
        messages.push(Message::new(Role::Assistant, calls));
        for (run, id) in batch.iter().zip(&ids) {
            messages.push(Message::new(Role::Tool, vec![Part::ToolResult(run.result(id))]));
        }
    }
    messages
}

pub(crate) fn one_by_one(calls: impl IntoIterator<Item = ToolRun>) -> Vec<Vec<ToolRun>> {
    calls.into_iter().map(|run| vec![run]).collect()
}

pub(crate) fn request(rounds: &[Vec<ToolRun>]) -> ChatRequest {
    ChatRequest::new(history(rounds))
}

/// A call of the task `task`, for the tools.
pub(crate) fn tool_request(task: &str, call: ToolCall) -> ToolRequest {
    ToolRequest::new(CallContext::new().with_task(task), call)
}

/// A request of the task [`TASK`].
pub(crate) fn named(rounds: &[Vec<ToolRun>]) -> ChatRequest {
    request(rounds).with_context(CallContext::new().with_task(TASK))
}

/// The rounds of a trace, counted from 1, after which it was first advised and stopped.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct TraceOutcome {
    pub(crate) advised: Option<usize>,
    pub(crate) stopped: Option<usize>,
    pub(crate) cause: Option<StopCause>,
}

impl TraceOutcome {
    pub(crate) fn rule(&self) -> Option<LoopRule> {
        match &self.cause {
            Some(StopCause::Loop { rule, .. }) => Some(*rule),
            _ => None,
        }
    }
}

/// The outcome with a tool layer: call by call, until it is stopped.
pub(crate) fn stateful(guard: &SafetyGuardHandle, rounds: &[Vec<ToolRun>]) -> TraceOutcome {
    let mut outcome = TraceOutcome::default();
    for (round, batch) in rounds.iter().enumerate() {
        guard.answered(TASK);
        let mut stop = None;
        // All calls of a batch are made before any has ended.
        for run in batch {
            stop = stop.or(guard.check_call(TASK, &run.call("x")).err());
        }
        for run in batch {
            match guard.observe_result(TASK, &run.call("x"), &run.result("x")) {
                GuardVerdict::Fine => {}
                GuardVerdict::Warn(Advice::Wait { .. }) => {}
                GuardVerdict::Warn(_) => outcome.advised = outcome.advised.or(Some(round + 1)),
                GuardVerdict::Stop(found) => stop = stop.or(Some(found)),
                other => unreachable!("{other:?}"),
            }
        }
        if let Some(stop) = stop {
            outcome.stopped = Some(round + 1);
            outcome.cause = Some(stop.cause);
            break;
        }
    }
    outcome
}

/// The outcome read from the history of a named task after each round, until it is stopped.
pub(crate) fn stateless(guard: &SafetyGuardHandle, rounds: &[Vec<ToolRun>]) -> TraceOutcome {
    let mut outcome = TraceOutcome::default();
    for round in 1..=rounds.len() {
        match guard.from_history(&named(&rounds[..round])) {
            GuardVerdict::Fine => {}
            GuardVerdict::Warn(Advice::Wait { .. } | Advice::LastEdit { .. }) => {}
            GuardVerdict::Warn(_) => outcome.advised = outcome.advised.or(Some(round)),
            GuardVerdict::Stop(stop) => {
                outcome.stopped = Some(round);
                outcome.cause = Some(stop.cause);
                break;
            }
            other => unreachable!("{other:?}"),
        }
    }
    outcome
}

/// The outcome in both ways, which must agree.
pub(crate) fn outcome_of(policy: &GuardPolicy, rounds: &[Vec<ToolRun>]) -> TraceOutcome {
    let counted = stateful(&SafetyGuardHandle::new(policy.clone()).unwrap(), rounds);
    let read = stateless(&SafetyGuardHandle::new(policy.clone()).unwrap(), rounds);
    assert_eq!(counted, read, "counted call by call, and read from the history");
    counted
}

pub(crate) fn without_limits() -> GuardPolicy {
    GuardPolicy::default().loops_only()
}

/// Only the limits that `set` sets, for named tasks and all others.
pub(crate) fn limited(set: impl Fn(&mut TaskLimits)) -> GuardPolicy {
    let mut policy = without_limits();
    set(&mut policy.limits);
    set(&mut policy.named);
    policy
}

pub(crate) type Answer = tokio_stream::Iter<std::vec::IntoIter<Result<Event, Failure>>>;

/// A scripted model, which keeps the requests it receives.
#[derive(Clone, Default)]
pub(crate) struct Model {
    pub(crate) answers: Arc<Mutex<VecDeque<Vec<Event>>>>,
    pub(crate) requests: Arc<Mutex<Vec<ChatRequest>>>,
    pub(crate) whole: bool,
}

impl Model {
    /// Adds an answer of these deltas, each as an event, or all as one without streaming.
    pub(crate) fn answers_with(self, deltas: Vec<Delta>) -> Self {
        let events = match self.whole {
            true => vec![Event::new(deltas)],
            false => deltas.into_iter().map(|delta| Event::new([delta])).collect(),
        };
        self.answers.lock().push_back(events);
        self
    }

    pub(crate) fn whole() -> Self {
        Self { whole: true, ..Self::default() }
    }

    pub(crate) fn last(&self) -> ChatRequest {
        self.requests.lock().last().unwrap().clone()
    }

    pub(crate) fn calls(&self) -> usize {
        self.requests.lock().len()
    }
}

impl Service<ChatRequest> for Model {
    type Response = ChatResponse<Answer>;
    type Error = Failure;
    type Future = Ready<Result<Self::Response, Failure>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: ChatRequest) -> Self::Future {
        self.requests.lock().push(request);
        let events = self.answers.lock().pop_front().unwrap_or_else(|| {
            text_answer("fine").into_iter().map(|delta| Event::new([delta])).collect()
        });
        let mut head = Head::new(Dialect::OpenAi);
        head.stream = !self.whole;
        let events: Vec<_> = events.into_iter().map(Ok).collect();
        ready(Ok(ChatResponse::new(head, tokio_stream::iter(events))))
    }
}

pub(crate) fn start() -> Delta {
    Delta::Start { id: Some("a".into()), model: Some("m".into()) }
}

pub(crate) fn text(index: u32, text: &str) -> Delta {
    Delta::Text { index, text: text.into() }
}

pub(crate) fn end(reason: StopReason) -> [Delta; 2] {
    [Delta::Stop(reason.into()), Delta::End]
}

pub(crate) fn text_answer(pieces: &str) -> Vec<Delta> {
    let mut all = vec![start(), text(0, pieces), Delta::BlockEnd { index: 0 }];
    all.extend(end(StopReason::EndTurn));
    all
}

/// An answer with tool calls, each in its own block.
pub(crate) fn calling(calls: &[(&str, &str)]) -> Vec<Delta> {
    let mut all = vec![start()];
    for (index, (name, arguments)) in (0_u32..).zip(calls) {
        all.push(Delta::ToolCall { index, id: format!("n{index}"), name: (*name).into() });
        let (one, other) = arguments.split_at(arguments.len() / 2);
        all.push(Delta::Arguments { index, json: one.into() });
        all.push(Delta::Arguments { index, json: other.into() });
        all.push(Delta::BlockEnd { index });
    }
    all.extend(end(StopReason::ToolUse));
    all
}
