//! Models and summarisers with scripted answers.

#![allow(
    dead_code,
    missing_docs,
    missing_debug_implementations,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used
)]

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use parking_lot::Mutex;
use steadfast_chat::{
    ChatRequest, ChatResponse, Completion, Delta, Event, EventStream, Head, Message, StopReason,
};
use steadfast_compact::{Counter, Encoding, Notice, Scheme, TargetFacts};
use steadfast_core::{CallContext, Dialect, Failure, Reason, RecoveryLog, Target, Usage, Window};
use tower::{Layer, Service, ServiceExt};

pub type Reply = Result<ChatResponse, Failure>;
type Answering = Pin<Box<dyn Future<Output = Reply> + Send>>;

/// A service with scripted answers that keeps its requests.
#[derive(Clone)]
pub struct Model {
    answer: Arc<dyn Fn(usize, ChatRequest) -> Answering + Send + Sync>,
    asked: Arc<Mutex<Vec<ChatRequest>>>,
    running: Arc<()>,
    ready: bool,
}

impl Model {
    pub fn new<F>(answer: impl Fn(usize, ChatRequest) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Reply> + Send + 'static,
    {
        Self {
            answer: Arc::new(move |number, request| Box::pin(answer(number, request))),
            asked: Arc::default(),
            running: Arc::default(),
            ready: false,
        }
    }

    /// Answers at once.
    pub fn at_once(answer: impl Fn(usize, &ChatRequest) -> Reply + Send + Sync + 'static) -> Self {
        Self::new(move |number, request| std::future::ready(answer(number, &request)))
    }

    /// Answers "ok" without usage.
    pub fn fine() -> Self {
        Self::at_once(|_, _| Ok(say("ok")))
    }

    pub fn asked(&self) -> Vec<ChatRequest> {
        self.asked.lock().clone()
    }

    pub fn calls(&self) -> usize {
        self.asked.lock().len()
    }

    /// Calls that are neither over nor dropped.
    pub fn running(&self) -> usize {
        Arc::strong_count(&self.running) - Arc::strong_count(&self.asked)
    }

    pub fn last(&self) -> ChatRequest {
        self.asked.lock().last().unwrap().clone()
    }
}

impl Service<ChatRequest> for Model {
    type Response = ChatResponse;
    type Error = Failure;
    type Future = Answering;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: ChatRequest) -> Answering {
        assert!(std::mem::take(&mut self.ready), "it was called without having been polled ready");
        let number = {
            let mut asked = self.asked.lock();
            asked.push(request.clone());
            asked.len() - 1
        };
        let (answer, running) = ((self.answer)(number, request), self.running.clone());
        Box::pin(async move {
            let came = answer.await;
            drop(running);
            came
        })
    }
}

pub fn events(list: Vec<Result<Event, Failure>>) -> ChatResponse {
    let events = Box::pin(tokio_stream::iter(list)) as EventStream;
    ChatResponse::new(Head::new(Dialect::Anthropic), events)
}

pub fn answer(deltas: Vec<Delta>) -> ChatResponse {
    events(deltas.into_iter().map(|delta| Ok(Event::new([delta]))).collect())
}

pub fn text_delta(text: &str) -> Delta {
    Delta::Text { index: 0, text: text.into() }
}

pub fn stop(reason: StopReason) -> Delta {
    Delta::Stop(reason.into())
}

pub fn say(text: &str) -> ChatResponse {
    answer(vec![text_delta(text), stop(StopReason::EndTurn), Delta::End])
}

/// Answers `text`, and reports that the request was so large.
pub fn say_used(text: &str, input: u64, output: u64) -> ChatResponse {
    let usage = Delta::Usage(Usage::new(input, output));
    answer(vec![text_delta(text), usage, stop(StopReason::EndTurn), Delta::End])
}

pub fn overflow(limit: Option<u64>, requested: Option<u64>) -> Failure {
    Failure::new(Reason::ContextOverflow, "the prompt is too long")
        .with_window(Window { limit, requested })
}

/// Every answer's events, collected.
pub async fn ask<S, E>(service: &S, request: ChatRequest) -> Result<Completion, Failure>
where
    S: Service<ChatRequest, Response = ChatResponse<E>, Error = Failure> + Clone,
    E: steadfast_chat::Events + Unpin,
{
    service.clone().oneshot(request).await?.collect().await
}

pub fn notice(answer: &Completion) -> Notice {
    Notice::of(&answer.head).cloned().expect("the head says nothing")
}

/// A target whose window is so large.
pub const PROVIDER: &str = "anthropic";
pub const MODEL: &str = "claude-test";

pub fn target() -> Target {
    Target::new(PROVIDER).with_model(MODEL)
}

pub fn window(tokens: u64) -> impl Fn(&Target) -> TargetFacts {
    move |_| TargetFacts::default().with_limits(steadfast_compact::TokenLimits::new(tokens))
}

/// Four bytes to a token: exact, whatever features are on, and quick in a debug build.
pub fn four_bytes() -> Counter {
    let scheme = Scheme { encoding: Encoding::Bytes(4), error: 0.05, ..Scheme::for_model(MODEL) };
    Counter::default().with_scheme(MODEL, scheme)
}

/// A context of this session that keeps a log.
pub fn session(name: &str) -> CallContext {
    CallContext::new()
        .with_log(RecoveryLog::enabled())
        .with_target(target())
        .with_tenant("acme")
        .with_session(name)
}

/// Questions and answers: so many of both, and a last question.
pub fn talk(turns: usize, length: usize) -> Vec<Message> {
    let mut list = vec![Message::system("You are careful.")];
    for turn in 0..turns {
        list.push(Message::user(format!("question {turn}")));
        list.push(Message::assistant(format!("answer {turn}: {}", "all is well ".repeat(length))));
    }
    list.push(Message::user("and now?"));
    list
}

pub fn request(list: Vec<Message>, context: CallContext) -> ChatRequest {
    ChatRequest::new(list).with_model(MODEL).with_context(context)
}

pub fn stacked<L: Layer<Model>>(layer: &L, model: &Model) -> L::Service {
    layer.layer(model.clone())
}

/// The bytes of all text.
pub fn size(list: &[Message]) -> usize {
    fn part(value: &steadfast_chat::Part) -> usize {
        use steadfast_chat::Part;
        match value {
            Part::Text(text) => text.text.len(),
            Part::ToolCall(call) => call.name.len() + call.arguments.len(),
            Part::ToolResult(result) => result.content.iter().map(part).sum(),
            _ => 0,
        }
    }
    list.iter().flat_map(Message::parts).map(part).sum()
}
