//! What callers and providers can not do: push out what is known of others, fill the metrics with names, ask
//! for a wait without an end, or write what is not seen where an operator reads.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use steadfast::{
    Dialect,
    sim::{Fault, FaultPlan, RateLimit, SimProvider},
};
use steadfast_tests::gateway::{
    http::{HttpRequest, Reply},
    in_process::InProcess,
    provider,
};

const ACME: &str = "acme-key-0001";
const OTHER: &str = "other-key-0002";

/// Two tenants, an operator, whose key is the second tenant's too, and a provider.
const FILE: &str = r#"
[server]
admin_key = "sha256:f6bef6d55c1dc7aa0486fac0ecc7ef0f357a00f4a4fbb0e9b9e951a8f5346d59"
[guard]
calls = 3
tasks = 400
[[tenants]]
name = "acme"
keys = ["sha256:d1616373cb070ca29992c92c1fa716bcda2a13abcd3efd637e85e13243ed7434"]
[[tenants]]
name = "other"
keys = ["sha256:f6bef6d55c1dc7aa0486fac0ecc7ef0f357a00f4a4fbb0e9b9e951a8f5346d59"]
[[providers]]
name = "openai"
dialect = "openai"
credentials = ["env:FIRST"]
"#;

fn gateway(sim: SimProvider) -> InProcess {
    InProcess::with_file(FILE, &[sim])
}

fn ask(key: &str, body: &Value) -> HttpRequest {
    HttpRequest::post("/v1/chat/completions", body.to_string())
        .header("content-type", "application/json")
        .header("authorization", &format!("Bearer {key}"))
}

fn question(key: &str, model: &str) -> HttpRequest {
    ask(key, &json!({ "model": model, "messages": [{ "role": "user", "content": "hi" }] }))
}

/// A task that has called more tools than it may.
fn stopped(key: &str, task: &str) -> HttpRequest {
    let mut messages = vec![json!({ "role": "user", "content": "go" })];
    for n in 0..4 {
        let id = format!("call_{n}");
        let call = json!({ "id": id, "type": "function", "function": { "name": "look", "arguments": format!("{{\"n\":{n}}}") } });
        messages.push(json!({ "role": "assistant", "content": null, "tool_calls": [call] }));
        messages
            .push(json!({ "role": "tool", "tool_call_id": id, "content": format!("result {n}") }));
    }
    ask(key, &json!({ "model": "gpt-4o", "messages": messages })).header("x-steadfast-task", task)
}

/// The same task, whose history has been left out: only what is remembered stops it.
fn continued(key: &str, task: &str) -> HttpRequest {
    question(key, "gpt-4o").header("x-steadfast-task", task)
}

async fn admin(gateway: &InProcess) -> Reply {
    gateway.send(&HttpRequest::get("/admin/status").header("x-api-key", OTHER)).await
}

#[tokio::test(start_paused = true)]
async fn a_tenants_flood_lifts_no_stop_of_another() {
    let gateway = gateway(provider(Dialect::OpenAi).build());
    assert_eq!(gateway.send(&stopped(ACME, "mine")).await.status, 400);
    for n in 0..1_200 {
        let reply = gateway.send(&stopped(OTHER, &format!("t{n}"))).await;
        assert_eq!(reply.status, 400, "{n}: {}", reply.text());
    }
    let mine = gateway.send(&continued(ACME, "mine")).await;
    assert_eq!(mine.status, 400, "it is still stopped");
    assert_eq!(mine.header("x-steadfast-reason"), Some("safety"));
    let status = admin(&gateway).await.json();
    assert!(status["guard"]["known_tasks"].as_u64().unwrap() <= 400, "{status:#}");
}

#[tokio::test(start_paused = true)]
async fn invented_models_add_no_line_to_the_metrics() {
    let gateway = gateway(provider(Dialect::OpenAi).build());
    assert_eq!(gateway.send(&question(ACME, "gpt-4o")).await.status, 200);
    let lines = async |asked: std::ops::Range<u32>| {
        for n in asked {
            gateway.send(&question(OTHER, &format!("no-such-model-{n}"))).await;
        }
        let metrics = gateway.send(&HttpRequest::get("/metrics")).await;
        let text = metrics.text().to_owned();
        assert!(text.contains("target=\"openai/gpt-4o#FIRST\""), "{text}");
        assert!(
            text.contains("target=\"openai/other") && !text.contains("no-such-model"),
            "{text}"
        );
        let series = |line: &str| line.rsplit_once(' ').unwrap().0.to_owned();
        text.lines().map(series).collect::<BTreeSet<_>>()
    };
    assert_eq!(lines(0..20).await, lines(20..2_000).await);
}

#[tokio::test(start_paused = true)]
async fn a_wait_without_an_end_is_one_of_an_hour() {
    let plan = FaultPlan::always(Fault::rate_limit(RateLimit::after("1000000000000000000")));
    let gateway = gateway(provider(Dialect::OpenAi).with_faults(plan).build());
    for (n, key) in [ACME, OTHER, ACME, OTHER].into_iter().enumerate() {
        let prompt = json!([{ "role": "user", "content": format!("question {n}") }]);
        let asked = ask(key, &json!({ "model": "gpt-4o", "messages": prompt }));
        let reply = gateway.send(&asked).await;
        assert_eq!(reply.status, 429, "{}", reply.text());
        let wait: u64 = reply.header("retry-after").unwrap().parse().unwrap();
        assert!(wait <= 3_600, "{wait} s");
    }
    let status = admin(&gateway).await.json();
    let rests = status["targets"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|target| target["cooling"]["for_s"].as_f64());
    let rests: Vec<f64> = rests.collect();
    assert!(!rests.is_empty() && rests.iter().all(|rest| *rest <= 3_600.0), "{status:#}");
}

#[tokio::test(start_paused = true)]
async fn what_others_wrote_is_shown_escaped() {
    let gateway = gateway(provider(Dialect::OpenAi).build());
    let hidden = ['\u{202e}', '\u{2066}', '\u{200b}', '\u{feff}', '\u{2028}', '\u{61c}'];
    let model = format!("exe{}cod", hidden.iter().collect::<String>());
    let reply = gateway.send(&question(ACME, &model)).await;
    assert_eq!(reply.status, 404, "{}", reply.text());
    let target = reply.header("x-steadfast-target").unwrap();
    assert!(target.starts_with("openai/exe\\u{202e}\\u{2066}"), "{target}");
    let status = admin(&gateway).await;
    assert!(status.text().contains("exe\\u202e\\u2066"), "{}", status.text());
    assert!(status.json()["targets"].to_string().contains('\u{202e}'), "it means the same");
    let metrics = gateway.send(&HttpRequest::get("/metrics")).await;
    for shown in [status.text(), metrics.text(), target] {
        assert!(!shown.contains(hidden), "{shown}");
    }
}
