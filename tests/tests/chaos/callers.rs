//! Who calls, what for, and when they have had enough.

use std::{num::NonZeroU32, time::Duration};

use fastrand::Rng;
use steadfast::{
    CallContext, ChatRequest, ChatService, Deadline, Failure, Message, Priority, RawJson, Tool,
};
use steadfast_tests::harness::Got;
use tokio::time::{Instant, sleep, timeout};
use tokio_stream::StreamExt as _;
use tower::ServiceExt as _;

use crate::{chance, maybe, ms};

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
}

/// When a caller leaves before the end.
#[derive(Clone, Copy, Debug)]
enum Leaves {
    Never,
    /// After so long, wherever the call stands.
    After(Duration),
    /// After so many events of the answer; with none, it does not even look.
    With(usize),
}

/// How it ended for one caller.
#[derive(Debug)]
pub(crate) struct Ending {
    pub(crate) caller: Caller,
    /// When it ended or was left, since the beginning of the world.
    pub(crate) at: Duration,
    /// The longest it might have taken.
    pub(crate) limit: Duration,
    pub(crate) took: Duration,
    /// What it got, unless it left before the end.
    pub(crate) got: Option<Got>,
}

impl Caller {
    pub(crate) fn new(id: usize, dice: &mut Rng) -> Self {
        let leaves = match dice.u8(0..10) {
            0 | 1 => Leaves::After(ms(dice, 0..20_000)),
            2 => Leaves::With(dice.usize(0..20)),
            _ => Leaves::Never,
        };
        Self {
            id,
            after: ms(dice, 0..30_000),
            stream: dice.bool(),
            tools: chance(dice, 0.2),
            max_output: dice.u64(20..200),
            session: maybe(dice, |dice| dice.u8(0..3)),
            background: chance(dice, 0.3),
            max_attempts: maybe(dice, |dice| NonZeroU32::new(dice.u32(1..8)).unwrap()),
            already: if chance(dice, 0.2) { dice.u32(0..4) } else { 0 },
            deadline: maybe(dice, |dice| ms(dice, 1..60_000)),
            leaves,
        }
    }

    /// One that wants nothing special, and an answer.
    pub(crate) fn plain(stream: bool) -> ChatRequest {
        let request = ChatRequest::user("Are you there?").with_model("any").with_max_output(60);
        if stream { request.streaming() } else { request }
    }

    fn request(&self) -> ChatRequest {
        let ask = if self.tools { "Please call look." } else { "Tell me of the river." };
        let message = Message::user(format!("Caller {}: {ask}", self.id));
        let mut request =
            ChatRequest::new(vec![message]).with_model("any").with_max_output(self.max_output);
        if self.tools {
            let schema = r#"{"type":"object","properties":{"at":{"type":"string"}}}"#;
            let schema = RawJson::parse(schema).unwrap();
            request = request.with_tools(vec![Tool::function("look", "Looks.", schema)]);
        }
        if self.stream {
            request = request.streaming();
        }
        let mut context = CallContext::recording();
        if let Some(session) = self.session {
            context = context.with_tenant("acme").with_session(format!("session {session}"));
        }
        if self.background {
            context = context.with_priority(Priority::Background);
        }
        context.max_attempts = self.max_attempts;
        context.attempts = self.already;
        request.with_context(context)
    }

    /// Waits, calls, and stays or leaves. `pipeline` is the limit of the stack.
    pub(crate) async fn call(
        self,
        service: ChatService,
        pipeline: Duration,
        world_began: Instant,
    ) -> Ending {
        sleep(self.after).await;
        let mut request = self.request();
        request.context.deadline = self.deadline.map(Deadline::after);
        let limit = self.deadline.map_or(pipeline, |own| own.min(pipeline));
        let began = Instant::now();
        // What has not ended by then never would.
        let end = timeout(limit + Duration::from_secs(3_600), async {
            match self.leaves {
                Leaves::Never => Some(Got::of(&service, request).await),
                Leaves::After(patience) => timeout(patience, Got::of(&service, request)).await.ok(),
                Leaves::With(events) => {
                    look(service, request, events).await;
                    None
                }
            }
        });
        let got = end.await.unwrap_or_else(|_| panic!("it never ends: {self:?}"));
        let took = began.elapsed();
        Ending { caller: self, at: world_began.elapsed(), limit, took, got }
    }
}

/// Reads at most so many events, and drops the answer.
async fn look(service: ChatService, request: ChatRequest, events: usize) {
    let Ok::<_, Failure>(mut answer) = service.oneshot(request).await else { return };
    for _ in 0..events {
        let Some(Ok(_)) = answer.next().await else { return };
    }
}

/// Whose attempt a provider saw.
pub(crate) fn whose(body: &[u8]) -> Option<usize> {
    let body = std::str::from_utf8(body).ok()?;
    let (_, rest) = body.split_once("Caller ")?;
    rest.split_once(':')?.0.parse().ok()
}
