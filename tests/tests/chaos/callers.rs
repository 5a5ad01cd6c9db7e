//! The callers: what they request, and when they cancel.

use std::{
    num::NonZeroU32,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use fastrand::Rng;
use steadfast::{
    CallContext, ChatRequest, ChatService, Deadline, Failure, Message, Priority, RawJson,
    RecoveryLog, Target, Tool, Witness,
};
use steadfast_tests::{
    harness::CallResult,
    seeds::{chance, maybe},
};
use tokio::time::{sleep, timeout};
use tokio_stream::StreamExt as _;
use tower::ServiceExt as _;

use crate::{
    ms,
    timeline::{Timeline, TraceEvent},
};

/// One caller.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    /// In its message, so that the caller of each attempt in a journal is known.
    pub(crate) id: usize,
    /// The delay before its call.
    after: Duration,
    stream: bool,
    tools: bool,
    max_output: u64,
    session: Option<u8>,
    background: bool,
    pub(crate) max_attempts: Option<NonZeroU32>,
    pub(crate) already: u32,
    deadline: Option<Duration>,
    cancel_at: CancelAt,
    /// When it cancels a call that nothing else bounds.
    patience: Option<Duration>,
    /// Its target when there is no failover.
    pub(crate) target: Option<Target>,
    /// Which caller it is as far as failures are concerned.
    witness: usize,
}

/// When a caller cancels its call.
#[derive(Clone, Copy, Debug)]
enum CancelAt {
    Never,
    /// After this time.
    Time(Duration),
    /// After so many events of the answer.
    Events(usize),
    /// After so many polls of its call.
    Polls(usize),
}

/// A caller's call after its end.
#[derive(Debug)]
pub(crate) struct Ending {
    pub(crate) caller: Caller,
    /// When it started and when it ended or was cancelled, since the start of the run.
    pub(crate) began: Duration,
    pub(crate) at: Duration,
    /// The longest it may take; `None` when nothing bounds the call.
    pub(crate) limit: Option<Duration>,
    /// Its result; `None` if it was cancelled or never ended.
    pub(crate) got: Option<CallResult>,
    pub(crate) ended: bool,
    pub(crate) log: RecoveryLog,
}

impl Caller {
    /// `bounded` if a layer bounds its call, which starts after up to `pace` milliseconds.
    pub(crate) fn new(
        id: usize,
        bounded: bool,
        pace: u64,
        target: Option<Target>,
        rng: &mut Rng,
    ) -> Self {
        let cancel_at = match rng.u8(0..12) {
            0 | 1 => CancelAt::Time(ms(rng, 0..20_000)),
            2 => CancelAt::Events(rng.usize(0..20)),
            3 => CancelAt::Polls(rng.usize(0..60)),
            _ => CancelAt::Never,
        };
        Self {
            id,
            after: ms(rng, 0..pace),
            stream: rng.bool(),
            tools: chance(rng, 0.2),
            max_output: rng.u64(20..200),
            session: maybe(rng, |rng| rng.u8(0..3)),
            background: chance(rng, 0.3),
            max_attempts: maybe(rng, |rng| NonZeroU32::new(rng.u32(1..8)).unwrap()),
            already: if chance(rng, 0.2) { rng.u32(0..4) } else { 0 },
            deadline: maybe(rng, |rng| ms(rng, 1..60_000)),
            cancel_at,
            patience: (!bounded).then(|| ms(rng, 1_000..100_000)),
            target,
            witness: 0,
        }
    }

    /// One of those whose failures count together.
    pub(crate) fn with_witness(mut self, witness: usize) -> Self {
        self.witness = witness;
        self
    }

    fn request(&self) -> ChatRequest {
        let ask = if self.tools { "Please call look." } else { "Tell me of the river." };
        let message = Message::user(format!("Caller {}: {ask}", self.id));
        let model = self.target.as_ref().and_then(Target::model).unwrap_or("any").to_owned();
        let mut request =
            ChatRequest::new(vec![message]).with_model(model).with_max_output(self.max_output);
        if self.tools {
            let schema = r#"{"type":"object","properties":{"at":{"type":"string"}}}"#;
            let schema = RawJson::parse(schema).unwrap();
            request = request.with_tools(vec![Tool::function("look", "Looks.", schema)]);
        }
        if self.stream {
            request = request.streaming();
        }
        let mut context = CallContext::recording().with_task(self.id.to_string());
        if let Some(session) = self.session {
            context = context.with_tenant("acme").with_session(format!("session {session}"));
        }
        if self.background {
            context = context.with_priority(Priority::Background);
        }
        let witness = CallContext::new().with_session(format!("witness {}", self.witness));
        context.witness = Witness::new(&witness, None);
        context.max_attempts = self.max_attempts;
        context.attempts = self.already;
        context.target.clone_from(&self.target);
        request.with_context(context)
    }

    /// Waits, makes the call, and cancels it or not. `pipeline` is the limit of the stack, if any.
    pub(crate) async fn call(
        self,
        service: ChatService,
        pipeline: Option<Duration>,
        timeline: Timeline,
    ) -> Ending {
        sleep(self.after).await;
        let mut request = self.request();
        request.context.deadline = self.deadline.map(Deadline::after);
        let log = request.context.log.clone();
        let limit = pipeline.map(|pipeline| self.deadline.map_or(pipeline, |it| it.min(pipeline)));
        let began = timeline.began().elapsed();
        timeline.note(TraceEvent::CallerStarted(self.id));
        let call = async {
            match self.cancel_at {
                CancelAt::Never => Some(CallResult::unchecked(&service, request).await),
                CancelAt::Time(patience) => {
                    timeout(patience, CallResult::unchecked(&service, request)).await.ok()
                }
                CancelAt::Events(events) => {
                    read_events(service, request, events).await;
                    None
                }
                CancelAt::Polls(polls) => {
                    Polls { call: Box::pin(CallResult::unchecked(&service, request)), left: polls }
                        .await
                }
            }
        };
        // A call that has not ended by then never will.
        let never = limit.unwrap_or_default() + Duration::from_secs(7 * 86_400);
        let end = timeout(self.patience.unwrap_or(never), call).await;
        let ended = end.is_ok() || self.patience.is_some();
        let got = end.ok().flatten();
        let result = got.as_ref().map(|got| match &got.failure {
            None => Ok(()),
            Some(failure) => Err(failure.to_string()),
        });
        timeline.note(TraceEvent::CallerDone { caller: self.id, result, log: log.clone() });
        let at = timeline.began().elapsed();
        Ending { caller: self, began, at, limit, got, ended, log }
    }
}

/// Reads at most so many events, and drops the answer.
async fn read_events(service: ChatService, request: ChatRequest, events: usize) {
    let Ok::<_, Failure>(mut answer) = service.oneshot(request).await else { return };
    for _ in 0..events {
        let Some(Ok(_)) = answer.next().await else { return };
    }
}

/// A call that is polled so often and then dropped.
struct Polls<F> {
    call: Pin<Box<F>>,
    left: usize,
}

impl<F: Future> Future for Polls<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        self.left -= 1;
        self.call.as_mut().poll(cx).map(Some)
    }
}

/// The caller of an attempt in a journal.
pub(crate) fn caller_in(body: &[u8]) -> Option<usize> {
    let body = std::str::from_utf8(body).ok()?;
    let (_, rest) = body.split_once("Caller ")?;
    rest.split_once(':')?.0.parse().ok()
}
