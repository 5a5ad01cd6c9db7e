//! A hyper 1 service with six layers around the LLM client, and no web framework: a question is the body of
//! a request, and the answer is streamed into the body of the response as it comes.
//!
//! An `OnStepLayer` around all of them prints what they do. Two providers are simulated, behind real
//! sockets; the first one has a bad day. Run it with `cargo run -p example-hyper-service`; it ends with an
//! error if anything else happens.

use std::{convert::Infallible, error::Error, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::StreamExt;
use http::{Request, Response};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    body::{Frame, Incoming},
    service::service_fn,
};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use parking_lot::Mutex;
use steadfast::{
    Backoff, ChatRequest, ChatResponse, ChatService, Delta, Dialect, Event, Failure, OnStepLayer,
    breaker::CircuitBreakerLayer,
    classify::ClassifyLayer,
    client::{Credential, LlmClient, Provider, Providers},
    compact::CompactionLayer,
    failover::{Chain, CooldownFailoverLayer, TargetSpec},
    guard::SafetyGuardLayer,
    retry::RetryBackoffLayer,
    sim::{Answer, ErrorKind, Fault, FaultPlan, How, PlanRule, RateLimit, SimProvider, SimServer},
};
use tokio::net::TcpListener;
use tower::{ServiceBuilder, ServiceExt};

/// A failure after content ends the body early, so that nobody takes what came for the whole.
type Body = UnsyncBoxBody<Bytes, Failure>;

/// Six layers around the client, outermost first, and outside of all who is given their steps.
fn llm(
    providers: Providers,
    on_step: impl Fn(&steadfast::Step) + Send + Sync + 'static,
) -> Result<ChatService, Box<dyn Error>> {
    let chain = Chain::new([
        TargetSpec::new("anthropic").with_model("*", "claude-sonnet-4-5"),
        TargetSpec::new("openai").with_model("*", "gpt-4o"),
    ])?;
    // Short waits for the example; the default is 500 ms doubling to 10 s.
    let backoff = Backoff::new(Duration::from_millis(20), Duration::from_millis(200))?;
    let stack = ServiceBuilder::new()
        .layer(OnStepLayer::new(on_step))
        .layer(SafetyGuardLayer::default())
        .layer(CooldownFailoverLayer::new(chain))
        .layer(CompactionLayer::rules_only())
        .layer(RetryBackoffLayer::in_stack().with_backoff(backoff)?)
        .layer(CircuitBreakerLayer::default())
        .layer(ClassifyLayer::default())
        .service(LlmClient::new(providers));
    Ok(ChatService::new(stack.map_response(ChatResponse::boxed)))
}

/// The service: a question in, an answer out.
async fn answer(
    llm: ChatService,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let text = |text: String| Full::from(text).map_err(|never| match never {}).boxed_unsync();
    let Ok(question) = request.into_body().collect().await else {
        return Ok(Response::new(text("The question broke off.".to_owned())));
    };
    let question = String::from_utf8_lossy(&question.to_bytes()).into_owned();
    Ok(match llm.oneshot(ChatRequest::user(question).streaming()).await {
        Ok(answer) => Response::new(StreamBody::new(StreamExt::map(answer, frame)).boxed_unsync()),
        Err(failure) => {
            let mut response = Response::new(text(failure.user_message().to_owned()));
            *response.status_mut() = failure.http_status();
            response
        }
    })
}

/// The text of an event.
fn frame(event: Result<Event, Failure>) -> Result<Frame<Bytes>, Failure> {
    let mut text = String::new();
    for delta in event?.deltas {
        if let Delta::Text { text: more, .. } = delta {
            text.push_str(&more);
        }
    }
    Ok(Frame::data(text.into()))
}

/// Serves each connection on a task of its own.
async fn serve(listener: TcpListener, llm: ChatService) {
    while let Ok((socket, _)) = listener.accept().await {
        let llm = llm.clone();
        let service = service_fn(move |request| answer(llm.clone(), request));
        tokio::spawn(async move {
            let connection = auto::Builder::new(TokioExecutor::new());
            // A caller who hangs up is no error of the service.
            let _ = connection.serve_connection(TokioIo::new(socket), service).await;
        });
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // By the number of the request that reaches the provider, retries included.
    let nth = |n, fault| PlanRule::new(fault).nth(n);
    let first = FaultPlan::none()
        .rule(nth(1, Fault::rate_limit(RateLimit::after_ms(50))))
        .rule(PlanRule::new(Fault::Error(ErrorKind::ServerError)).from(3));
    let second = FaultPlan::none().rule(nth(2, Fault::break_after(3, How::Reset)));
    let first = simulated(Dialect::Anthropic, first).await?;
    let second = simulated(Dialect::OpenAi, second).await?;
    let provider = |name: &str, dialect, server: &SimServer| {
        Provider::new(name, dialect)
            .with_base_url(server.base_url())
            .with_credential(Credential::new("main", "any"))
    };
    let providers = Providers::new([
        provider("anthropic", Dialect::Anthropic, &first),
        provider("openai", Dialect::OpenAi, &second),
    ])?;
    let steps = Arc::new(Mutex::new(Vec::new()));
    let seen = steps.clone();
    let llm = llm(providers, move |step| {
        println!("  {step}");
        seen.lock().push(format!("{}.{}", step.layer, step.action));
    })?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/", listener.local_addr()?);
    tokio::spawn(serve(listener, llm));

    let done = || std::mem::take(&mut *steps.lock());
    println!("a 429 with a hint:");
    ensure(ask(&url).await?.as_deref() == Some(WORDS), "the whole answer")?;
    ensure(done() == ["retry.retried"], "it was retried in place")?;

    println!("a provider that fails:");
    ensure(ask(&url).await?.as_deref() == Some(WORDS), "the whole answer")?;
    ensure(done().contains(&"failover.switched".to_owned()), "the other one answered")?;

    println!("a reset after the third word:");
    ensure(ask(&url).await?.is_none(), "the body breaks off, too")?;
    Ok(())
}

const WORDS: &str = "It is forty-two, as ever.";

/// The answer, or none if it broke off.
async fn ask(url: &str) -> Result<Option<String>, Box<dyn Error>> {
    let http: Client<HttpConnector, Full<Bytes>> =
        Client::builder(TokioExecutor::new()).build_http();
    let question = Request::post(url).body(Full::from("What is it?"))?;
    let response = http.request(question).await?;
    println!("  {}", response.status());
    let body = response.into_body().collect().await;
    let text = body.ok().map(|body| String::from_utf8_lossy(&body.to_bytes()).into_owned());
    println!("  {}", text.as_deref().unwrap_or("broke off"));
    Ok(text)
}

async fn simulated(dialect: Dialect, faults: FaultPlan) -> std::io::Result<SimServer> {
    let provider = SimProvider::builder(dialect).with_faults(faults);
    SimServer::local(provider.respond(|_| Some(Answer::text(WORDS))).build()).await
}

/// An error that names the condition that does not hold.
fn ensure(holds: bool, what: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(format!("this should hold: {what}")) }
}
