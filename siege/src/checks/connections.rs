//! How old connections become, and how many there may be.

use std::{sync::Arc, time::Duration};

use serde_json::Value;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

use super::{open, signals};
use crate::{
    check::{Category, Check, Failed, Seen, expect},
    frames::{GOAWAY, Http2},
    process::{Gateway, Setup},
    provider::Providers,
    site::Site,
    wire::{Client, Reply, SOON, call, chat, get, post, question},
};

/// Each has a process of its own.
pub(crate) const CATEGORY: Category =
    Category { name: "connections", simulated: Vec::new, setup, at_once: 3, checks };

fn setup(providers: &Providers) -> Setup {
    signals::paced(providers);
    Setup { config: providers.config(&["paced"]), ..open(providers) }
}

#[rustfmt::skip]
fn checks() -> Vec<Check> {
    vec![
        Check::new("old ones are closed, not all at once, and no answer is lost", aged),
        Check::new("an old one of HTTP/2 has a GOAWAY first", aged_http2),
        Check::new("an old one ends the stream that is under way", aged_stream),
        Check::new("51 connections where 50 are allowed", |site| crowd(site, "max_connections = 50", Held::Idle(50))).within_s(20),
        Check::new("11 requests where 10 are allowed", |site| crowd(site, "max_in_flight = 10", Held::Streams(10))).within_s(20),
    ]
}

/// How old they become here, give or take a tenth.
const AGE: Duration = Duration::from_secs(2);

async fn with_age(site: &Site) -> Result<Gateway, Failed> {
    site.another(|setup| setup.server += "\nmax_connection_age_s = 2").await
}

async fn aged(site: Arc<Site>) -> Seen {
    let gateway = with_age(&site).await?;
    let mut callers = JoinSet::new();
    for caller in 0..20 {
        let addr = gateway.addr;
        callers.spawn(async move {
            let mut client = Client::connect(addr).await?;
            let (from, mut good, mut bad) = (Instant::now(), 0, 0);
            while from.elapsed() < 2 * AGE {
                client
                    .send(chat("", &question("gpt-4o", &format!("And I {caller}?"), false)))
                    .await;
                match client.reply(SOON).await {
                    Some(reply) if reply.status == 200 && reply.is_whole => good += 1,
                    Some(_) => bad += 1,
                    None => break,
                }
                sleep(Duration::from_millis(20)).await;
            }
            Ok::<_, Failed>((from.elapsed(), good, bad))
        });
    }
    let (mut ages, mut good, mut bad) = (Vec::new(), 0, 0);
    while let Some(ended) = callers.join_next().await {
        let (age, well, not) = ended??;
        ages.push(age);
        good += well;
        bad += not;
    }
    ages.sort_unstable();
    let (first, last) = (ages[0], ages[ages.len() - 1]);
    // A tenth of it, and what a busy machine adds.
    let in_time = first >= AGE.mul_f64(0.85) && last <= AGE.mul_f64(1.5);
    expect(
        bad == 0 && good > 200 && in_time && last - first > AGE / 50,
        format!("closed after {first:.2?} to {last:.2?}, {good} answers, {bad} of them broken"),
    )
}

async fn aged_http2(site: Arc<Site>) -> Seen {
    let gateway = with_age(&site).await?;
    let mut client = Http2::connect(gateway.addr, &[]).await?;
    let (from, mut goodbye) = (Instant::now(), None);
    while let Some(frame) = client.next(from + 2 * AGE).await {
        if frame.kind == GOAWAY {
            goodbye.get_or_insert(from.elapsed());
        }
    }
    let in_time =
        goodbye.is_some_and(|after| after >= AGE.mul_f64(0.85) && after <= AGE.mul_f64(1.5));
    expect(in_time && client.ended, format!("goodbye after {goodbye:.2?}, closed {}", client.ended))
}

async fn aged_stream(site: Arc<Site>) -> Seen {
    let gateway = with_age(&site).await?;
    let mut client = Client::connect(gateway.addr).await?;
    sleep(AGE.mul_f64(0.7)).await;
    client.send(chat("", &question("raw-paced", "Slowly.", true))).await;
    let reply = client.reply(SOON).await.ok_or("no answer")?;
    let whole = reply.is_whole && reply.text().contains("[DONE]");
    let closed = client.is_closed(Duration::from_secs(1)).await;
    expect(whole && closed, format!("{} whole {whole}, closed {closed}", reply.status))
}

/// What takes all the room there is.
#[derive(Clone, Copy)]
enum Held {
    /// Connections that do nothing.
    Idle(usize),
    /// Requests whose answers take a while.
    Streams(usize),
}

/// Whether the body of an error is one of a dialect.
type IsTyped = fn(&Value) -> bool;

/// A question in each dialect, and how its errors are recognised.
fn dialects() -> [(&'static str, Vec<u8>, IsTyped); 3] {
    let messages =
        r#"{"model":"gpt-4o","max_tokens":9,"messages":[{"role":"user","content":"hi"}]}"#;
    let contents = r#"{"contents":[{"role":"user","parts":[{"text":"hi"}]}]}"#;
    let version = "anthropic-version: 2023-06-01\r\n";
    let gemini = "/v1beta/models/gpt-4o:generateContent";
    [
        ("openai", chat("", messages), |body| body["error"]["type"].is_string()),
        ("anthropic", post("/v1/messages", version, messages.as_bytes()), |body| {
            body["type"] == "error"
        }),
        ("gemini", post(gemini, "", contents.as_bytes()), |body| {
            body["error"]["status"].is_string()
        }),
    ]
}

/// With `limit` and as many held as it allows, a chat is refused at once, in its caller's dialect and with a hint;
/// who looks after the gateway is answered. When they are gone, all are.
async fn crowd(site: Arc<Site>, limit: &'static str, held: Held) -> Seen {
    let gateway = site.another(|setup| setup.server += &format!("\n{limit}")).await?;
    let clients = hold(&gateway, held).await?;
    let mut wrong = Vec::new();
    for (name, request, is_typed) in dialects() {
        let from = Instant::now();
        let reply: Reply = call(gateway.addr, request, SOON).await?;
        let typed = reply.json().is_some_and(|body| is_typed(&body));
        let hint = reply.header("retry-after").and_then(|text| text.parse::<u64>().ok());
        let is_fast = from.elapsed() < Duration::from_secs(1);
        if reply.status != 503 || !typed || hint.is_none_or(|hint| hint > 60) || !is_fast {
            wrong.push(format!("{name}: {} {hint:?} after {:.1?}", reply.brief(), from.elapsed()));
        }
    }
    for path in ["/healthz", "/admin/status", "/metrics"] {
        let reply = get(gateway.addr, path).await?;
        if reply.status != 200 {
            wrong.push(format!("{path}: {}", reply.brief()));
        }
    }
    drop(clients);
    sleep(Duration::from_millis(500)).await;
    for (name, request, _) in dialects() {
        let reply = call(gateway.addr, request, SOON).await?;
        if reply.status != 200 {
            wrong.push(format!("{name} afterwards: {}", reply.brief()));
        }
    }
    let seen =
        if wrong.is_empty() { "refused, and answered afterwards".into() } else { wrong.join(", ") };
    expect(wrong.is_empty(), seen)
}

async fn hold(gateway: &Gateway, held: Held) -> Result<Vec<Client>, Failed> {
    let mut clients = Vec::new();
    match held {
        Held::Idle(count) => {
            for _ in 0..count {
                let mut client = Client::connect(gateway.addr).await?;
                client.send("GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n").await;
                client.reply(SOON).await.ok_or("no answer")?;
                clients.push(client);
            }
        }
        Held::Streams(count) => {
            for n in 0..count {
                let mut client = Client::connect(gateway.addr).await?;
                let body = question("raw-slow", &format!("Say much {n}."), true);
                client.send(chat("", &body)).await;
                clients.push(client);
            }
            for client in &mut clients {
                let status = client.status(SOON).await;
                if status != Some(200) {
                    return Err(format!("one that is allowed was answered {status:?}").into());
                }
            }
        }
    }
    Ok(clients)
}
