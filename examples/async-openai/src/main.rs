//! async-openai with three layers under its typed API: classify, retry, breaker.
//!
//! With its feature `middleware`, async-openai passes every call to a tower service that takes an
//! `HttpRequestFactory`, from which each attempt builds a fresh request, and answers with a
//! `reqwest::Response`. [`resilient`] adds the layers there; chat calls and streams then go
//! through them and nothing else changes.
//!
//! The provider is simulated, behind a real socket: it limits, is overloaded, answers, and then
//! dies. Run it with `cargo run -p example-async-openai`; it ends with an error if anything else
//! happens.

use std::{error::Error, time::Duration};

use async_openai::{
    Client,
    config::OpenAIConfig,
    error::OpenAIError,
    middleware::{HttpRequestFactory, ReqwestService},
    types::chat::{
        ChatCompletionRequestMessage, ChatCompletionRequestUserMessage, CreateChatCompletionRequest,
    },
};
use futures_util::StreamExt;
use reqwest::Body;
use steadfast::{
    Backoff, Call, CallContext, Failure, Reason, RecoveryLog,
    breaker::{BreakerHandle, CircuitBreakerLayer},
    circuit::CircuitState,
    classify::ClassifyLayer,
    retry::RetryBackoffLayer,
    sim::{
        Answer, Dialect, ErrorKind, Fault, FaultPlan, PlanRule, RateLimit, SimProvider, SimServer,
    },
};
use tower::ServiceBuilder;

/// async-openai's request with the context that layers need. A type of another crate can not
/// implement `Call` here, so this one wraps it.
#[derive(Clone)]
struct OpenAiCall {
    factory: HttpRequestFactory,
    context: CallContext,
}

impl Call for OpenAiCall {
    fn context(&self) -> &CallContext {
        &self.context
    }

    fn context_mut(&mut self) -> &mut CallContext {
        &mut self.context
    }
}

/// `client` with the layers around its HTTP service; their steps are written to `log`.
fn resilient(
    client: Client<OpenAIConfig>,
    log: RecoveryLog,
) -> Result<(Client<OpenAIConfig>, BreakerHandle), Box<dyn Error>> {
    // Short waits for the example; the default is 10 retries from 500 ms on.
    let backoff = Backoff::new(Duration::from_millis(20), Duration::from_millis(200))?;
    let retry = RetryBackoffLayer::transient().with_retries(2).with_backoff(backoff)?;
    let breaker = CircuitBreakerLayer::default();
    let breakers = breaker.handle();
    let stack = ServiceBuilder::new()
        // Above are async-openai's types. Its error can box any other.
        .map_err(|failure: Failure| OpenAIError::Boxed(failure.into()))
        .map_response(|response: http::Response<_>| response.map(Body::wrap).into())
        .map_request(move |factory| OpenAiCall {
            factory,
            context: CallContext::new().with_target("openai").with_log(log.clone()),
        })
        // The layers.
        .layer(retry)
        .layer(breaker)
        .layer(ClassifyLayer::llm_http())
        // Below is async-openai's own service, which sends each request once, with reqwest.
        .map_response(http::Response::<Body>::from)
        .map_request(|call: OpenAiCall| call.factory)
        .service(ReqwestService::new(reqwest::Client::new()));
    Ok((client.with_http_service(stack), breakers))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let server = SimServer::local(provider()).await?;
    let config = OpenAIConfig::new().with_api_base(server.base_url()).with_api_key("any");
    let log = RecoveryLog::enabled();
    let (client, breakers) = resilient(Client::with_config(config), log.clone())?;

    println!("a provider that limits, is overloaded, then answers:");
    let answer = client.chat().create(question()).await?;
    let text = answer.choices.first().and_then(|item| item.message.content.clone());
    println!("  {log}");
    println!("  {text:?}, {} tokens", answer.usage.map_or(0, |usage| usage.total_tokens));
    ensure(text.as_deref() == Some("It is forty-two."), "a typed answer arrives")?;
    let reasons: Vec<_> = log.steps().into_iter().filter_map(|step| step.reason).collect();
    ensure(
        reasons == [Reason::RateLimit, Reason::Overloaded],
        "two retries, each with its reason",
    )?;

    println!("a stream, through the same layers:");
    let mut stream = client.chat().create_stream(question()).await?;
    let mut streamed = String::new();
    while let Some(chunk) = stream.next().await {
        let choices = chunk?.choices;
        streamed.extend(choices.into_iter().filter_map(|item| item.delta.content));
    }
    println!("  {streamed}");
    ensure(streamed == "It is forty-two.", "a stream arrives whole")?;

    println!("then it dies:");
    server.abort().await;
    let mut failures = Vec::new();
    for _ in 0..3 {
        let failure = failure(client.chat().create(question()).await)?;
        println!("  {failure}");
        failures.push(failure);
    }
    // Three attempts each: the breaker opens at the fifth failure in a row, in the second call.
    let [first, .., refusal] = &failures[..] else { return Err("three failures".into()) };
    ensure(first.reason() == Reason::Network, "reqwest's error is classified by its type")?;
    ensure(refusal.reason() == Reason::CircuitOpen, "the breaker has opened")?;
    ensure(refusal.attempts() == 0, "a refused call makes no attempt")?;
    ensure(refusal.retry_after().is_some(), "a refusal has a retry delay")?;
    let open =
        breakers.snapshot().iter().all(|breaker| breaker.circuit.state == CircuitState::Open);
    ensure(open, "and so does the breaker's handle")
}

/// The typed failure in async-openai's error.
fn failure<T>(result: Result<T, OpenAIError>) -> Result<Failure, Box<dyn Error>> {
    match result {
        Ok(_) => Err("a dead provider can not answer".into()),
        Err(OpenAIError::Boxed(error)) => Ok(Failure::from(error)),
        Err(other) => Err(other.into()),
    }
}

fn question() -> CreateChatCompletionRequest {
    let message = ChatCompletionRequestUserMessage::from("What is it?");
    CreateChatCompletionRequest {
        model: "gpt-4o".to_owned(),
        messages: vec![ChatCompletionRequestMessage::User(message)],
        ..Default::default()
    }
}

/// A 429 with a delay of 100 ms, then a 503, then answers.
fn provider() -> SimProvider {
    let faults = FaultPlan::none()
        .rule(PlanRule::new(Fault::rate_limit(RateLimit::after_ms(100))).nth(1))
        .rule(PlanRule::new(Fault::Error(ErrorKind::Overloaded)).nth(2));
    SimProvider::builder(Dialect::OpenAi)
        .with_faults(faults)
        .respond(|_| Some(Answer::text("It is forty-two.")))
        .build()
}

/// An error that names the condition that does not hold.
fn ensure(holds: bool, what: &str) -> Result<(), Box<dyn Error>> {
    if holds { Ok(()) } else { Err(format!("this should hold: {what}").into()) }
}
