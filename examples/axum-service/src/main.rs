//! An axum service with six layers around the LLM client: guard, failover, compaction, retry, breaker and
//! classify.
//!
//! `POST /ask` answers a question with text, `GET /ask/stream` with server-sent events, and `POST /chat`
//! a conversation in OpenAI's dialect; `GET /health` shows the breakers. This file is the service; [`scenario`] has two simulated
//! providers, the first of which fails, and sends the service a few requests, so that each layer has
//! something to do. `cargo run -p example-axum-service` prints what happens and ends with an error if
//! anything else happens.

mod scenario;

use std::{error::Error, time::Duration};

use axum::{
    Json, Router,
    body::Bytes,
    extract::{Query, State},
    http::{HeaderValue, StatusCode},
    response::{IntoResponse, Response, Sse, sse},
    routing::{get, post},
};
use futures_util::{Stream, StreamExt, stream};
use steadfast::{
    Backoff, CallContext, ChatRequest, ChatResponse, ChatService, Delta, Dialect, Event, Failure,
    breaker::{BreakerHandle, BreakerPolicy, CircuitBreakerLayer},
    classify::ClassifyLayer,
    client::{LlmClient, Providers, dialect},
    compact::{CompactionLayer, TargetFacts, TokenLimits},
    failover::{Chain, CooldownFailoverLayer, TargetSpec},
    guard::SafetyGuardLayer,
    retry::RetryBackoffLayer,
};
use tower::{ServiceBuilder, ServiceExt};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    scenario::run().await
}

/// Six layers around the client, outermost first. Clones of the service share the state of the layers.
fn llm(providers: Providers) -> Result<Llm, Box<dyn Error>> {
    let chain = Chain::new([
        TargetSpec::new("anthropic").with_model("*", "claude-sonnet-4-5"),
        TargetSpec::new("openai").with_model("*", "gpt-4o"),
    ])?;
    // A small window for the example. Those of known models are known, and others can be learned.
    let compaction = CompactionLayer::rules_only()
        .with_targets(|_| TargetFacts::default().with_limits(TokenLimits::new(8_192)));
    // Short waits for the example; the default is 500 ms doubling to 10 s.
    let backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1))?;
    // Two failures in a row for the example; the default is 20 where failover selects the target.
    let policy = BreakerPolicy { dead: Some(2), ..BreakerPolicy::default() };
    let breaker = CircuitBreakerLayer::new(policy)?;
    let breakers = breaker.handle();
    let stack = ServiceBuilder::new()
        .layer(SafetyGuardLayer::default())
        .layer(CooldownFailoverLayer::new(chain))
        .layer(compaction)
        .layer(RetryBackoffLayer::in_stack().with_backoff(backoff)?)
        .layer(breaker)
        .layer(ClassifyLayer::default())
        .service(LlmClient::new(providers));
    Ok(Llm { service: ChatService::new(stack.map_response(ChatResponse::boxed)), breakers })
}

/// The stack, its type erased, and a handle of one of its layers.
#[derive(Clone)]
struct Llm {
    service: ChatService,
    breakers: BreakerHandle,
}

fn router(llm: Llm) -> Router {
    Router::new()
        .route("/ask", post(ask))
        .route("/ask/stream", get(ask_stream))
        .route("/chat", post(chat))
        .route("/health", get(health))
        .with_state(llm)
}

#[derive(serde::Deserialize)]
struct AskRequest {
    question: String,
}

async fn ask(State(llm): State<Llm>, Json(body): Json<AskRequest>) -> Response {
    answer(llm, ChatRequest::user(body.question)).await
}

/// A conversation, with tools and their results, as any client of OpenAI's sends it.
async fn chat(State(llm): State<Llm>, body: Bytes) -> Response {
    let codec = dialect::codec(Dialect::OpenAi);
    match codec.decode_request(&body, dialect::Route::default()) {
        Ok(request) => answer(llm, request).await,
        Err(error) => (StatusCode::BAD_REQUEST, error.to_string()).into_response(),
    }
}

/// The answer as text, with the recovery log in a header. A `Failure` is itself a response: its
/// status, `retry-after` when there is a hint, and a message that is safe to show.
async fn answer(llm: Llm, request: ChatRequest) -> Response {
    let context = CallContext::recording();
    let log = context.log.clone();
    let call = async { llm.service.oneshot(request.with_context(context)).await?.collect().await };
    let answer: Result<_, Failure> = call.await;
    let mut response = answer.map(|answer| answer.text()).into_response();
    if let Ok(log) = HeaderValue::try_from(log.to_string()) {
        response.headers_mut().insert("x-recovery", log);
    }
    response
}

/// The state of each target's breaker.
async fn health(State(llm): State<Llm>) -> String {
    let breakers = llm.breakers.snapshot();
    let lines = breakers.iter().map(|one| {
        let target = one.key.as_ref().map_or_else(String::new, ToString::to_string);
        format!("{target} {}\n", one.circuit.state)
    });
    lines.collect()
}

/// The answer as it arrives, each piece of text as a JSON string. A failure before the first
/// content is retried, or is a response with a status; a later one is an `error` event.
async fn ask_stream(
    State(llm): State<Llm>,
    Query(body): Query<AskRequest>,
) -> Result<Sse<impl Stream<Item = Result<sse::Event, axum::Error>>>, Failure> {
    let answer = llm.service.oneshot(ChatRequest::user(body.question).streaming()).await?;
    Ok(Sse::new(answer.flat_map(|event| stream::iter(frames(event)))))
}

/// The frames of one event. Only the provider's own end makes an `end`.
fn frames(event: Result<Event, Failure>) -> Vec<Result<sse::Event, axum::Error>> {
    let frame = sse::Event::default;
    let deltas = match event {
        Ok(event) => event.deltas,
        Err(failure) => return vec![frame().event("error").json_data(failure.user_message())],
    };
    let frames = deltas.into_iter().filter_map(|delta| match delta {
        Delta::Text { text, .. } => Some(frame().json_data(text)),
        Delta::End => Some(frame().event("end").json_data(())),
        _ => None,
    });
    frames.collect()
}
