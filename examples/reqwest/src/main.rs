//! A resilient reqwest client, with a breaker for each host.
//!
//! Layers use `http::Request` and `http::Response`; tower's own `filter` and `map_response` convert
//! them to reqwest's types at the bottom, so the configuration of reqwest (proxies, TLS, cookies,
//! decompression) does not change.
//!
//! Two simulated providers, behind real sockets: one fails twice and answers, the other is dead.
//! Run it with `cargo run -p example-reqwest`; it ends with an error if anything else happens.

use std::{error::Error, time::Duration};

use bytes::Bytes;
use http::{Request, Response, header};
use http_body_util::BodyExt;
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

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let (live, dead) = (SimServer::local(provider()).await?, SimServer::local(provider()).await?);

    // Short waits for the example; the default is 10 retries from 500 ms on.
    let backoff = Backoff::new(Duration::from_millis(20), Duration::from_millis(200))?;
    let retry = RetryBackoffLayer::transient().with_retries(2).with_backoff(backoff)?;
    let breaker = CircuitBreakerLayer::default().with_key(host).with_label(String::clone);
    let breakers = breaker.handle();
    let mut http = ServiceBuilder::new()
        .layer(retry)
        .layer(breaker)
        .layer(ClassifyLayer::llm_http())
        .map_response(Response::<reqwest::Body>::from)
        // A retry sends the request again, so its body has to be `Clone` in the layers; here it is
        // converted to reqwest's, for one attempt.
        .filter(<reqwest::Request as TryFrom<Request<Bytes>>>::try_from)
        .service(reqwest::Client::new());

    println!("a host that fails twice, then answers:");
    let (log, body) = ask(&mut http, &live).await?;
    println!("  {log}\n  {body}");
    ensure(body.contains("forty-two"), "the third attempt is answered")?;
    ensure(log.matches("retry.retried").count() == 2, "two retries")?;

    println!("another one dies:");
    let address = dead.base_url();
    dead.abort().await;
    let mut failures = Vec::new();
    for _ in 0..3 {
        let failure = refused(http.ready().await?.call(question(&address)?).await)?;
        println!("  {failure}");
        failures.push(failure);
    }
    // Three attempts each: the breaker opens at the fifth failure in a row, in the second call.
    let [first, .., refusal] = &failures[..] else { return Err("three failures".into()) };
    ensure(first.reason() == Reason::Network, "reqwest's error is classified by its type")?;
    ensure(refusal.reason() == Reason::CircuitOpen, "the breaker has opened")?;
    ensure(refusal.attempts() == 0, "a refused call makes no attempt")?;

    println!("the first host is not affected:");
    let (_, body) = ask(&mut http, &live).await?;
    println!("  {body}");
    let mut breakers = breakers.snapshot();
    breakers.sort_by_key(|host| host.circuit.state != CircuitState::Closed);
    for host in &breakers {
        println!("  {}: {}", host.key, host.circuit.state);
    }
    let states: Vec<CircuitState> = breakers.iter().map(|host| host.circuit.state).collect();
    ensure(states == [CircuitState::Closed, CircuitState::Open], "one breaker of two is open")
}

/// Makes a call and reads the answer to its end, which is when a breaker counts it.
async fn ask<S, B>(http: &mut S, server: &SimServer) -> Result<(String, String), Box<dyn Error>>
where
    S: Service<Request<Bytes>, Response = Response<B>, Error = Failure>,
    B: http_body::Body<Error = Failure>,
{
    let question = question(&server.base_url())?;
    let log = question.context().log.clone();
    let answer = http.ready().await?.call(question).await?;
    let body = answer.into_body().collect().await?.to_bytes();
    Ok((log.to_string(), String::from_utf8(body.into())?))
}

/// Each host has its breaker.
fn host(request: &Request<Bytes>) -> String {
    request.uri().authority().map(ToString::to_string).unwrap_or_default()
}

/// A 503, then a 429 with a delay of 100 ms, then answers.
fn provider() -> SimProvider {
    let faults = FaultPlan::none()
        .rule(PlanRule::new(Fault::Error(ErrorKind::Overloaded)).nth(1))
        .rule(PlanRule::new(Fault::rate_limit(RateLimit::after_ms(100))).nth(2));
    SimProvider::builder(Dialect::OpenAi)
        .with_faults(faults)
        .respond(|_| Some(Answer::text("It is forty-two.")))
        .build()
}

/// A request with a recovery log. Without one it would need no context at all.
fn question(base_url: &str) -> Result<Request<Bytes>, http::Error> {
    let body = r#"{"model": "gpt-4o", "messages": [{"role": "user", "content": "What is it?"}]}"#;
    Request::post(format!("{base_url}/chat/completions"))
        .header(header::AUTHORIZATION, "Bearer any")
        .header(header::CONTENT_TYPE, "application/json")
        .extension(CallContext::recording())
        .body(Bytes::from_static(body.as_bytes()))
}

/// The failure of a call that can not have an answer.
fn refused<T>(result: Result<T, Failure>) -> Result<Failure, &'static str> {
    result.err().ok_or("a dead provider can not answer")
}

/// An error that names the condition that does not hold.
fn ensure(holds: bool, what: &str) -> Result<(), Box<dyn Error>> {
    if holds { Ok(()) } else { Err(format!("this should hold: {what}").into()) }
}
