//! Who calls, what for, and when they have had enough.

use std::{
    num::NonZeroU32,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use fastrand::Rng;
use steadfast::{
    CallContext, ChatRequest, ChatService, Deadline, Failure, Message, Priority, RawJson,
    RecoveryLog, Target, Tool,
};
use steadfast_tests::harness::Got;
use tokio::time::{sleep, timeout};
use tokio_stream::StreamExt as _;
use tower::ServiceExt as _;

use crate::{
    chance, maybe, ms,
    timeline::{Timeline, What},
};

/// One caller.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    /// Its words name it, so that a provider's journal tells whose attempt it was.
    pub(crate) id: usize,
    /// How long it waits before it calls.
    after: Duration,
    stream: bool,
    tools: bool,
    max_output: u64,
    session: Option<u8>,
    background: bool,
    pub(crate) max_attempts: Option<NonZeroU32>,
    pub(crate) already: u32,
    deadline: Option<Duration>,
    leaves: Leaves,
    /// The longest it stays, where nothing else bounds the call.
    patience: Option<Duration>,
    /// Where it goes when there is no failover to choose.
    pub(crate) target: Option<Target>,
}

/// When a caller leaves before the end.
#[derive(Clone, Copy, Debug)]
enum Leaves {
    Never,
    /// After so long, wherever the call stands.
    After(Duration),
    /// After so many events of the answer; with none, it does not even look.
    With(usize),
    /// When its call has been polled so often.
    Polls(usize),
}

/// How it ended for one caller.
#[derive(Debug)]
pub(crate) struct Ending {
    pub(crate) caller: Caller,
    /// When it called, and when it ended or was left, since the beginning of the world.
    pub(crate) began: Duration,
    pub(crate) at: Duration,
    /// The longest it might have taken; `None` when nothing bounds the call.
    pub(crate) limit: Option<Duration>,
    /// What it got, unless it left before the end; `None` inside when it never ended.
    pub(crate) got: Option<Got>,
    pub(crate) ended: bool,
    pub(crate) log: RecoveryLog,
}

impl Caller {
    /// `bounded` says that something below ends its call; it waits up to `pace` milliseconds before
    /// it makes it.
    pub(crate) fn new(
        id: usize,
        bounded: bool,
        pace: u64,
        target: Option<Target>,
        dice: &mut Rng,
    ) -> Self {
        let leaves = match dice.u8(0..12) {
            0 | 1 => Leaves::After(ms(dice, 0..20_000)),
            2 => Leaves::With(dice.usize(0..20)),
            3 => Leaves::Polls(dice.usize(0..60)),
            _ => Leaves::Never,
        };
        Self {
            id,
            after: ms(dice, 0..pace),
            stream: dice.bool(),
            tools: chance(dice, 0.2),
            max_output: dice.u64(20..200),
            session: maybe(dice, |dice| dice.u8(0..3)),
            background: chance(dice, 0.3),
            max_attempts: maybe(dice, |dice| NonZeroU32::new(dice.u32(1..8)).unwrap()),
            already: if chance(dice, 0.2) { dice.u32(0..4) } else { 0 },
            deadline: maybe(dice, |dice| ms(dice, 1..60_000)),
            leaves,
            patience: (!bounded).then(|| ms(dice, 1_000..100_000)),
            target,
        }
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
        context.max_attempts = self.max_attempts;
        context.attempts = self.already;
        context.target.clone_from(&self.target);
        request.with_context(context)
    }

    /// Waits, calls, and stays or leaves. `pipeline` is the limit of the stack, if it has one.
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
        timeline.note(What::Calls(self.id));
        let call = async {
            match self.leaves {
                Leaves::Never => Some(Got::heard(&service, request).await),
                Leaves::After(patience) => {
                    timeout(patience, Got::heard(&service, request)).await.ok()
                }
                Leaves::With(events) => {
                    look(service, request, events).await;
                    None
                }
                Leaves::Polls(polls) => {
                    Polls { call: Box::pin(Got::heard(&service, request)), left: polls }.await
                }
            }
        };
        // What has not ended by then never would.
        let never = limit.unwrap_or_default() + Duration::from_secs(7 * 86_400);
        let end = timeout(self.patience.unwrap_or(never), call).await;
        let ended = end.is_ok() || self.patience.is_some();
        let got = end.ok().flatten();
        let told = got.as_ref().map(|got| match &got.failure {
            None => Ok(()),
            Some(failure) => Err(failure.to_string()),
        });
        timeline.note(What::Gone { caller: self.id, told, log: log.clone() });
        let at = timeline.began().elapsed();
        Ending { caller: self, began, at, limit, got, ended, log }
    }
}

/// Reads at most so many events, and drops the answer.
async fn look(service: ChatService, request: ChatRequest, events: usize) {
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

/// Whose attempt a provider saw.
pub(crate) fn whose(body: &[u8]) -> Option<usize> {
    let body = std::str::from_utf8(body).ok()?;
    let (_, rest) = body.split_once("Caller ")?;
    rest.split_once(':')?.0.parse().ok()
}
