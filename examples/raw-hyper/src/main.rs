//! A resilient raw hyper client: no LLM client and no chat types, only `http::Request` and
//! `http::Response`, with three layers around hyper-util's own client.
//!
//! The provider is simulated, behind a real socket: it fails twice, answers, and then dies. Run it
//! with `cargo run -p example-raw-hyper`; it ends with an error if anything else happens.

use std::{error::Error, time::Duration};

use bytes::Bytes;
use http::{Request, header};
use http_body_util::{BodyExt, Full};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use steadfast::{
    Backoff, Call, CallContext, Failure, Reason,
    breaker::CircuitBreakerLayer,
    circuit::CircuitState,
    classify::ClassifyLayer,
    retry::RetryBackoffLayer,
    sim::{
        Answer, Dialect, ErrorKind, Fault, FaultPlan, PlanRule, RateLimit, SimProvider, SimServer,
    },
};
use tower::{Service, ServiceBuilder, ServiceExt};

/// The body of requests. Retries send it again, so it has to be `Clone`.
type Body = Full<Bytes>;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let server = SimServer::local(provider()).await?;
    let url = format!("{}/chat/completions", server.base_url());

    // Short waits for the example; the default is 10 retries from 500 ms on.
    let backoff = Backoff::new(Duration::from_millis(20), Duration::from_millis(200))?;
    let retry = RetryBackoffLayer::transient().with_retries(2).with_backoff(backoff)?;
    let breaker = CircuitBreakerLayer::default().with_key(host).with_label(String::clone);
    let breakers = breaker.handle();
    let mut http = ServiceBuilder::new()
        .layer(retry)
        .layer(breaker)
        .layer(ClassifyLayer::llm_http())
        .service(Client::builder(TokioExecutor::new()).build_http::<Body>());

    println!("a provider that fails twice, then answers:");
    let question = question(&url)?;
    let log = question.context().log.clone();
    let answer = http.ready().await?.call(question).await?;
    // A breaker counts an answer when it has ended, so it has to be read to its end.
    let body = answer.into_body().collect().await?.to_bytes();
    let body = String::from_utf8_lossy(&body);
    println!("  {log}");
    println!("  {body}");
    ensure(body.contains("forty-two"), "the third attempt is answered")?;
    ensure(log.steps().len() == 2, "two retries")?;

    println!("then it dies:");
    server.abort().await;
    // Two calls of three attempts are more than the five failures in a row that open the breaker.
    for _ in 0..2 {
        let failure = refused(http.ready().await?.call(self::question(&url)?).await)?;
        println!("  {failure}");
    }
    let refusal = refused(http.ready().await?.call(self::question(&url)?).await)?;
    ensure(refusal.reason() == Reason::CircuitOpen, "the breaker has opened")?;
    ensure(refusal.attempts() == 0, "a refused call makes no attempt")?;
    let wait = refusal.retry_after().ok_or("a refusal has a retry delay")?;
    println!("  refused without an attempt; retry after {} ms", wait.as_millis());

    println!("the state of the breaker:");
    for host in breakers.snapshot() {
        println!(
            "  {}: {}, {} in a row failed",
            host.key, host.circuit.state, host.circuit.consecutive
        );
        ensure(host.circuit.state == CircuitState::Open, "the breaker of the dead host is open")?;
    }
    Ok(())
}

/// Each host has its breaker.
fn host(request: &Request<Body>) -> String {
    request.uri().authority().map(ToString::to_string).unwrap_or_default()
}

/// A 500, then a 429 with a delay of 150 ms, then an answer.
fn provider() -> SimProvider {
    let faults = FaultPlan::none()
        .rule(PlanRule::new(Fault::Error(ErrorKind::ServerError)).nth(1))
        .rule(PlanRule::new(Fault::rate_limit(RateLimit::after_ms(150))).nth(2));
    SimProvider::builder(Dialect::OpenAi)
        .with_faults(faults)
        .with_script([Answer::text("It is forty-two.")])
        .build()
}

/// A request with a recovery log. Without one it would need no context at all.
fn question(url: &str) -> Result<Request<Body>, http::Error> {
    let body = r#"{"model": "gpt-4o", "messages": [{"role": "user", "content": "What is it?"}]}"#;
    Request::post(url)
        .header(header::AUTHORIZATION, "Bearer any")
        .header(header::CONTENT_TYPE, "application/json")
        .extension(CallContext::recording())
        .body(Body::from(body))
}

/// The failure of a call that can not have an answer.
fn refused<T>(result: Result<T, Failure>) -> Result<Failure, &'static str> {
    result.err().ok_or("a dead provider can not answer")
}

/// An error that names the condition that does not hold.
fn ensure(holds: bool, what: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(format!("this should hold: {what}")) }
}
