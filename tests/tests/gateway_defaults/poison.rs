//! One caller's prompt breaks whatever provider gets it: nobody else notices.

use std::{sync::Arc, time::Duration};

use fastrand::Rng;
use parking_lot::Mutex;
use serde_json::json;
use steadfast::{
    Dialect,
    sim::{ErrorKind, Fault, FaultPlan, How, Latency, PlanRule, SimProvider},
};
use steadfast_tests::gateway::{http::HttpRequest, in_process::InProcess};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

use crate::sim;

pub(crate) const ACME: &str = "acme-key-0001";
pub(crate) const OTHER: &str = "other-key-0002";

/// Two tenants, and nothing else but what reaches the providers.
const TENANTS: &str = r#"
[[tenants]]
name = "acme"
keys = ["sha256:d1616373cb070ca29992c92c1fa716bcda2a13abcd3efd637e85e13243ed7434"]
[[tenants]]
name = "other"
keys = ["sha256:f6bef6d55c1dc7aa0486fac0ecc7ef0f357a00f4a4fbb0e9b9e951a8f5346d59"]
[[providers]]
name = "anthropic"
dialect = "anthropic"
credentials = ["env:FIRST"]
models = { "*" = "claude-sonnet-4-5" }
"#;

const SPARE: &str = r#"
[[providers]]
name = "openai"
dialect = "openai"
credentials = ["env:SECOND"]
models = { "*" = "gpt-4o" }
"#;

/// The gateway's file, with two providers or one.
pub(crate) fn tenants(spare: bool) -> String {
    format!("{TENANTS}{}", if spare { SPARE } else { "" })
}

/// What every provider fails at.
const POISON: &str = "a prompt that breaks providers";

/// As whom the caller with that prompt is known.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Known {
    /// One session.
    Session,
    /// Nothing but the prompt.
    Prompt,
    /// A new session each time, and the same prompt.
    NewSessions,
    /// One session, and each time a prompt that begins in another way.
    SessionAlone,
}

/// How long an answer takes.
const ANSWER: Duration = Duration::from_secs(2);

pub(crate) fn question(
    key: &str,
    prompt: &str,
    session: Option<&str>,
    stream: bool,
) -> HttpRequest {
    let body = json!({
        "model": "claude-sonnet-4-5",
        "max_tokens": 1_000,
        "stream": stream,
        "messages": [{"role": "user", "content": prompt}],
    });
    let request = HttpRequest::post("/v1/messages", body.to_string())
        .header("anthropic-version", "2023-06-01")
        .header("x-api-key", key);
    match session {
        Some(session) => request.header("x-steadfast-session", session),
        None => request,
    }
}

/// What came of one call of the others.
#[derive(Debug)]
struct Call {
    answered: bool,
    took: Duration,
    attempts: String,
}

/// Twenty seconds of four calls a second of others, with and without a poisonous prompt twice a second.
async fn others(known: Known, fault: Option<Fault>, spare: bool) -> Vec<Call> {
    let stream = true;
    let plan = match fault {
        Some(fault) => FaultPlan::none().rule(PlanRule::new(fault).contains(POISON)),
        None => FaultPlan::none(),
    };
    let latency = Latency { headers: ANSWER, ..Latency::default() };
    let dialects = [Dialect::Anthropic, Dialect::OpenAi];
    let sims: Vec<SimProvider> = dialects[..1 + usize::from(spare)]
        .iter()
        .map(|dialect| sim(*dialect).with_latency(latency).with_faults(plan.clone()).build())
        .collect();
    let gateway = Arc::new(InProcess::with_file(&tenants(spare), &sims));
    let began = Instant::now();
    let poisonous = {
        let gateway = gateway.clone();
        tokio::spawn(async move {
            let mut calls = JoinSet::new();
            let mut number = 0;
            while began.elapsed() < Duration::from_secs(20) {
                number += 1;
                let own = number.to_string();
                let (session, prompt) = match known {
                    Known::Session => (Some("one"), POISON.to_owned()),
                    Known::Prompt => (None, POISON.to_owned()),
                    Known::NewSessions => (Some(&*own), POISON.to_owned()),
                    Known::SessionAlone => (Some("one"), format!("{own}: {POISON}")),
                };
                let (gateway, request) =
                    (gateway.clone(), question(ACME, &prompt, session, stream));
                calls.spawn(async move { gateway.send(&request).await });
                sleep(Duration::from_millis(500)).await;
            }
            calls.join_all().await
        })
    };
    let calls = Arc::new(Mutex::new(Vec::new()));
    let mut running = JoinSet::new();
    let mut rng = Rng::with_seed(1);
    while began.elapsed() < Duration::from_secs(20) {
        let key = if rng.bool() { ACME } else { OTHER };
        let session = rng.u8(..20).to_string();
        let session = rng.bool().then_some(&*session);
        let request = question(key, &rng.u64(..).to_string(), session, stream);
        let (gateway, calls) = (gateway.clone(), calls.clone());
        running.spawn(async move {
            let began = Instant::now();
            let reply = gateway.send(&request).await;
            let answered = reply.status == 200 && reply.text().contains("message_stop");
            let attempts = reply.header("x-steadfast-attempts").unwrap().to_owned();
            calls.lock().push(Call { answered, took: began.elapsed(), attempts });
        });
        sleep(Duration::from_millis(rng.u64(150..350))).await;
    }
    running.join_all().await;
    poisonous.await.unwrap();
    Arc::into_inner(calls).unwrap().into_inner()
}

#[tokio::test(start_paused = true)]
async fn a_prompt_that_breaks_providers_costs_nobody_else_anything() {
    for (name, fault) in [
        ("500", Fault::Error(ErrorKind::ServerError)),
        ("a stream that breaks", Fault::break_after(2, How::Reset)),
        ("an error event", Fault::break_after(2, How::ErrorEvent(ErrorKind::ServerError))),
    ] {
        for spare in [false, true] {
            for known in [Known::Session, Known::Prompt, Known::NewSessions, Known::SessionAlone] {
                let case = format!("{name}, spare {spare}, {known:?}");
                let calls = others(known, Some(fault.clone()), spare).await;
                assert!(calls.len() > 70, "{case}");
                let lost = calls.iter().filter(|call| !call.answered).count();
                let late = calls.iter().filter(|call| call.took > ANSWER).count();
                let again = calls.iter().filter(|call| call.attempts != "1").count();
                println!(
                    "{case}: of {}, {lost} lost, {late} late, {again} asked again",
                    calls.len()
                );
                assert_eq!((lost, late, again), (0, 0, 0), "{case}");
            }
        }
    }
}
