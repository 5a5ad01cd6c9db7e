//! A scripted model, and what tests do with held requests.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "helpers of tests are tests; each file uses its part"
)]

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use futures_util::Stream;
use parking_lot::Mutex;
use steadfast_chat::{ChatRequest, ChatResponse, Delta, Event, Head, StopReason};
use steadfast_core::{Attempt, Dialect, Failure, Reason, Target};
use steadfast_escalate::{
    EscalatedEvents, EscalationHandle, EscalationLayer, EscalationPolicy, HeldRequest,
};
use tokio::task::JoinHandle;
use tower::{Layer, Service, ServiceExt};

pub const HOLD: Duration = Duration::from_secs(300);

type Script = dyn Fn(usize, &ChatRequest) -> Result<&'static str, Failure> + Send + Sync;

/// A model that answers the n-th call by a script, 10 ms after it was called.
#[derive(Clone)]
pub struct Model {
    script: Arc<Script>,
    pub requests: Arc<Mutex<Vec<ChatRequest>>>,
    /// Futures and streams under way.
    pub alive: Arc<AtomicUsize>,
    /// It was polled ready since its last call.
    ready: bool,
    /// It is pending once before it is ready.
    waits: bool,
}

pub struct Alive(Arc<AtomicUsize>);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Model")
    }
}

impl Model {
    pub fn new(
        script: impl Fn(usize, &ChatRequest) -> Result<&'static str, Failure> + Send + Sync + 'static,
    ) -> Self {
        let (requests, alive) = (Arc::default(), Arc::default());
        Self { script: Arc::new(script), requests, alive, ready: false, waits: true }
    }

    /// Fails `failures` times as [`exhausted`], then answers.
    pub fn failing(failures: usize) -> Self {
        Self::new(move |call, _| if call < failures { Err(exhausted()) } else { Ok("an answer") })
    }

    pub fn calls(&self) -> usize {
        self.requests.lock().len()
    }

    pub fn request(&self, call: usize) -> ChatRequest {
        self.requests.lock()[call].clone()
    }

    /// Calls through `layer` on a task of its own, until the call is held or over.
    pub async fn call(&self, layer: &EscalationLayer, request: ChatRequest) -> Called {
        let called = spawn(layer.layer(self.clone()), request);
        passes(Duration::from_millis(50)).await;
        called
    }
}

pub type Answer = ChatResponse<EscalatedEvents<ScriptedEvents>>;
pub type Called = JoinHandle<Result<Answer, Failure>>;

fn spawn<S>(service: S, request: ChatRequest) -> JoinHandle<Result<S::Response, Failure>>
where
    S: Service<ChatRequest, Error = Failure, Future: Send, Response: Send> + Send + 'static,
{
    tokio::spawn(service.oneshot(request))
}

impl Service<ChatRequest> for Model {
    type Response = ChatResponse<ScriptedEvents>;
    type Error = Failure;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Failure>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        if std::mem::take(&mut self.waits) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: ChatRequest) -> Self::Future {
        assert!(std::mem::take(&mut self.ready), "it was not polled ready");
        let call = self.requests.lock().len();
        self.requests.lock().push(request.clone());
        request.context.log.count_attempt();
        let answer = (self.script)(call, &request);
        self.alive.fetch_add(1, Ordering::Relaxed);
        let alive = Alive(self.alive.clone());
        Box::pin(async move {
            passes(Duration::from_millis(10)).await;
            let mut head = Head::new(Dialect::OpenAi);
            (head.stream, head.attempts) = (request.stream, request.context.attempts + 1);
            let events = vec![
                Event::new([Delta::Text { index: 0, text: answer?.to_owned() }]),
                Event::new([Delta::Stop(StopReason::EndTurn.into()), Delta::End]),
            ];
            Ok(ChatResponse::new(head, ScriptedEvents { events: events.into_iter(), alive }))
        })
    }
}

pub struct ScriptedEvents {
    events: std::vec::IntoIter<Event>,
    alive: Alive,
}

impl Stream for ScriptedEvents {
    type Item = Result<Event, Failure>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let _ = &self.alive;
        Poll::Ready(self.events.next().map(Ok))
    }
}

/// Time passes; tasks run meanwhile.
pub async fn passes(time: Duration) {
    tokio::time::sleep(time).await;
}

pub fn on() -> EscalationLayer {
    with(|_| {})
}

pub fn with(change: impl FnOnce(&mut EscalationPolicy)) -> EscalationLayer {
    let mut policy = EscalationPolicy::default();
    change(&mut policy);
    EscalationLayer::new(policy).unwrap()
}

/// What failover ends with: two targets were tried and one was skipped.
pub fn exhausted() -> Failure {
    let failed = |provider: &str, reason, wait| {
        let failure = Failure::new(reason, format!("{provider} failed"));
        let failure = failure.with_target(Target::new(provider).with_model("m"));
        Attempt::from_failure(&failure.with_retry_after(Some(Duration::from_secs(wait))))
    };
    let skipped = Attempt::skipped(Target::new("c"), Reason::Auth, "cooling");
    let trail =
        vec![failed("a", Reason::Overloaded, 20), failed("b", Reason::Network, 30), skipped];
    Failure::refused(Reason::Exhausted, "no target is left")
        .with_attempts(5)
        .with_retry_after(Some(Duration::from_secs(20)))
        .with_trail(trail)
}

/// The only request that is held.
pub fn only(handle: &EscalationHandle) -> Arc<HeldRequest> {
    let held = handle.held();
    assert_eq!(held.len(), 1, "{held:?}");
    held[0].clone()
}

pub fn hello() -> ChatRequest {
    ChatRequest::user("hello, my secret is rosebud").with_model("big-model")
}

/// The steps of this layer.
pub fn steps(log: &steadfast_core::RecoveryLog) -> Vec<String> {
    let steps = log.steps();
    let own = steps.iter().filter(|step| step.layer == "escalate");
    // An id is another one in each process.
    own.map(|step| match step.action {
        "held" => format!("held {}", step.reason.unwrap()),
        _ => step.to_string().trim_start_matches("escalate.").to_owned(),
    })
    .collect()
}
