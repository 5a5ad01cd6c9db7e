//! Large bodies and many of them: announced, real, in chunks, packed, nested.

use std::{io::Write as _, sync::Arc, time::Duration};

use flate2::{Compression, write::GzEncoder};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use super::open;
use crate::{
    check::{Category, Check, Failed, Seen, expect},
    process::Setup,
    provider::{Part, Providers, answer, response},
    site::Site,
    wire::{Client, Reply, SOON, call, chat, head, post, question},
};

pub(crate) const CATEGORY: Category =
    Category { name: "bodies", simulated: Vec::new, setup, at_once: 1, checks };

const MIB: usize = 1 << 20;

fn setup(providers: &Providers) -> Setup {
    let parts = vec![Part::Bytes(response("200 OK", "", &answer("Taken."))), Part::Keep];
    providers.raw.serve("taker", parts);
    Setup { config: providers.config(&["taker"]), ..open(providers) }
}

#[rustfmt::skip]
fn checks() -> Vec<Check> {
    vec![
        Check::new("10 GB announced", |site| announced(site, 10 << 30)),
        Check::new("a byte above the limit announced", |site| announced(site, 32 * MIB + 1)),
        Check::new("150 times 32 MiB announced, and no byte of it", many_announced).within_s(20),
        Check::new("chunks without an end", endless_chunks).within_s(20),
        Check::new("a packed bomb", packed),
        Check::new("one body of 30 MiB takes at most four times that", one_large).within_s(30),
        Check::new("50 bodies of 30 MiB at once: others wait at most 250 ms, and it is given back", |site| flood(site, 50, 30)).within_s(120).slow(),
        Check::new("200 bodies of 30 MiB at once", |site| flood(site, 200, 30)).within_s(240).slow(),
        Check::new("nested 100,000 deep", |site| refused(site, "[".repeat(100_000))),
        Check::new("a million messages", |site| answered_or_refused(site, {
            let one = r#"{"role":"user","content":"a"},"#;
            let many = one.repeat(1_000_000);
            format!(r#"{{"model":"raw-taker","messages":[{}]}}"#, many.trim_end_matches(','))
        })).within_s(30),
        Check::new("a million unknown fields", |site| answered_or_refused(site, {
            let many: String = (0..1_000_000).map(|n| format!("\"f{n}\":1,")).collect();
            format!(r#"{{{many}"model":"raw-taker","messages":[{{"role":"user","content":"a"}}]}}"#)
        })).within_s(30),
        Check::new("a string of 20 MiB of escapes", |site| answered_or_refused(site, {
            let many = r"\u0041".repeat(20 * MIB / 6);
            format!(r#"{{"model":"raw-taker","messages":[{{"role":"user","content":"{many}"}}]}}"#)
        })).within_s(30),
        Check::new("a number of 10 MiB", |site| answered_or_refused(site, {
            let many = "9".repeat(10 * MIB);
            format!(r#"{{"model":"raw-taker","seed":{many},"messages":[{{"role":"user","content":"a"}}]}}"#)
        })).within_s(30),
        Check::new("the model's name of 10 MiB", |site| answered_or_refused(site, question(&"m".repeat(10 * MIB), "a", false))).within_s(30),
        Check::new("bytes that are no UTF-8", |site| async move {
            let reply = call(site.gateway.addr, post("/v1/chat/completions", "", &[0xff; 4096]), SOON).await?;
            expect(reply.status == 400 && reply.is_typed_error(), reply.brief())
        }),
    ]
}

async fn announced(site: Arc<Site>, length: usize) -> Seen {
    let from = Instant::now();
    let mut client = Client::connect(site.gateway.addr).await?;
    client.send(head(length, "") + "{").await;
    let status = client.reply(SOON).await.map(|reply| reply.status);
    let answered = from.elapsed();
    let closed = client.is_closed(SOON).await;
    expect(
        status == Some(413) && answered < Duration::from_secs(1) && closed,
        format!("{status:?} after {answered:.1?}, closed {closed}"),
    )
}

async fn many_announced(site: Arc<Site>) -> Seen {
    let before = site.gateway.usage()?.rss_mib;
    let mut clients = Vec::new();
    for _ in 0..150 {
        let mut client = Client::connect(site.gateway.addr).await?;
        let length = 32 * MIB;
        client.send(head(length, "") + "{").await;
        clients.push(client);
    }
    sleep(Duration::from_secs(1)).await;
    site.is_well().await?;
    let grown = site.gateway.usage()?.rss_mib.saturating_sub(before);
    expect(grown <= 50, format!("memory + {grown} MiB"))
}

async fn endless_chunks(site: Arc<Site>) -> Seen {
    let before = site.gateway.usage()?.rss_mib;
    let mut client = Client::connect(site.gateway.addr).await?;
    client
        .send(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\n\
             transfer-encoding: chunked\r\n\r\n",
        )
        .await;
    let chunk = [b"100000\r\n".as_slice(), &vec![b' '; MIB], b"\r\n"].concat();
    let (mut sent, mut most, mut answer) = (0, before, None);
    while sent < 200
        && timeout(Duration::from_secs(2), client.send(&chunk)).await.is_ok_and(|went| went)
    {
        sent += 1;
        most = most.max(site.gateway.usage()?.rss_mib);
        if answer.is_none() {
            let status = client.status(Duration::from_millis(1)).await;
            answer = status.map(|status| (status, sent));
        }
    }
    let grown = most.saturating_sub(before);
    expect(
        // The limit is 32, and the system's buffers take some more.
        answer.is_some_and(|(status, at)| status == 413 && at <= 48) && sent <= 160 && grown <= 150,
        format!("status and MiB sent by then {answer:?}, {sent} MiB in all, memory + {grown} MiB"),
    )
}

async fn packed(site: Arc<Site>) -> Seen {
    let before = site.gateway.usage()?.rss_mib;
    let mut out = GzEncoder::new(Vec::new(), Compression::best());
    let spaces = vec![b' '; MIB];
    for _ in 0..100 {
        out.write_all(&spaces)?;
    }
    let body = out.finish()?;
    let mut seen = Vec::new();
    for encoding in ["gzip", "gzip, gzip", "br", "zstd", "nobody-knows"] {
        let headers = format!("content-encoding: {encoding}\r\n");
        let request = post("/v1/chat/completions", &headers, &body);
        let reply = call(site.gateway.addr, request, SOON).await?;
        seen.push(reply.status);
    }
    let grown = site.gateway.usage()?.peak_mib.saturating_sub(before);
    expect(
        seen.iter().all(|status| status / 100 == 4) && grown <= 100,
        format!("{seen:?}, {} KiB for 100 MiB, memory at most + {grown} MiB", body.len() >> 10),
    )
}

/// A question of so many MiB.
fn large(megabytes: usize) -> Arc<Vec<u8>> {
    let text = "All of it was there before the morning. ".repeat(megabytes * MIB / 40);
    Arc::new(chat("", &question("raw-taker", &text, false)))
}

async fn one_large(site: Arc<Site>) -> Seen {
    let request = large(30);
    // The first of its kind pays for what is kept.
    sleep(Duration::from_millis(200)).await;
    site.gateway.reset_peak();
    let before = site.gateway.usage()?.rss_mib;
    let from = Instant::now();
    let reply = call(site.gateway.addr, request.as_slice(), Duration::from_secs(20)).await?;
    let took = from.elapsed();
    let grown = site.gateway.usage()?.peak_mib.saturating_sub(before);
    expect(
        reply.status == 200 && grown <= 4 * 30,
        format!("{} in {took:.1?}, memory at most + {grown} MiB", reply.status),
    )
}

async fn flood(site: Arc<Site>, count: usize, megabytes: usize) -> Seen {
    let request = large(megabytes);
    site.gateway.reset_peak();
    let before = site.gateway.usage()?.rss_mib;
    let mut calls = JoinSet::new();
    for _ in 0..count {
        let (addr, request) = (site.gateway.addr, request.clone());
        calls.spawn(async move { call(addr, request.as_slice(), Duration::from_secs(100)).await });
    }
    let mut waits = Vec::new();
    let mut statuses = std::collections::BTreeMap::<String, usize>::new();
    while !calls.is_empty() {
        let from = Instant::now();
        call(
            site.gateway.addr,
            chat("", &question("gpt-4o", "And I?", false)),
            Duration::from_secs(60),
        )
        .await?;
        waits.push(from.elapsed());
        sleep(Duration::from_millis(10)).await;
        while let Some(ended) = calls.try_join_next() {
            let key = match ended? {
                Ok(Reply { status, .. }) => status.to_string(),
                Err(Failed(why)) => why,
            };
            *statuses.entry(key).or_default() += 1;
        }
    }
    let peak = site.gateway.usage()?.peak_mib;
    sleep(Duration::from_secs(15)).await;
    let after = site.gateway.usage()?.rss_mib;
    waits.sort_unstable();
    let p99 = waits[(waits.len() - 1) * 99 / 100];
    let answered = statuses.keys().all(|key| matches!(key.as_str(), "200" | "413" | "503"));
    expect(
        answered && p99 < Duration::from_millis(250) && after <= before + 100,
        format!(
            "{statuses:?}, others' p99 {p99:.0?} of {}, memory {before} -> {peak} -> {after} MiB",
            waits.len()
        ),
    )
}

async fn refused(site: Arc<Site>, body: String) -> Seen {
    let reply = call(site.gateway.addr, chat("", &body), SOON).await?;
    expect(reply.status == 400 && reply.is_typed_error(), reply.brief())
}

/// Either is right: what counts is that it is soon, and that the process lives.
async fn answered_or_refused(site: Arc<Site>, body: String) -> Seen {
    let from = Instant::now();
    let reply = call(site.gateway.addr, chat("", &body), Duration::from_secs(20)).await?;
    site.is_well().await?;
    let took = from.elapsed();
    let whole = reply.is_whole && (reply.status == 200 || reply.is_typed_error());
    expect(whole && took < Duration::from_secs(10), format!("{} in {took:.1?}", reply.status))
}
