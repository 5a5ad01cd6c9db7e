//! A stream that moves to another provider, and one that no longer can.
//!
//! After a failure before the first content the next provider is called, and the caller gets one
//! clean stream. A failure after it is reported: what was delivered can not be taken back, and a
//! second provider would start again. So the stream ends with one typed error, after everything
//! that arrived before it.
//!
//! Two providers are simulated, behind real sockets. Run it with
//! `cargo run -p example-streaming-failover`; it ends with an error if anything else happens.

use std::error::Error;

use futures_util::StreamExt;
use steadfast::{
    CallContext, ChatRequest, ChatResponse, Completion, Delta, Dialect, Failure, Reason,
    RecoveryLog,
    classify::ClassifyLayer,
    client::{Credential, LlmClient, Provider, Providers},
    failover::{Chain, CooldownFailoverLayer, TargetSpec},
    sim::{Answer, ErrorKind, Fault, FaultPlan, How, PlanRule, SimProvider, SimServer},
};
use tower::{Service, ServiceBuilder, ServiceExt};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // The first provider sends headers and a ping, and then an error event instead of content. One
    // failure is no reason to avoid it, so it answers the next call, and loses its connection after
    // the fourth piece.
    let overloaded = Fault::break_after(0, How::ErrorEvent(ErrorKind::Overloaded));
    let reset = Fault::break_after(4, How::Reset);
    let faults =
        FaultPlan::none().rule(PlanRule::new(overloaded).nth(1)).rule(PlanRule::new(reset).nth(2));
    let first = serve(Dialect::Anthropic, faults).await?;
    let second = serve(Dialect::OpenAi, FaultPlan::none()).await?;
    let provider = |name: &str, dialect, server: &SimServer| {
        Provider::new(name, dialect)
            .with_base_url(server.base_url())
            .with_credential(Credential::new("main", "any"))
    };
    let providers = Providers::new([
        provider("anthropic", Dialect::Anthropic, &first),
        provider("openai", Dialect::OpenAi, &second),
    ])?;
    let chain = Chain::new([
        TargetSpec::new("anthropic").with_model("*", "claude-sonnet-4-5"),
        TargetSpec::new("openai").with_model("*", "gpt-4o"),
    ])?;
    let mut llm = ServiceBuilder::new()
        .layer(CooldownFailoverLayer::new(chain))
        .layer(ClassifyLayer::default())
        .service(LlmClient::new(providers));

    println!("an error event before the first word:");
    let result = read_stream(llm.ready().await?.call(question()).await?.boxed()).await;
    ensure(result.end.is_ok(), "the stream has a clean end")?;
    ensure(result.answer.text() == WORDS, "the whole text, once")?;
    ensure(result.log.to_string().contains("failover.switched"), "it failed over")?;
    ensure(calls_made(&first) == 1 && calls_made(&second) == 1, "each provider was called once")?;

    println!("a reset after the fourth piece:");
    let result = read_stream(llm.ready().await?.call(question()).await?.boxed()).await;
    let failure = result.end.err().ok_or("the stream can not have a clean end")?;
    ensure(failure.reason() == Reason::Network, "a reset is a network failure")?;
    ensure(failure.is_delivered(), "the failure says that content was delivered")?;
    let delivered = result.answer.text();
    ensure(!delivered.is_empty() && WORDS.starts_with(&delivered), "what arrived is kept")?;
    ensure(delivered.len() < WORDS.len(), "and is not all of it")?;
    ensure(calls_made(&first) == 2 && calls_made(&second) == 1, "no second provider was called")
}

/// The result of one stream.
struct StreamResult {
    /// What was delivered; a whole answer if the end is `Ok`.
    answer: Completion,
    end: Result<(), Failure>,
    log: RecoveryLog,
}

/// Prints events as they arrive, and collects them.
async fn read_stream(response: ChatResponse) -> StreamResult {
    let (head, mut events) = response.into_parts();
    let log = head.log.clone();
    println!("  from {}", head.target.as_ref().map_or("nobody".to_owned(), ToString::to_string));
    let mut answer = Completion::new(head);
    let mut end = Ok(());
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => {
                for delta in &event.deltas {
                    match delta {
                        Delta::Text { text, .. } => println!("  {text:?}"),
                        Delta::End => println!("  the end"),
                        _ => {}
                    }
                }
                answer.push(&event);
            }
            Err(failure) => {
                println!("  failed: {failure}");
                end = Err(failure);
            }
        }
    }
    println!("  log: {log}");
    StreamResult { answer, end, log }
}

const WORDS: &str = "It is forty-two, as it has been ever since somebody asked.";

fn question() -> ChatRequest {
    ChatRequest::user("What is it?").streaming().with_context(CallContext::recording())
}

async fn serve(dialect: Dialect, faults: FaultPlan) -> std::io::Result<SimServer> {
    let provider = SimProvider::builder(dialect)
        .with_faults(faults)
        .respond(|_| Some(Answer::text(WORDS)))
        .build();
    SimServer::local(provider).await
}

/// How often a provider was called.
fn calls_made(server: &SimServer) -> usize {
    server.provider().journal().len()
}

/// An error that names the condition that does not hold.
fn ensure(holds: bool, what: &str) -> Result<(), Box<dyn Error>> {
    if holds { Ok(()) } else { Err(format!("this should hold: {what}").into()) }
}
