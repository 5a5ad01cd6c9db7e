//! Tenants against each other: what one draws is not the others'.

use std::{sync::Arc, time::Duration};

use serde_json::json;
use steadfast_sim::{ErrorKind, Fault, FaultPlan, How, PlanRule};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

use crate::{
    check::{Category, Check, Failed, Seen, expect},
    process::Setup,
    provider::Providers,
    site::{ADMIN, OTHER, Site, TENANT},
    wire::{Client, Reply, SOON, call, chat, get, question},
};

pub(crate) const CATEGORY: Category =
    Category { name: "tenants", simulated: Vec::new, setup, at_once: 1, checks };

/// How many calls of tools a task may make.
const CALLS: usize = 30;

fn setup(providers: &Providers) -> Setup {
    let fails = |word: &str, fault: Fault| PlanRule::new(fault).contains(word);
    providers.fail(
        FaultPlan::none()
            .rule(fails("draws-a-500", Fault::Error(ErrorKind::ServerError)))
            .rule(fails("draws-a-529", Fault::Error(ErrorKind::Overloaded)))
            .rule(fails("draws-a-429", Fault::Error(ErrorKind::RateLimit(Default::default()))))
            .rule(fails("draws-a-401", Fault::Error(ErrorKind::Auth)))
            .rule(fails("breaks-the-stream", Fault::break_after(3, How::Reset)))
            .rule(fails("hangs", Fault::Hang)),
    );
    let config = format!(
        "{}[guard.named]\ncalls = {CALLS}\n\
         [[tenants]]\nname = \"one\"\nkeys = [\"env:SIEGE_TENANT\"]\n\
         [[tenants]]\nname = \"two\"\nkeys = [\"env:SIEGE_OTHER\"]\n",
        providers.config(&[])
    );
    Setup {
        config,
        server: "auth = \"keys\"\nadmin_key = \"env:SIEGE_ADMIN\"".into(),
        ..Setup::default()
    }
}

fn checks() -> Vec<Check> {
    let mut all = Vec::new();
    // The refused key comes last: it may rest until a person has acted.
    for (name, prompt, stream) in [
        ("a prompt that draws a 500", "draws-a-500", false),
        ("a prompt that draws a 529", "draws-a-529", false),
        ("a prompt that draws a 429", "draws-a-429", false),
        ("a prompt that breaks the stream", "breaks-the-stream", true),
        ("a prompt that hangs", "hangs", false),
        ("a prompt that draws a 401", "draws-a-401", false),
    ] {
        let title = format!("{name}, eight times");
        let check = Check::new(title, move |site| witness(site, prompt, stream));
        all.push(check.within_s(60));
    }
    all.extend([
        Check::new("12,000 tasks against another's stop", stopped).within_s(60),
        Check::new("12,000 sessions, and a spare for each", sessions).within_s(60),
        Check::new("100,000 invented models", models).within_s(120).slow(),
        Check::new("10,000 invented models", |site| invented(site, 10_000)).within_s(40),
        Check::new("one tenant's flood does not keep another waiting", crowd).within_s(30),
    ]);
    all
}

fn as_tenant(key: &str, more: &str) -> String {
    format!("authorization: Bearer {key}\r\n{more}")
}

/// One caller's prompt fails eight times; another caller is then answered at once.
async fn witness(site: Arc<Site>, prompt: &'static str, stream: bool) -> Seen {
    let model = "faulty-a";
    let mut drawn = Vec::new();
    for _ in 0..8 {
        let headers =
            as_tenant(TENANT, "x-steadfast-timeout-ms: 600\r\nx-steadfast-max-attempts: 1\r\n");
        let request = chat(&headers, &question(model, prompt, stream));
        let reply = call(site.gateway.addr, request, SOON).await?;
        drawn.push(reply.status);
    }
    let mut slowest = Duration::ZERO;
    let mut statuses = Vec::new();
    for (key, n) in [(OTHER, 0), (OTHER, 1), (TENANT, 2)] {
        let from = Instant::now();
        let headers = as_tenant(key, "x-steadfast-max-attempts: 1\r\n");
        let request = chat(&headers, &question(model, &format!("An honest question {n}?"), false));
        let reply = call(site.gateway.addr, request, SOON).await?;
        slowest = slowest.max(from.elapsed());
        statuses.push(reply.status);
    }
    expect(
        statuses == [200, 200, 200] && slowest < Duration::from_secs(1),
        format!("drawn {drawn:?}, others {statuses:?} in at most {slowest:.1?}"),
    )
}

/// A task that has called more tools than it may, by which the guard stops it.
fn greedy(task: &str) -> Vec<u8> {
    let mut messages = vec![json!({"role": "user", "content": "Do it."})];
    for n in 0..CALLS + 1 {
        let (id, arguments) = (format!("c{n}"), json!({"path": format!("file {n}")}).to_string());
        messages.push(json!({"role": "assistant", "content": null, "tool_calls": [
            {"id": id, "type": "function", "function": {"name": "read", "arguments": arguments}}]}));
        let content = format!("What file {n} says.");
        messages.push(json!({"role": "tool", "tool_call_id": id, "content": content}));
    }
    let body = json!({"model": "gpt-4o", "messages": messages, "tools": [
        {"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}]});
    chat(&as_tenant(TENANT, &format!("x-steadfast-task: {task}\r\n")), &body.to_string())
}

async fn stopped(site: Arc<Site>) -> Seen {
    // A short question under the stopped task, whose own history would not stop it: only what is remembered does.
    let headers = as_tenant(TENANT, "x-steadfast-task: protected\r\n");
    let short = chat(&headers, &question("gpt-4o", "hi", false));
    let first = call(site.gateway.addr, greedy("protected"), SOON).await?;
    let second = call(site.gateway.addr, &short, SOON).await?;
    if second.status == 200 {
        return expect(false, format!("the task was not stopped: {}", first.brief()));
    }
    let before = site.gateway.usage()?.rss_mib;
    flood(&site, 12_000, |n| {
        let headers = as_tenant(OTHER, &format!("x-steadfast-task: flood-{n}\r\n"));
        chat(&headers, &question("gpt-4o", "hi", false))
    })
    .await?;
    let after = call(site.gateway.addr, &short, SOON).await?;
    let grown = site.gateway.usage()?.rss_mib.saturating_sub(before);
    expect(
        after.status != 200,
        format!("before {}, after {}, memory + {grown} MiB", second.status, after.status),
    )
}

async fn sessions(site: Arc<Site>) -> Seen {
    let before = site.gateway.usage()?.rss_mib;
    flood(&site, 12_000, |n| {
        let headers = as_tenant(OTHER, &format!("x-steadfast-session: s-{n}\r\n"));
        chat(&headers, &question("gpt-4o", "hi", false))
    })
    .await?;
    let grown = site.gateway.usage()?.rss_mib.saturating_sub(before);
    expect(grown <= 50, format!("memory + {grown} MiB"))
}

async fn models(site: Arc<Site>) -> Seen {
    invented(site, 100_000).await
}

async fn invented(site: Arc<Site>, count: usize) -> Seen {
    let lines = || async {
        let metrics = get(site.gateway.addr, "/metrics").await?;
        Ok::<_, Failed>((metrics.text().lines().count(), metrics.body.len()))
    };
    // A first one, so that the lines of a failure are there.
    flood(&site, 10, move |n| invented_request(n + count)).await?;
    let (lines_before, before) = (lines().await?, site.gateway.usage()?.rss_mib);
    flood(&site, count, invented_request).await?;
    let (lines_after, after) = (lines().await?, site.gateway.usage()?.rss_mib);
    let request = format!(
        "GET /admin/status HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {ADMIN}\r\n\r\n"
    );
    let status = call(site.gateway.addr, request, SOON).await?;
    let grown = after.saturating_sub(before);
    expect(
        grown <= 50 && lines_after.0 <= lines_before.0 + 4 && status.body.len() < 1 << 20,
        format!(
            "memory + {grown} MiB, metrics {} -> {} lines, {} KiB, status {} KiB",
            lines_before.0,
            lines_after.0,
            lines_after.1 >> 10,
            status.body.len() >> 10
        ),
    )
}

fn invented_request(n: usize) -> Vec<u8> {
    // To the one whose model's name is sent as it is asked for would be a 404 each; here it is mapped.
    let headers = as_tenant(OTHER, &format!("x-steadfast-agent: agent-{n}\r\n"));
    chat(&headers, &question(&format!("invented-{n}"), "hi", false))
}

/// So many requests, over 16 connections.
async fn flood<F>(site: &Arc<Site>, count: usize, request: F) -> Result<(), Failed>
where
    F: Fn(usize) -> Vec<u8> + Send + Sync + Copy + 'static,
{
    let mut callers = JoinSet::new();
    for caller in 0..16 {
        let addr = site.gateway.addr;
        callers.spawn(async move {
            let mut client = Client::connect(addr).await?;
            for n in (caller..count).step_by(16) {
                client.send(request(n)).await;
                let reply: Option<Reply> = client.reply(SOON).await;
                if reply.is_none() {
                    client = Client::connect(addr).await?;
                }
            }
            Ok::<_, Failed>(())
        });
    }
    while let Some(ended) = callers.join_next().await {
        ended??;
    }
    Ok(())
}

/// Many requests of one tenant are under way; another's are answered.
async fn crowd(site: Arc<Site>) -> Seen {
    let mut held = Vec::new();
    for n in 0..100 {
        let mut client = Client::connect(site.gateway.addr).await?;
        let headers = as_tenant(TENANT, "x-steadfast-timeout-ms: 8000\r\n");
        client.send(chat(&headers, &question("raw-slow", &format!("Say much {n}."), true))).await;
        held.push(client);
    }
    sleep(Duration::from_millis(500)).await;
    let mut took = Vec::new();
    for n in 0..50 {
        let from = Instant::now();
        let body = question("gpt-4o", &format!("And I {n}?"), false);
        let reply = call(site.gateway.addr, chat(&as_tenant(OTHER, ""), &body), SOON).await?;
        if reply.status != 200 {
            return expect(false, reply.brief());
        }
        took.push(from.elapsed());
        sleep(Duration::from_millis(20)).await;
    }
    took.sort_unstable();
    let (middle, slowest) = (took[25], took[49]);
    let seen = format!("others' median {middle:.0?}, at most {slowest:.0?}");
    expect(middle < Duration::from_millis(100) && slowest < Duration::from_secs(1), seen)
}
