//! What users run, in three forms: the stack, its layers one by one, and the gateway. Nothing is set in any
//! of them.

use std::{future::Future, pin::Pin, time::Duration};

use serde_json::json;
use steadfast::{
    ChatRequest, ChatResponse, ChatService, Dialect, RetryBudget, Stack,
    breaker::CircuitBreakerLayer,
    classify::ClassifyLayer,
    compact::CompactionLayer,
    escalate::EscalationLayer,
    failover::{Chain, CooldownFailoverLayer, FailoverHandle, TargetSpec},
    guard::SafetyGuardLayer,
    health::ProviderHealthLayer,
    limit::{RateLimitLayer, SpendLimitLayer},
    recover::{ContinuationLayer, StreamResumeLayer},
    retry::RetryBackoffLayer,
    sim::SimProvider,
    timeout::{DeadlineLayer, StallTimeoutLayer},
};
use steadfast_tests::{
    gateway::{http::HttpRequest, in_process::InProcess, path, wire_answer::WireAnswer},
    harness::{self, CallResult},
};
use tokio::time::Instant;
use tower::{ServiceBuilder, ServiceExt as _, util::BoxCloneSyncService};

/// What users run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Whole {
    /// `Stack::new(chain)`.
    Stack,
    /// The layers in their documented order, by tower's `ServiceBuilder`.
    Layers,
    /// `steadfast serve` with the keys of the providers in its environment.
    Gateway,
}

/// One question of somebody.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Question {
    pub(crate) dialect: Dialect,
    pub(crate) model: &'static str,
    pub(crate) prompt: &'static str,
    pub(crate) stream: bool,
}

/// What came of it.
#[derive(Debug)]
pub(crate) struct Got {
    pub(crate) took: Duration,
    /// The text of a whole answer, or why there is none.
    pub(crate) outcome: Result<String, String>,
    /// How often providers were asked, by its own account.
    pub(crate) attempts: u32,
}

type Asking = Pin<Box<dyn Future<Output = Got>>>;

/// One of them, in front of simulated providers.
pub(crate) struct Running {
    ask: Box<dyn Fn(Question) -> Asking>,
    pub(crate) failover: FailoverHandle,
}

/// The models of a vendor, and two of them.
pub(crate) const fn models(dialect: Dialect) -> (&'static str, [&'static str; 2]) {
    match dialect {
        Dialect::Anthropic => ("claude-*", ["claude-sonnet-4-5", "claude-haiku-4-5"]),
        Dialect::Gemini => ("gemini-*", ["gemini-2.5-flash", "gemini-2.5-pro"]),
        _ => ("gpt-*", ["gpt-4o", "gpt-4o-mini"]),
    }
}

/// As the gateway makes it of keys: a vendor's own models by their names, and one of its own for all others.
fn chain(sims: &[SimProvider]) -> Chain {
    let spec = |sim: &SimProvider| {
        let (own, [stand_in, _]) = models(sim.dialect());
        let spec = TargetSpec::new(sim.name()).with_dialect(sim.dialect());
        spec.with_model(own, "*").with_model("*", stand_in)
    };
    Chain::new(sims.iter().map(spec)).unwrap()
}

impl Whole {
    pub(crate) const ALL: [Self; 3] = [Self::Stack, Self::Layers, Self::Gateway];

    /// In front of these providers, the first of which is asked first.
    pub(crate) fn start(self, sims: &[SimProvider]) -> Running {
        match self {
            Self::Stack => {
                let stack = Stack::new(chain(sims));
                let failover = stack.handles().failover;
                typed(stack.boxed(harness::client(sims)), failover)
            }
            Self::Layers => {
                // What is not shared by itself: one budget, and what is known of degraded providers.
                let (budget, health) = (RetryBudget::default(), ProviderHealthLayer::default());
                let failover = CooldownFailoverLayer::new(chain(sims))
                    .with_budget(budget.clone())
                    .with_health(health.degraded());
                let compaction = CompactionLayer::rules_only().with_health(health.degraded());
                let spend = SpendLimitLayer::default();
                let handle = failover.handle();
                let service = ServiceBuilder::new()
                    .layer(DeadlineLayer::default())
                    .layer(&spend)
                    .layer(EscalationLayer::off())
                    .layer(SafetyGuardLayer::default())
                    .layer(ContinuationLayer::default())
                    .layer(StreamResumeLayer::default().with_budget(budget.drawing()))
                    .layer(failover)
                    .layer(health)
                    .layer(compaction)
                    .layer(RetryBackoffLayer::default().with_budget(budget.drawing()))
                    .layer(RateLimitLayer::default())
                    .layer(CircuitBreakerLayer::default())
                    .layer(StallTimeoutLayer::default())
                    .layer(spend.meter())
                    .layer(ClassifyLayer::default())
                    .service(harness::client(sims));
                let service = service.map_response(ChatResponse::boxed);
                typed(BoxCloneSyncService::new(service), handle)
            }
            Self::Gateway => {
                let gateway = std::rc::Rc::new(InProcess::without_file(sims));
                let failover = gateway.app.gateway().handles().failover.clone();
                let ask = move |question: Question| -> Asking {
                    let gateway = gateway.clone();
                    Box::pin(async move { over_http(&gateway, question).await })
                };
                Running { ask: Box::new(ask), failover }
            }
        }
    }
}

impl Running {
    pub(crate) async fn ask(&self, question: Question) -> Got {
        (self.ask)(question).await
    }
}

fn typed(service: ChatService, failover: FailoverHandle) -> Running {
    let ask = move |question: Question| -> Asking {
        let service = service.clone();
        Box::pin(async move {
            let Question { model, prompt, stream, .. } = question;
            let request = ChatRequest::user(prompt).with_model(model).with_max_output(1_000);
            let request = if stream { request.streaming() } else { request };
            let got = CallResult::of(&service, request).await;
            let (outcome, attempts) = match &got.failure {
                Some(failure) => (Err(failure.reason().to_string()), failure.attempts()),
                None => {
                    let answer = got.answer();
                    (Ok(answer.text()), answer.head.attempts)
                }
            };
            Got { took: got.took, outcome, attempts }
        })
    };
    Running { ask: Box::new(ask), failover }
}

/// After so much silence the head of a stream is sent, with the attempts made until then.
const EARLY: Duration = Duration::from_secs(20);

async fn over_http(gateway: &InProcess, question: Question) -> Got {
    let Question { dialect, model, prompt, stream } = question;
    let mut body = match dialect {
        Dialect::Gemini => json!({
            "contents": [{"role": "user", "parts": [{"text": prompt}]}],
            "generationConfig": {"maxOutputTokens": 1_000},
        }),
        Dialect::Responses => json!({
            "model": model,
            "max_output_tokens": 1_000,
            "input": [{"role": "user", "content": prompt}],
        }),
        Dialect::OpenAi | Dialect::Anthropic => json!({
            "model": model,
            "max_tokens": 1_000,
            "messages": [{"role": "user", "content": prompt}],
        }),
    };
    if stream && dialect != Dialect::Gemini {
        body["stream"] = json!(true);
    }
    let request = HttpRequest::post(path(dialect, model, stream), body.to_string())
        .header("anthropic-version", "2023-06-01");
    let asked = || gateway.app.metrics().attempts();
    let (began, before) = (Instant::now(), asked());
    let reply = gateway.send(&request).await;
    let took = began.elapsed();
    // A stream that is broken off gives its last event time to arrive.
    let took = if reply.clean { took } else { took - Duration::from_millis(100) };
    let outcome = match reply.status {
        200 if stream => {
            let answer = WireAnswer::stream(dialect, &reply.body);
            // The head was sent early, and a failure is an event.
            if answer.errors.is_empty() { Ok(answer.text) } else { Err(format!("{answer:?}")) }
        }
        200 => Ok(WireAnswer::whole(dialect, &reply.body).text),
        _ => Err(reply.header("x-steadfast-reason").unwrap().to_owned()),
    };
    let in_head = reply.header("x-steadfast-attempts").unwrap().parse().unwrap();
    let attempts = if stream && took >= EARLY { asked() - before } else { in_head };
    Got { took, outcome, attempts: attempts.try_into().unwrap() }
}
