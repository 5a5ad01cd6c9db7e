//! Requests that a provider refuses for their bytes, an image or their transcript: they are repaired once, and
//! the caller notices nothing.

use std::time::Duration;

use serde_json::{Value, json};
use steadfast::{
    Dialect,
    sim::{
        Entry, ErrorKind, Fault, FaultPlan, Model, PlanRule, RateLimit, RawResponse, SimProvider,
    },
};
use steadfast_tests::gateway::{
    DIALECTS, ask, http::HttpRequest, in_process::InProcess, model, path, question, turns_key,
};
use tokio::time::Instant;

use crate::{agents::Session, asked, failing, sim, spare};

/// What of an image is in the body of a request.
const PICTURE: &str = "iVBORw0KGgoAAAANSUhEUg";

/// The last thing that the user has asked for.
const QUESTION: &str = "So what is it?";

/// This body, asked for in its dialect.
fn request(dialect: Dialect, mut body: Value, stream: bool) -> HttpRequest {
    if stream && dialect != Dialect::Gemini {
        body["stream"] = json!(true);
    }
    HttpRequest::post(path(dialect, model(dialect), stream), body.to_string())
        .header("anthropic-version", "2023-06-01")
}

fn body_of(request: &HttpRequest) -> Value {
    serde_json::from_slice(request.sent()).unwrap()
}

/// The messages of a body.
fn messages(dialect: Dialect, body: &mut Value) -> &mut Vec<Value> {
    let key = turns_key(dialect);
    body[key].as_array_mut().unwrap()
}

/// A message of text.
fn text(dialect: Dialect, role: &str, text: &str) -> Value {
    match (dialect, role) {
        (Dialect::Gemini, "assistant") => json!({"role": "model", "parts": [{"text": text}]}),
        (Dialect::Gemini, _) => json!({"role": role, "parts": [{"text": text}]}),
        _ => json!({"role": role, "content": text}),
    }
}

/// An agent's session with results of many kilobytes.
fn large(dialect: Dialect, stream: bool) -> HttpRequest {
    let mut session = Session::new(dialect);
    for n in 0..12 {
        let result = format!("file {n}: {}", "a line of it. ".repeat(500));
        session.push(&vec![("read_file", json!({"path": format!("{n}.rs")}), result)]);
    }
    let mut body = body_of(&session.request());
    let list = messages(dialect, &mut body);
    list.push(text(dialect, "assistant", "That was all of it."));
    list.push(text(dialect, "user", QUESTION));
    request(dialect, body, stream)
}

/// A question about an image that is in the history, and about another one.
fn with_pictures(dialect: Dialect, stream: bool) -> HttpRequest {
    let shown = |question: &str| match dialect {
        Dialect::OpenAi => json!({"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": format!("data:image/png;base64,{PICTURE}")}},
            {"type": "text", "text": question},
        ]}),
        Dialect::Responses => json!({"role": "user", "content": [
            {"type": "input_image", "image_url": format!("data:image/png;base64,{PICTURE}")},
            {"type": "input_text", "text": question},
        ]}),
        Dialect::Anthropic => json!({"role": "user", "content": [
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PICTURE}},
            {"type": "text", "text": question},
        ]}),
        Dialect::Gemini => json!({"role": "user", "parts": [
            {"inlineData": {"mimeType": "image/png", "data": PICTURE}},
            {"text": question},
        ]}),
    };
    let mut body = question(dialect, model(dialect), false);
    *messages(dialect, &mut body) =
        vec![shown("What is this?"), text(dialect, "assistant", "A fox."), shown(QUESTION)];
    request(dialect, body, stream)
}

/// A history in which a call has no result, as of an agent that was interrupted.
fn without_result(dialect: Dialect, stream: bool) -> HttpRequest {
    let mut session = Session::new(dialect);
    session.push(&vec![("read_file", json!({"path": "a.rs"}), "fn main() {}".to_owned())]);
    session.push(&vec![("read_file", json!({"path": "b.rs"}), "fn other() {}".to_owned())]);
    let mut body = body_of(&session.request());
    let list = messages(dialect, &mut body);
    list.pop();
    list.push(text(dialect, "user", QUESTION));
    request(dialect, body, stream)
}

/// How this dialect's providers refuse an image.
fn no_image(dialect: Dialect) -> Fault {
    let body = match dialect {
        Dialect::Anthropic => json!({"type": "error", "error": {
            "type": "invalid_request_error", "message": "Could not process image",
        }}),
        Dialect::OpenAi | Dialect::Responses => json!({"error": {
            "message": "You uploaded an unsupported image. Please make sure your image is valid.",
            "type": "invalid_request_error", "param": null, "code": "invalid_image_format",
        }}),
        Dialect::Gemini => json!({"error": {
            "code": 400, "message": "Unable to process input image. Please retry or report.",
            "status": "INVALID_ARGUMENT",
        }}),
    };
    let headers = [("content-type".into(), "application/json".into())].into();
    Fault::Status(RawResponse { status: 400, headers, body: body.to_string() })
}

/// A refusal, the plan that makes it, a request that gets it, and what is wrong with what is sent then.
type Case = (
    &'static str,
    fn(Dialect) -> FaultPlan,
    fn(Dialect, bool) -> HttpRequest,
    fn(&Entry, &Entry) -> bool,
);

fn cases() -> [Case; 3] {
    [
        (
            "too many bytes",
            |_| FaultPlan::first(1, Fault::Error(ErrorKind::PayloadTooLarge)),
            large,
            |first, second| second.body.len() * 2 <= first.body.len() + 2_000,
        ),
        (
            "an image",
            |dialect| FaultPlan::none().rule(PlanRule::new(no_image(dialect)).contains(PICTURE)),
            with_pictures,
            |_, second| !String::from_utf8_lossy(&second.body).contains(PICTURE),
        ),
        // The simulated provider is as strict as the real one.
        (
            "its transcript",
            |_| FaultPlan::none(),
            without_result,
            |first, second| first.body != second.body,
        ),
    ]
}

#[tokio::test(start_paused = true)]
async fn what_a_provider_refuses_is_repaired_once_and_answered() {
    for (name, plan, request, repaired) in cases() {
        for dialect in DIALECTS {
            for (stream, alone) in [(false, true), (true, true), (false, false), (true, false)] {
                let case = format!("{name}, {dialect}, stream {stream}, alone {alone}");
                let first = failing(dialect, plan(dialect));
                let sims: Vec<SimProvider> = match alone {
                    true => vec![first],
                    false => vec![first, spare(dialect)],
                };
                let gateway = InProcess::without_file(&sims);
                let reply = gateway.send(&request(dialect, stream)).await;
                assert_eq!(reply.status, 200, "{case}: {}", reply.text());
                let entries = sims[0].journal().entries();
                assert_eq!((entries.len(), asked(&sims)), (2, 2), "{case}");
                assert_eq!(reply.header("x-steadfast-attempts"), Some("2"), "{case}");
                assert!(matches!(entries[0].status, Some(400 | 413)), "{case}: {:?}", entries[0]);
                assert!(repaired(&entries[0], &entries[1]), "{case}: {:?}", entries[1].json);
                let sent = String::from_utf8_lossy(&entries[1].body).into_owned();
                assert!(sent.contains(QUESTION), "{case}: what was asked is kept: {sent}");
                // It is nobody's fault: the next caller's request goes to the same provider.
                let reply = gateway.send(&ask(dialect, model(dialect), stream)).await;
                assert_eq!(reply.status, 200, "{case}");
                assert_eq!(sims[0].journal().len(), 3, "{case}");
            }
        }
    }
}

/// A refusal that repairing does not help with is the caller's answer.
#[tokio::test(start_paused = true)]
async fn what_is_refused_again_is_not_repaired_again() {
    for (name, _, request, _) in cases() {
        for dialect in DIALECTS {
            let case = format!("{name}, {dialect}");
            let fault = match name {
                "too many bytes" => Fault::Error(ErrorKind::PayloadTooLarge),
                "an image" => no_image(dialect),
                _ => Fault::Error(ErrorKind::Format),
            };
            let sims = [failing(dialect, FaultPlan::always(fault))];
            let gateway = InProcess::without_file(&sims);
            let reply = gateway.send(&request(dialect, false)).await;
            assert!(matches!(reply.status, 400 | 413), "{case}: {}", reply.text());
            assert_eq!(asked(&sims), 2, "{case}");
            assert_eq!(reply.header("x-steadfast-attempts"), Some("2"), "{case}");
            assert_eq!(reply.header("x-should-retry"), Some("false"), "{case}");
        }
    }
}

/// A small window, and somebody who summarises what does not fit.
const SUMMARISED: &str = r#"
[server]
auth = "none"
[[providers]]
name = "anthropic"
dialect = "anthropic"
credentials = ["env:FIRST"]
window = 8000
[[providers]]
name = "google"
dialect = "gemini"
credentials = ["env:SECOND"]
[failover]
chain = ["anthropic"]
[compaction.summariser]
provider = "google"
model = "gemini-2.5-pro"
"#;

/// Rules alone can do it, so nobody waits for retries of a summary for longer than 5 s.
#[tokio::test(start_paused = true)]
async fn a_summariser_that_is_down_holds_nobody_for_long() {
    for (name, fault, held) in [
        ("500", Fault::Error(ErrorKind::ServerError), 6),
        ("overloaded", Fault::Error(ErrorKind::Overloaded), 6),
        // Nobody begins to wait who would not wait to the end.
        ("429, `retry-after: 20`", Fault::rate_limit(RateLimit::after("20")), 0),
        ("connections refused", Fault::Refused, 6),
    ] {
        let (dialect, held) = (Dialect::Anthropic, Duration::from_secs(held));
        let small = Model::new(model(dialect), 8_000, 2_000).without_thinking();
        let sims = [
            sim(dialect).with_models([small]).build(),
            failing(Dialect::Gemini, FaultPlan::always(fault)),
        ];
        let gateway = InProcess::with_file(SUMMARISED, &sims);
        for session in ["one", "two", "three"] {
            let case = format!("{name}, {session}");
            let start = Instant::now();
            let request = large(dialect, false).header("x-steadfast-session", session);
            let reply = gateway.send(&request).await;
            assert_eq!(reply.status, 200, "{case}: {}", reply.text());
            assert!(start.elapsed() <= held, "{case}: {:?}", start.elapsed());
            assert_eq!(
                reply.header("x-steadfast-attempts"),
                Some("1"),
                "{case}: without summaries"
            );
        }
        assert_eq!(sims[0].journal().len(), 3, "{name}");
        assert!(!sims[1].journal().is_empty(), "{name}: it was asked");
    }
}
