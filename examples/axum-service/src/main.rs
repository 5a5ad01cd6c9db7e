//! An axum service with three layers around the LLM client: classify, retry, failover.
//!
//! `POST /ask` answers with text, `GET /ask/stream` with server-sent events. This file is the
//! service; [`scenario`] has two simulated providers, the first of which fails, and sends the
//! service a few questions. `cargo run -p example-axum-service` prints what happens and ends with
//! an error if anything else happens.

mod scenario;

use std::{error::Error, time::Duration};

use axum::{
    Json, Router,
    extract::{Query, State},
    http::HeaderValue,
    response::{IntoResponse, Sse, sse},
    routing::{get, post},
};
use futures_util::{Stream, StreamExt, stream};
use steadfast::{
    Backoff, CallContext, ChatRequest, ChatResponse, Delta, Event, Failure,
    classify::ClassifyLayer,
    client::{LlmClient, Providers},
    failover::{Chain, CooldownFailoverLayer, TargetSpec},
    retry::RetryBackoffLayer,
};
use tower::{ServiceBuilder, ServiceExt, util::BoxCloneSyncService};

/// The stack, its type erased. Clones share the state of its layers.
type Llm = BoxCloneSyncService<ChatRequest, ChatResponse, Failure>;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    scenario::run().await
}

/// Three layers around the client, outermost first.
fn llm(providers: Providers) -> Result<Llm, Box<dyn Error>> {
    let chain = Chain::new([
        TargetSpec::new("anthropic").with_model("*", "claude-sonnet-4-5"),
        TargetSpec::new("openai").with_model("*", "gpt-4o"),
    ])?;
    // Short waits for the example; the default is 500 ms doubling to 32 s.
    let backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1))?;
    let stack = ServiceBuilder::new()
        .layer(CooldownFailoverLayer::new(chain))
        .layer(RetryBackoffLayer::transient().with_backoff(backoff)?)
        .layer(ClassifyLayer::default())
        .service(LlmClient::new(providers));
    Ok(BoxCloneSyncService::new(stack.map_response(ChatResponse::boxed)))
}

fn router(llm: Llm) -> Router {
    Router::new().route("/ask", post(ask)).route("/ask/stream", get(ask_stream)).with_state(llm)
}

#[derive(serde::Deserialize)]
struct AskRequest {
    question: String,
}

impl AskRequest {
    fn request(self) -> ChatRequest {
        ChatRequest::user(self.question).with_context(CallContext::recording())
    }
}

/// The answer as text, with the recovery log in a header. A `Failure` is itself a response: its
/// status, `retry-after` when there is a hint, and a message that is safe to show.
async fn ask(
    State(llm): State<Llm>,
    Json(body): Json<AskRequest>,
) -> Result<impl IntoResponse, Failure> {
    let answer = llm.oneshot(body.request()).await?.collect().await?;
    let log = HeaderValue::try_from(answer.head.log.to_string());
    let log = log.unwrap_or(HeaderValue::from_static("not printable"));
    Ok(([("x-recovery", log)], answer.text()))
}

/// The answer as it arrives, each piece of text as a JSON string. A failure before the first
/// content is retried, or is a response with a status; a later one is an `error` event.
async fn ask_stream(
    State(llm): State<Llm>,
    Query(body): Query<AskRequest>,
) -> Result<Sse<impl Stream<Item = Result<sse::Event, axum::Error>>>, Failure> {
    let answer = llm.oneshot(body.request().streaming()).await?;
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
