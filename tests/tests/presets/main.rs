//! The presets, number by number, through the whole stack: simulated providers below `Stack` and
//! `LlmClient`, on a paused clock. What is asserted is what providers and callers see.

#![allow(clippy::unwrap_used)]

mod adr012;
mod agent;
mod around;
mod claude_code;
mod codebuddy;
mod comis;
mod comis_agent;
mod compaction;
mod guppy;
mod guppy_agent;

use std::{collections::BTreeMap, time::Duration};

use steadfast::{
    ChatRequest, ChatService, Handles, Preset, Stack, Target,
    failover::{Chain, TargetHealth},
    sim::{Entry, ErrorKind, Fault, FaultPlan, RawResponse, SimProvider, SimProviderBuilder},
};
use steadfast_tests::harness::{self, CallResult};
use tokio::time::Instant;

/// A stack with a preset, in front of the first of `anthropic, openai, google`.
struct World {
    sims: Vec<SimProvider>,
    llm: ChatService,
    handles: Handles,
}

impl World {
    /// One provider for each plan.
    fn new(preset: Preset, plans: impl IntoIterator<Item = FaultPlan>) -> Self {
        let sims = sims(plans, |_, provider| provider);
        Self::of(&Stack::new(harness::chain(&sims)).preset(preset), sims)
    }

    /// This stack in front of these providers.
    fn of(stack: &Stack, sims: Vec<SimProvider>) -> Self {
        let (llm, handles) = (stack.boxed(harness::client(&sims)), stack.handles());
        Self { sims, llm, handles }
    }

    async fn ask(&self) -> CallResult {
        self.send(request()).await
    }

    async fn send(&self, request: ChatRequest) -> CallResult {
        CallResult::of(&self.llm, request).await
    }

    /// The requests to the provider at this position.
    fn asked(&self, position: usize) -> Vec<Entry> {
        self.sims[position].journal().entries()
    }

    /// How often each provider was asked.
    fn counts(&self) -> Vec<usize> {
        self.sims.iter().map(|sim| sim.journal().len()).collect()
    }

    /// The waits between the requests to the provider at this position, in milliseconds.
    fn waits(&self, position: usize) -> Vec<u128> {
        harness::waits(&self.asked(position)).iter().map(Duration::as_millis).collect()
    }

    fn health(&self, position: usize) -> TargetHealth {
        let provider = Target::new(self.sims[position].name());
        self.handles.failover.snapshot().get(&provider).unwrap().clone()
    }

    /// Whether anything of any provider rests.
    fn anything_rests(&self) -> bool {
        self.handles.failover.snapshot().cooling().next().is_some()
    }

    /// How long the provider at this position rests yet.
    fn rest(&self, position: usize) -> Option<Duration> {
        self.health(position).cooling_for(Instant::now())
    }

    fn set(&self, position: usize, plan: FaultPlan) {
        self.sims[position].set_faults(plan);
    }
}

fn sims(
    plans: impl IntoIterator<Item = FaultPlan>,
    set_up: impl Fn(usize, SimProviderBuilder) -> SimProviderBuilder,
) -> Vec<SimProvider> {
    let plans: Vec<_> = plans.into_iter().collect();
    let all =
        harness::TRIO.iter().zip(plans).enumerate().map(|(position, ((name, dialect), plan))| {
            let provider = SimProvider::builder(*dialect).with_name(*name).with_faults(plan);
            set_up(position, provider).build()
        });
    all.collect()
}

fn chain(sims: &[SimProvider]) -> Chain {
    harness::chain(sims)
}

fn request() -> ChatRequest {
    ChatRequest::user("Tell me of the fox.").with_model("any")
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// This status with an error that says `text`.
fn status(status: u16, text: &str) -> Fault {
    let body = format!(r#"{{"type":"error","error":{{"type":"error","message":"{text}"}}}}"#);
    Fault::Status(RawResponse { status, headers: BTreeMap::new(), body })
}

fn hinted(status: u16, seconds: u64) -> Fault {
    let headers = [("retry-after".to_owned(), seconds.to_string())].into();
    Fault::Status(RawResponse { status, headers, body: "{}".to_owned() })
}

/// A stream of Anthropic's that says `text`, and then that it has failed with this error.
fn failing_stream(text: &str, kind: &str, message: &str) -> Fault {
    let event =
        |name: &str, rest: &str| format!("event: {name}\ndata: {{\"type\":\"{name}\"{rest}}}\n\n");
    let mut body = event(
        "message_start",
        r#","message":{"id":"m","type":"message","role":"assistant","model":"claude-sonnet-4-5","content":[],"usage":{"input_tokens":1,"output_tokens":1}}"#,
    );
    if !text.is_empty() {
        let delta = format!(r#","index":0,"delta":{{"type":"text_delta","text":"{text}"}}"#);
        body += &event(
            "content_block_start",
            r#","index":0,"content_block":{"type":"text","text":""}"#,
        );
        body += &event("content_block_delta", &delta);
    }
    body += &event("error", &format!(r#","error":{{"type":"{kind}","message":"{message}"}}"#));
    let headers = [("content-type".to_owned(), "text/event-stream".to_owned())].into();
    Fault::Status(RawResponse { status: 200, headers, body })
}

fn error(kind: ErrorKind) -> Fault {
    Fault::Error(kind)
}

fn always(fault: Fault) -> FaultPlan {
    FaultPlan::always(fault)
}

fn fine() -> FaultPlan {
    FaultPlan::none()
}
