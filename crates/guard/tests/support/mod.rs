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
    ToolResult,
};
use steadfast_core::{Dialect, Failure};
use steadfast_guard::{Advice, GuardPolicy, LoopRule, SafetyGuard, StopCause, Verdict};
use tower::Service;

pub(crate) const TASK: &str = "task";

/// One call, its result, and whether it failed.
#[derive(Clone, Debug)]
pub(crate) struct Did {
    pub(crate) tool: String,
    pub(crate) arguments: String,
    pub(crate) result: String,
    pub(crate) failed: bool,
}

pub(crate) fn did(tool: &str, arguments: &str, result: &str) -> Did {
    Did { tool: tool.into(), arguments: arguments.into(), result: result.into(), failed: false }
}

impl Did {
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

/// The conversation of rounds, each a batch of calls with their results.
pub(crate) fn history(rounds: &[Vec<Did>]) -> Vec<Message> {
    let mut messages = vec![Message::system("be brief"), Message::user("do it")];
    for (round, batch) in rounds.iter().enumerate() {
        let ids: Vec<_> = (0..batch.len()).map(|at| format!("c{round}-{at}")).collect();
        let calls = batch.iter().zip(&ids).map(|(did, id)| Part::ToolCall(did.call(id))).collect();
        messages.push(Message::new(Role::Assistant, calls));
        for (did, id) in batch.iter().zip(&ids) {
            messages.push(Message::new(Role::Tool, vec![Part::ToolResult(did.result(id))]));
        }
    }
    messages
}

pub(crate) fn one_by_one(calls: impl IntoIterator<Item = Did>) -> Vec<Vec<Did>> {
    calls.into_iter().map(|did| vec![did]).collect()
}

pub(crate) fn request(rounds: &[Vec<Did>]) -> ChatRequest {
    ChatRequest::new(history(rounds))
}

/// What became of a trace: the rounds, counted from 1, after which it was first advised and
/// stopped.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Fate {
    pub(crate) advised: Option<usize>,
    pub(crate) stopped: Option<usize>,
    pub(crate) cause: Option<StopCause>,
}

impl Fate {
    pub(crate) fn rule(&self) -> Option<LoopRule> {
        match &self.cause {
            Some(StopCause::Loop { rule, .. }) => Some(*rule),
            _ => None,
        }
    }
}

/// Told call by call, until it is stopped.
pub(crate) fn stateful(guard: &SafetyGuard, rounds: &[Vec<Did>]) -> Fate {
    let mut fate = Fate::default();
    for (round, batch) in rounds.iter().enumerate() {
        guard.answered(TASK);
        let mut stop = None;
        // All calls of a batch are made before any has ended.
        for did in batch {
            stop = stop.or(guard.check_call(TASK, &did.call("x")).err());
        }
        for did in batch {
            match guard.observe_result(TASK, &did.call("x"), &did.result("x")) {
                Verdict::Fine => {}
                Verdict::Warn(Advice::Wait { .. }) => {}
                Verdict::Warn(_) => fate.advised = fate.advised.or(Some(round + 1)),
                Verdict::Stop(found) => stop = stop.or(Some(found)),
                other => unreachable!("{other:?}"),
            }
        }
        if let Some(stop) = stop {
            fate.stopped = Some(round + 1);
            fate.cause = Some(stop.cause);
            break;
        }
    }
    fate
}

/// Read out of the request that follows each round, until it is stopped.
pub(crate) fn stateless(guard: &SafetyGuard, rounds: &[Vec<Did>]) -> Fate {
    let mut fate = Fate::default();
    for round in 1..=rounds.len() {
        match guard.from_history(&request(&rounds[..round])) {
            Verdict::Fine => {}
            Verdict::Warn(Advice::Wait { .. } | Advice::LastEdit { .. }) => {}
            Verdict::Warn(_) => fate.advised = fate.advised.or(Some(round)),
            Verdict::Stop(stop) => {
                fate.stopped = Some(round);
                fate.cause = Some(stop.cause);
                break;
            }
            other => unreachable!("{other:?}"),
        }
    }
    fate
}

/// Both readings, which must agree.
pub(crate) fn fate(policy: &GuardPolicy, rounds: &[Vec<Did>]) -> Fate {
    let by_hand = stateful(&SafetyGuard::new(policy.clone()).unwrap(), rounds);
    let read = stateless(&SafetyGuard::new(policy.clone()).unwrap(), rounds);
    assert_eq!(by_hand, read, "seen call by call, and read out of the history");
    by_hand
}

pub(crate) fn roomy() -> GuardPolicy {
    let mut policy = GuardPolicy::default();
    policy.limits.events = None;
    policy.limits.calls = None;
    policy.limits.per_tool = None;
    policy.limits.edits_per_file = None;
    for tool in &mut policy.tools {
        tool.limit = Some(u32::MAX);
    }
    policy
}

pub(crate) type Answer = tokio_stream::Iter<std::vec::IntoIter<Result<Event, Failure>>>;

/// A model that gives the answers it is given, and keeps what it was asked.
#[derive(Clone, Default)]
pub(crate) struct Model {
    pub(crate) answers: Arc<Mutex<VecDeque<Vec<Event>>>>,
    pub(crate) asked: Arc<Mutex<Vec<ChatRequest>>>,
    pub(crate) whole: bool,
}

impl Model {
    /// Says these deltas, each as an event, or as one when it is not to stream.
    pub(crate) fn says(self, deltas: Vec<Delta>) -> Self {
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
        self.asked.lock().last().unwrap().clone()
    }

    pub(crate) fn times(&self) -> usize {
        self.asked.lock().len()
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
        self.asked.lock().push(request);
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

/// An answer that calls tools, each in a block of its own.
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
