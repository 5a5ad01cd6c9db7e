//! The machine's own limits: few descriptors, little memory, many connections.

use std::{sync::Arc, time::Duration};

use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use super::open;
use crate::{
    check::{Category, Check, Failed, Seen, expect},
    process::{Gateway, Setup},
    provider::{Part, Providers, answer, response},
    site::{Site, is_well},
    wire::{Client, SOON, call, chat, head, question},
};

/// Each has a process of its own.
pub(crate) const CATEGORY: Category =
    Category { name: "limits", simulated: Vec::new, setup, at_once: 1, checks };

fn setup(providers: &Providers) -> Setup {
    let parts = vec![Part::Bytes(response("200 OK", "", &answer("Taken."))), Part::Keep];
    providers.raw.serve("taker", parts);
    Setup { config: providers.config(&["taker"]), ..open(providers) }
}

#[rustfmt::skip]
fn checks() -> Vec<Check> {
    vec![
        Check::new("64 descriptors, 200 connections", descriptors).within_s(30),
        Check::new("a soft limit of 64 descriptors, 200 connections", soft_descriptors).within_s(30),
        Check::new("1 GiB of address space, twenty bodies of 20 MiB", |site| memory(site, "ulimit -v 1048576;", 20, 20)).within_s(60),
        Check::new("1 GiB of address space, twenty bodies of 20 MiB of numbers", |site| memory_of(site, "ulimit -v 1048576;", 20, numbers(20))).within_s(60),
        Check::new("512 MiB of address space, 100 bodies of 5 MiB", |site| memory(site, "ulimit -v 524288;", 100, 5)).within_s(60).slow(),
        Check::new("4 GiB of address space, 150 announcements of 32 MiB", announcements).within_s(30),
        Check::new("1,500 idle connections", idle).within_s(30),
    ]
}

async fn descriptors(site: Arc<Site>) -> Seen {
    let gateway = site.another(|setup| setup.before = "ulimit -n 64;").await?;
    // One that is there before.
    let mut first = Client::connect(gateway.addr).await?;
    first.send(chat("", &question("gpt-4o", "First?", false))).await;
    first.reply(SOON).await.ok_or("the first was not answered")?;
    let mut connecting = JoinSet::new();
    for _ in 0..200 {
        let addr = gateway.addr;
        connecting.spawn(async move {
            // The system takes them in as far as its queue goes; the others wait at its door.
            timeout(Duration::from_secs(1), Client::connect(addr)).await.ok()?.ok()
        });
    }
    let crowd: Vec<_> = connecting.join_all().await.into_iter().flatten().collect();
    let (cpu, from) = (gateway.cpu(), Instant::now());
    sleep(Duration::from_secs(2)).await;
    let busy = (gateway.cpu() - cpu).as_secs_f64() / from.elapsed().as_secs_f64();
    first.send(chat("", &question("gpt-4o", "Still?", false))).await;
    let still = first.reply(SOON).await.map(|reply| reply.status);
    let held = gateway.callers();
    drop((crowd, first));
    sleep(Duration::from_millis(500)).await;
    let after = is_well(&gateway).await.map_err(|Failed(why)| why);
    expect(
        // It may have no descriptor for a provider any more, but it has an answer.
        matches!(still, Some(200 | 502 | 503)) && busy < 0.3 && after.is_ok(),
        format!(
            "{held} connections were held, the first was then answered {still:?}, {:.0} % of a processor, afterwards {after:?}",
            busy * 100.0
        ),
    )
}

/// The hard limit is what counts.
async fn soft_descriptors(site: Arc<Site>) -> Seen {
    let gateway = site.another(|setup| setup.before = "ulimit -Sn 64;").await?;
    let mut clients = Vec::new();
    for _ in 0..200 {
        let mut client = Client::connect(gateway.addr).await?;
        client.send("GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n").await;
        client.reply(SOON).await.ok_or("no answer")?;
        clients.push(client);
    }
    let held = gateway.callers();
    expect(held == 200, format!("{held} connections were held"))
}

/// So many bodies at once; whatever they are answered, the process lives.
async fn memory(site: Arc<Site>, before: &'static str, count: usize, megabytes: usize) -> Seen {
    let text = "All of it was there before the morning. ".repeat(megabytes * (1 << 20) / 40);
    memory_of(site, before, count, question("raw-taker", &text, false)).await
}

/// A question with a list of so many MiB: read, a number takes sixty times its bytes.
fn numbers(megabytes: usize) -> String {
    let numbers = "0,".repeat(megabytes << 19);
    let message = format!(r#"{{"role":"user","content":"a","of":[{numbers}0]}}"#);
    format!(r#"{{"model":"raw-taker","messages":[{message}]}}"#)
}

async fn memory_of(site: Arc<Site>, before: &'static str, count: usize, body: String) -> Seen {
    let gateway = site.another(|setup| setup.before = before).await?;
    let request = Arc::new(chat("", &body));
    let mut calls = JoinSet::new();
    for _ in 0..count {
        let (addr, request) = (gateway.addr, request.clone());
        calls.spawn(async move { call(addr, request.as_slice(), Duration::from_secs(30)).await });
    }
    let mut statuses = std::collections::BTreeMap::<String, usize>::new();
    while let Some(ended) = calls.join_next().await {
        let key = match ended? {
            Ok(reply) => reply.status.to_string(),
            Err(Failed(why)) => why,
        };
        *statuses.entry(key).or_default() += 1;
    }
    let lives = is_well(&gateway).await.map_err(|Failed(why)| why);
    let typed = statuses.keys().all(|key| matches!(key.as_str(), "200" | "413" | "503"));
    expect(typed && lives.is_ok(), format!("{statuses:?}, afterwards {lives:?}"))
}

async fn announcements(site: Arc<Site>) -> Seen {
    let gateway = site.another(|setup| setup.before = "ulimit -v 4194304;").await?;
    let length = 32 << 20;
    let mut clients = Vec::new();
    for _ in 0..150 {
        let mut client = Client::connect(gateway.addr).await?;
        client.send(head(length, "") + "{").await;
        clients.push(client);
    }
    sleep(Duration::from_millis(500)).await;
    let lives = is_well(&gateway).await.map_err(|Failed(why)| why);
    expect(lives.is_ok(), format!("afterwards {lives:?}{}", end(&gateway)))
}

fn end(gateway: &Gateway) -> String {
    gateway.exited().map_or_else(String::new, |status| format!(", {status}: {}", gateway.log()))
}

async fn idle(site: Arc<Site>) -> Seen {
    let gateway = site.another(|_| ()).await?;
    is_well(&gateway).await?;
    let before = gateway.usage()?.rss_mib;
    let mut clients = Vec::new();
    for _ in 0..1_500 {
        let mut client = Client::connect(gateway.addr).await?;
        client.send("GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n").await;
        client.reply(SOON).await.ok_or("no answer")?;
        clients.push(client);
    }
    let grown = gateway.usage()?.rss_mib.saturating_sub(before);
    let (cpu, from) = (gateway.cpu(), Instant::now());
    sleep(Duration::from_secs(1)).await;
    let busy = (gateway.cpu() - cpu).as_secs_f64() / from.elapsed().as_secs_f64();
    is_well(&gateway).await?;
    expect(
        grown <= 50 && busy < 0.1,
        format!("memory + {grown} MiB, {:.0} % of a processor", busy * 100.0),
    )
}
