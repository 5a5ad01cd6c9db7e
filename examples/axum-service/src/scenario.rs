//! The service on an ephemeral port, in front of two simulated providers, and its caller.

use std::error::Error;

use axum::{
    body::Body,
    http::{Request, Response, header},
};
use http_body_util::BodyExt;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde_json::{Value, json};
use steadfast::{
    Dialect,
    client::{Credential, Provider, Providers},
    sim::{
        self, Answer, ErrorKind, Fault, FaultPlan, How, PlanRule, RateLimit, SimProvider, SimServer,
    },
};
use tokio::net::TcpListener;

/// Starts everything, sends questions, and checks the answers.
pub(crate) async fn run() -> Result<(), Box<dyn Error>> {
    // Faults by the number of the request that reaches the provider, retries included.
    let nth = |n, fault| PlanRule::new(fault).nth(n);
    let overloaded = How::ErrorEvent(ErrorKind::Overloaded);
    let first = serve(
        Dialect::Anthropic,
        [
            nth(1, Fault::rate_limit(RateLimit::after_ms(80))),
            nth(3, Fault::break_after(0, overloaded)),
            // A key that worked a moment ago is given up at its second refusal.
            PlanRule::new(Fault::Error(ErrorKind::Auth)).from(5),
        ],
    );
    let second = serve(
        Dialect::OpenAi,
        [nth(2, Fault::break_after(3, How::Reset)), nth(3, Fault::Error(ErrorKind::ContentFilter))],
    );
    let (first, second) = (first.await?, second.await?);
    let provider = |name: &str, dialect, server: &SimServer| {
        Provider::new(name, dialect)
            .with_base_url(server.base_url())
            .with_credential(Credential::new("main", "any"))
    };
    let llm = crate::llm(Providers::new([
        provider("anthropic", Dialect::Anthropic, &first),
        provider("openai", Dialect::OpenAi, &second),
    ])?)?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let me = Caller::new(format!("http://{}", listener.local_addr()?));
    tokio::spawn(async { axum::serve(listener, crate::router(llm)).await });

    me.ask("A 429 with a hint?", 200, "retry.retried").await?;
    me.stream("An error event before the first word?", "event: end").await?;
    me.ask("A key that is refused?", 200, "failover.switched").await?;
    me.stream("A reset after the third word?", "event: error").await?;
    me.ask("A refusal by the content filter?", 400, "content_filter").await?;
    me.chat("A conversation too long for its model", long_conversation(), 200, "compact.compacted")
        .await?;
    me.chat("An agent in a loop", loop_of_calls(5), 400, "guard.stopped").await?;
    me.chat("One that is not", loop_of_calls(2), 200, "forty-two").await?;
    me.get("/health", "anthropic/claude-sonnet-4-5 open").await
}

/// A body of OpenAI's dialect: hundreds of turns, more than the window has room for.
fn long_conversation() -> Vec<Value> {
    let turn = |at| {
        let text = "and a few words more ".repeat(20);
        [
            message("user", &format!("Question {at}: {text}")),
            message("assistant", &format!("Answer {at}: {text}")),
        ]
    };
    let mut messages: Vec<_> = (0..200).flat_map(turn).collect();
    messages.push(message("user", "What is it?"));
    messages
}

fn message(role: &str, content: &str) -> Value {
    json!({"role": role, "content": content})
}

/// So many times the same call with the same result.
fn loop_of_calls(times: usize) -> Vec<Value> {
    let call = |at| {
        let function = json!({"name": "list_dir", "arguments": r#"{"path": "."}"#});
        let calls = json!([{"id": format!("call_{at}"), "type": "function", "function": function}]);
        [
            json!({"role": "assistant", "content": null, "tool_calls": calls}),
            json!({"role": "tool", "tool_call_id": format!("call_{at}"), "content": "one.txt, two.txt"}),
        ]
    };
    let mut messages = vec![message("user", "Find the answer.")];
    messages.extend((0..times).flat_map(call));
    messages
}

async fn serve<const N: usize>(
    dialect: Dialect,
    faults: [PlanRule; N],
) -> std::io::Result<SimServer> {
    let plan = faults.into_iter().fold(FaultPlan::none(), FaultPlan::rule);
    let answer = |_: &sim::SimRequest| Some(Answer::text("It is forty-two, as ever."));
    SimServer::local(SimProvider::builder(dialect).with_faults(plan).respond(answer).build()).await
}

struct Caller {
    base: String,
    http: Client<HttpConnector, Body>,
}

impl Caller {
    fn new(base: String) -> Self {
        Self { base, http: Client::builder(TokioExecutor::new()).build_http() }
    }

    /// Requests a whole answer. Its header or body has to contain `expected`.
    async fn ask(&self, question: &str, status: u16, expected: &str) -> Result<(), Box<dyn Error>> {
        self.post("/ask", question, &json!({"question": question}), status, expected).await
    }

    /// Sends a conversation.
    async fn chat(
        &self,
        what: &str,
        messages: Vec<Value>,
        status: u16,
        expected: &str,
    ) -> Result<(), Box<dyn Error>> {
        let function = json!({"name": "list_dir", "parameters": {"type": "object"}});
        let tools = json!([{"type": "function", "function": function}]);
        let body = json!({"model": "any", "messages": messages, "tools": tools});
        self.post("/chat", what, &body, status, expected).await
    }

    async fn post(
        &self,
        path: &str,
        question: &str,
        body: &Value,
        status: u16,
        expected: &str,
    ) -> Result<(), Box<dyn Error>> {
        let request = Request::post(format!("{}{path}", self.base))
            .header(header::CONTENT_TYPE, "application/json")
            .body(body.to_string().into())?;
        let (response, body) = self.send(request).await?;
        let log = response.headers().get("x-recovery").map_or("", |log| log.to_str().unwrap_or(""));
        println!("{question}\n  {}\n  {log}\n  {body}", response.status());
        let seen =
            response.status() == status && (log.contains(expected) || body.contains(expected));
        check(seen, question, expected)
    }

    /// Requests a stream, whose last and only named event has to be `expected`.
    async fn stream(&self, question: &str, expected: &str) -> Result<(), Box<dyn Error>> {
        let query = question.replace(' ', "%20");
        let request = Request::get(format!("{}/ask/stream?question={query}", self.base));
        let (response, body) = self.send(request.body(Body::empty())?).await?;
        let last = body.trim_end().split("\n\n").last().unwrap_or_default();
        println!("{question}\n  {}\n  ... {}", response.status(), last.replace('\n', ", "));
        let ends = body.matches("event: ").count();
        check(last.starts_with(expected) && ends == 1, question, expected)
    }

    async fn get(&self, path: &str, expected: &str) -> Result<(), Box<dyn Error>> {
        let request = Request::get(format!("{}{path}", self.base)).body(Body::empty())?;
        let (_, body) = self.send(request).await?;
        println!("{path}\n  {}", body.trim_end().replace('\n', "\n  "));
        check(body.contains(expected), path, expected)
    }

    async fn send(&self, request: Request<Body>) -> Result<(Response<()>, String), Box<dyn Error>> {
        let (head, body) = self.http.request(request).await?.into_parts();
        let body = body.collect().await?.to_bytes();
        Ok((Response::from_parts(head, ()), String::from_utf8(body.into())?))
    }
}

fn check(holds: bool, question: &str, expected: &str) -> Result<(), Box<dyn Error>> {
    if holds { Ok(()) } else { Err(format!("{question} `{expected}` was expected").into()) }
}
