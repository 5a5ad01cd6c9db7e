//! A client with a script, and stacks around it.
#![allow(dead_code, clippy::unwrap_used, reason = "each test uses a part of it")]

use std::{
    collections::VecDeque,
    future::{Ready, ready},
    sync::Arc,
    task::{Context, Poll},
};

use parking_lot::Mutex;
use steadfast::{
    ChatRequest, ChatResponse, Delta, Dialect, Event, EventStream, Failure, Head, Reason, Stack,
    StopReason, failover::Chain, retry::RetryBackoffLayer,
};
use tower::Service;

/// What a client does with one attempt: its events, or a failure.
type Attempt = Result<Vec<Result<Event, Failure>>, Failure>;

pub(crate) type Script = Vec<Attempt>;

/// A chat service of somebody's own, which knows nothing of recovery logs.
#[derive(Clone)]
pub(crate) struct Client(Arc<Mutex<VecDeque<Attempt>>>);

impl Client {
    pub(crate) fn of(script: Script) -> Self {
        Self(Arc::new(Mutex::new(script.into())))
    }
}

impl Service<ChatRequest> for Client {
    type Response = ChatResponse;
    type Error = Failure;
    type Future = Ready<Result<ChatResponse, Failure>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: ChatRequest) -> Self::Future {
        let next = self.0.lock().pop_front().unwrap_or_else(|| Ok(whole()));
        ready(next.map(|events| {
            let mut head = Head::new(Dialect::OpenAi);
            head.stream = request.stream;
            head.target.clone_from(&request.context.target);
            let events = Box::pin(tokio_stream::iter(events)) as EventStream;
            ChatResponse::new(head, events)
        }))
    }
}

pub(crate) fn say(text: &str) -> Result<Event, Failure> {
    Ok(Event::new([Delta::Text { index: 0, text: text.into() }]))
}

pub(crate) fn end() -> Result<Event, Failure> {
    Ok(Event::new([Delta::Stop(StopReason::EndTurn.into()), Delta::End]))
}

/// Long enough that the overlap of a resume is found.
pub(crate) const TEXT: &str =
    "The quick brown fox jumps over the lazy dog, and the lazy dog does not mind at all. ";

pub(crate) fn whole() -> Vec<Result<Event, Failure>> {
    vec![say(TEXT), say("That is all."), end()]
}

pub(crate) fn fails(reason: Reason) -> Attempt {
    Err(Failure::new(reason, "as written"))
}

/// A 503 twice, then a stream that breaks after content, then an answer.
pub(crate) fn eventful() -> Client {
    let broken = vec![say(TEXT), Err(Failure::new(Reason::Network, "reset"))];
    Client::of(vec![fails(Reason::Overloaded), fails(Reason::ServerError), Ok(broken)])
}

pub(crate) fn stack() -> Stack {
    Stack::new(Chain::new(["first", "second"]).unwrap())
        .with_retry(RetryBackoffLayer::in_stack().with_seed(1))
}

pub(crate) fn question() -> ChatRequest {
    ChatRequest::user("What does the fox do?").with_model("any").streaming()
}
