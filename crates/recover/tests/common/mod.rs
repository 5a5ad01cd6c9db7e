//! A scripted model.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests; each file uses its part"
)]

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use futures_util::{Stream, StreamExt};
use steadfast_chat::{
    ChatRequest, ChatResponse, Completion, Delta, Event, Head, Message, Opaque, RawJson, Role,
    StopReason,
};
use steadfast_core::{Dialect, Failure, Reason, Usage};
use steadfast_recover::{Partial, ResumePoint};
use tower::{Layer, Service, ServiceExt};

/// A step of a scripted stream.
#[derive(Debug)]
pub enum ModelStep {
    Event(Event),
    Fail(Failure),
    /// Is pending once.
    Wait,
    /// Is pending for ever.
    Hang,
}

type Script = dyn Fn(usize, &ChatRequest) -> Result<Vec<ModelStep>, Failure> + Send + Sync;

/// A model that answers the n-th call by a script. Its answers have no recovery log of their own.
#[derive(Clone)]
pub struct Model {
    script: Arc<Script>,
    pub requests: Arc<parking_lot::Mutex<Vec<ChatRequest>>>,
    /// Futures and streams under way.
    pub alive: Arc<AtomicUsize>,
    /// The dialect of the n-th answer; the last one for all further ones.
    pub dialects: Vec<Dialect>,
    /// It counts its attempts as a client does, in the log and in the heads of its answers.
    pub counts: bool,
}

pub struct Alive(Arc<AtomicUsize>);

impl Alive {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count.clone())
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Model {
    pub fn new(
        script: impl Fn(usize, &ChatRequest) -> Result<Vec<ModelStep>, Failure> + Send + Sync + 'static,
    ) -> Self {
        let (requests, alive) = (Arc::default(), Arc::default());
        let dialects = vec![Dialect::Anthropic];
        Self { script: Arc::new(script), requests, alive, dialects, counts: true }
    }

    /// The script's answer, without a call.
    pub fn answer(&self, call: usize, request: &ChatRequest) -> Result<Vec<ModelStep>, Failure> {
        (self.script)(call, request)
    }

    pub fn calls(&self) -> usize {
        self.requests.lock().len()
    }
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Model")
    }
}

impl Service<ChatRequest> for Model {
    type Response = ChatResponse<ScriptedEvents>;
    type Error = Failure;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Failure>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: ChatRequest) -> Self::Future {
        let at = self.requests.lock().len();
        self.requests.lock().push(request.clone());
        let steps = (self.script)(at, &request);
        let alive = Alive::new(&self.alive);
        let dialect = self.dialects[at.min(self.dialects.len() - 1)];
        let counts = self.counts;
        if counts {
            request.context.log.count_attempt();
        }
        Box::pin(async move {
            tokio::task::yield_now().await;
            let mut head = Head::new(dialect);
            head.stream = request.stream;
            head.target = Some(format!("p{at}").as_str().into());
            if counts {
                head.attempts = request.context.attempts + 1;
            }
            Ok(ChatResponse::new(head, ScriptedEvents { steps: steps?.into_iter(), alive }))
        })
    }
}

pub struct ScriptedEvents {
    steps: std::vec::IntoIter<ModelStep>,
    alive: Alive,
}

impl Stream for ScriptedEvents {
    type Item = Result<Event, Failure>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready(match self.steps.next() {
            None => None,
            Some(ModelStep::Event(event)) => Some(Ok(event)),
            Some(ModelStep::Fail(failure)) => {
                self.steps = Vec::new().into_iter();
                Some(Err(failure))
            }
            Some(ModelStep::Wait) => {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            Some(ModelStep::Hang) => {
                self.steps = vec![ModelStep::Hang].into_iter();
                return Poll::Pending;
            }
        })
    }
}

pub fn fail(reason: Reason) -> Failure {
    Failure::new(reason, "scripted to fail")
}

/// A block of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Block {
    Text(String),
    Thinking(String),
    Call(&'static str, String),
}

fn pieces(text: &str, size: usize) -> Vec<String> {
    let chars: Vec<char> = text.chars().collect();
    chars.chunks(size.max(1)).map(|piece| piece.iter().collect()).collect()
}

/// An answer as a stream, in pieces of `size` characters, with (Anthropic) or without (OpenAI) an
/// event at the end of each block.
pub fn stream(id: &str, blocks: &[Block], size: usize, ends: bool, stop: StopReason) -> Vec<Event> {
    let mut out = vec![
        Event::new([
            Delta::Start { id: Some(id.into()), model: None },
            Delta::Usage(Usage::new(10, 1)),
        ]),
        Event::new([Delta::Ping]),
    ];
    let mut bytes = 0;
    for (at, block) in blocks.iter().enumerate() {
        let index = at as u32;
        match block {
            Block::Text(text) => {
                bytes += text.len();
                let event = |text| Event::new([Delta::Text { index, text }]);
                out.extend(pieces(text, size).into_iter().map(event));
            }
            Block::Thinking(text) => {
                bytes += text.len();
                let event = |text| Event::new([Delta::Thinking { index, text }]);
                out.extend(pieces(text, size).into_iter().map(event));
                let signature = format!("{id}-signed");
                out.push(Event::new([Delta::Signature { index, signature }]));
            }
            Block::Call(name, arguments) => {
                bytes += arguments.len();
                let id = format!("{id}-{name}");
                out.push(Event::new([Delta::ToolCall { index, id, name: (*name).into() }]));
                let event = |json| Event::new([Delta::Arguments { index, json }]);
                out.extend(pieces(arguments, size).into_iter().map(event));
            }
        }
        if ends {
            out.push(Event::new([Delta::BlockEnd { index }]));
        }
    }
    let usage = Usage::new(10, (bytes / 4) as u64);
    out.push(Event::new([Delta::Usage(usage), Delta::Stop(stop.into())]));
    out.push(Event::new([Delta::End]));
    out
}

pub fn script(events: impl IntoIterator<Item = Event>) -> Vec<ModelStep> {
    events.into_iter().map(ModelStep::Event).collect()
}

/// The first `events`, then a failure.
pub fn broken(events: &[Event], at: usize, failure: Failure) -> Vec<ModelStep> {
    let mut out = script(events[..at].iter().cloned());
    out.push(ModelStep::Fail(failure));
    out
}

/// How many of `events` a caller gets when the stream breaks after them, and the resume point then: a
/// tool call that is not complete is held back.
pub fn delivered(events: &[Event]) -> (usize, ResumePoint) {
    let mut open = None;
    for (at, event) in events.iter().enumerate() {
        for delta in &event.deltas {
            match delta {
                Delta::ToolCall { .. } => open = Some(at),
                Delta::Text { .. } | Delta::Thinking { .. } | Delta::Stop(_) => open = None,
                _ => {}
            }
        }
    }
    let shown = open.unwrap_or(events.len());
    let mut partial = Partial::new(1 << 20);
    events[..shown].iter().for_each(|event| partial.see(event));
    (shown, partial.resume_point())
}

/// What a caller received.
#[derive(Debug)]
pub struct Received {
    pub deltas: Vec<Delta>,
    pub answer: Completion,
    pub failures: Vec<Failure>,
}

/// Reads to the end.
pub async fn read<S>(reply: ChatResponse<S>) -> Received
where
    S: Stream<Item = Result<Event, Failure>> + Unpin,
{
    let (head, mut events) = reply.into_parts();
    let mut got =
        Received { deltas: Vec::new(), answer: Completion::new(head), failures: Vec::new() };
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => {
                assert!(got.failures.is_empty(), "nothing comes after a failure");
                got.answer.push(&event);
                got.deltas.extend(event.deltas);
            }
            Err(failure) => got.failures.push(failure),
        }
    }
    assert!(events.next().await.is_none(), "the stream is fused");
    let count = |what: fn(&Delta) -> bool| got.deltas.iter().filter(|delta| what(delta)).count();
    assert!(count(|delta| matches!(delta, Delta::Start { .. })) <= 1, "one start");
    assert!(count(|delta| matches!(delta, Delta::Stop(_))) <= 1, "one reason to stop");
    let ends = count(|delta| matches!(delta, Delta::End));
    assert_eq!(ends + got.failures.len(), 1, "one end or one failure");
    got.check_blocks();
    got
}

impl Received {
    /// Blocks are numbered in the order they begin, and none continues after its end.
    fn check_blocks(&self) {
        let (mut next, mut ended) = (0, Vec::new());
        for delta in &self.deltas {
            let index = match delta {
                Delta::BlockEnd { index } => {
                    assert!(*index < next && !ended.contains(index), "{delta:?}");
                    ended.push(*index);
                    continue;
                }
                Delta::Text { index, .. }
                | Delta::Thinking { index, .. }
                | Delta::Signature { index, .. }
                | Delta::ToolCall { index, .. }
                | Delta::Arguments { index, .. } => *index,
                _ => continue,
            };
            assert!(index <= next, "{delta:?} leaves out a number");
            assert!(!ended.contains(&index), "{delta:?} comes after its block's end");
            next = next.max(index + 1);
        }
    }

    pub fn text(&self) -> String {
        self.answer.text()
    }

    pub fn calls(&self) -> Vec<(String, String)> {
        let calls = self.answer.tool_calls();
        calls.map(|call| (call.name.clone(), call.arguments.clone())).collect()
    }
}

/// The text so far, which a follow-up request has as the model's message.
pub fn shown_text(request: &ChatRequest) -> Option<String> {
    let shown = request.messages.iter().rev().find(|message| message.role() == Role::Assistant);
    shown.map(Message::text)
}

/// The text that a follow-up request asks to be repeated.
pub fn requested_anchor(request: &ChatRequest) -> Option<String> {
    let last = request.messages.last()?.text();
    let (_, rest) = last.split_once("exactly these:\n")?;
    let (anchor, _) = rest.rsplit_once("\nThen go straight on")?;
    Some(anchor.to_owned())
}

pub fn log(got: &Received) -> Vec<&'static str> {
    got.answer.head.log.steps().iter().map(|step| step.action).collect()
}

pub fn recording() -> ChatRequest {
    ChatRequest::user("go").streaming().with_context(steadfast_core::CallContext::recording())
}

/// A text that is hard to compare: curly quotes, accents, line ends of two bytes, and repeated phrases.
pub fn long() -> String {
    (0..40).map(|n| format!("Word {n} is \u{201c}caf\u{e9}\u{201d},\r\nit\u{2019}s so. ")).collect()
}

/// Sends `request` through `layer` to the model, and reads the answer.
pub async fn send<L, S>(model: &Model, layer: &L, request: ChatRequest) -> Received
where
    L: Layer<Model>,
    L::Service: Service<ChatRequest, Response = ChatResponse<S>, Error = Failure>,
    S: Stream<Item = Result<Event, Failure>> + Unpin,
{
    let got = read(layer.layer(model.clone()).oneshot(request).await.unwrap()).await;
    assert_eq!(model.alive.load(Ordering::Relaxed), 0, "nothing is left under way");
    got
}

/// Drops an answer after every number of polls, until one comes to its end: nothing may be left
/// under way.
pub async fn dropped_anywhere<L, S>(layer: &L, model: impl Fn() -> Model)
where
    L: Layer<Model>,
    L::Service: Service<ChatRequest, Response = ChatResponse<S>, Error = Failure>,
    S: Stream<Item = Result<Event, Failure>> + Unpin,
{
    for waits in 0..500 {
        let model = model();
        let call = layer.layer(model.clone()).oneshot(recording());
        let mut polled = 0;
        let mut reading = Box::pin(async move {
            let mut events = call.await.unwrap();
            while events.next().await.is_some() {
                tokio::task::yield_now().await;
            }
        });
        let over = std::future::poll_fn(|cx| {
            polled += 1;
            if polled > waits {
                return Poll::Ready(false);
            }
            reading.as_mut().poll(cx).map(|()| true)
        })
        .await;
        drop(reading);
        assert_eq!(model.alive.load(Ordering::Relaxed), 0, "after {waits} polls");
        if over {
            return;
        }
    }
    unreachable!("it ends");
}

/// A block that only its own dialect has.
pub fn opaque(index: u32) -> Event {
    let block = Opaque {
        dialect: Dialect::Anthropic,
        kind: "server_tool_use".into(),
        json: RawJson::parse("{}").unwrap(),
    };
    Event::new([Delta::Opaque { index, block }])
}
