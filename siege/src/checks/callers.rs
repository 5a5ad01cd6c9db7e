//! Callers that are slow, silent, or do not read what they asked for.

use std::{sync::Arc, time::Duration};

use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

use super::http2;
use crate::{
    check::{Category, Check, Failed, Seen, expect},
    frames::{GOAWAY, Http2},
    process::Setup,
    provider::{Part, Providers, answer, response},
    site::{Site, others},
    wire::{Client, SOON, chat, head, question},
};

pub(crate) const CATEGORY: Category =
    Category { name: "callers", simulated: Vec::new, setup, at_once: 16, checks };

fn setup(providers: &Providers) -> Setup {
    // Text that does not repeat itself, which the guard would end.
    let many: String = (0..2_000_000).map(|n| format!("{n} of it. ")).collect();
    let many = answer(&many);
    let parts = vec![Part::Bytes(response("200 OK", "", &many)), Part::Keep];
    providers.raw.serve("large", parts);
    let own = http2::with_endless(providers);
    let too = providers.raw.script("endless");
    providers.raw.serve("endless-too", too);
    Setup { config: providers.config(&["endless", "endless-too", "large"]), ..own }
}

#[rustfmt::skip]
fn checks() -> Vec<Check> {
    vec![
        Check::new("half closed after the request", half_closed),
        Check::new("half closed inside the body", |site| async move {
            let mut client = Client::connect(site.gateway.addr).await?;
            client.send(head(1000, "") + "{").await;
            client.half_close().await;
            let status = client.reply(SOON).await.map(|reply| reply.status);
            let closed = client.is_closed(SOON).await;
            expect(closed && status.is_none_or(|status| status / 100 == 4), format!("{status:?}, closed {closed}"))
        }),
        Check::new("100 resets inside the body", |site| async move {
            for _ in 0..100 {
                let mut client = Client::connect(site.gateway.addr).await?;
                client.send(head(1 << 20, "") + "{\"model\"").await;
                client.reset();
            }
            site.is_well().await?;
            Ok("it is well".into())
        }),
        Check::new("500 that send half a header do not keep others waiting", crowd).within_s(20),
        Check::new("an expectation is answered by the verdict", expectation),
        Check::new("100 do not read a stream, until their deadline", |site| unread(site, "endless", 100, Some(4), 8)).within_s(20),
        Check::new("a stream that nobody reads", |site| unread(site, "endless-too", 5, None, 75)).within_s(90).slow(),
        Check::new("a whole answer of 28 MiB that nobody reads", unread_whole).within_s(90).slow(),
        Check::new("silent after the connection", |site| closes(site, Vec::new(), None, 35)).within_s(45).slow(),
        Check::new("half a request line", |site| closes(site, b"POST /v1/cha".to_vec(), None, 35)).within_s(45).slow(),
        Check::new("half a header", |site| closes(site, b"GET /healthz HTTP/1.1\r\nhost: 1".to_vec(), None, 35)).within_s(45).slow(),
        Check::new("a header by a byte a second", |site| {
            closes(site, b"GET /healthz HTTP/1.1\r\nx-slow: ".to_vec(), Some(b'y'), 35)
        }).within_s(45).slow(),
        Check::new("HTTP/2's preface by a byte a second", |site| closes(site, b"PRI".to_vec(), Some(b' '), 35)).within_s(45).slow(),
        Check::new("a body that does not come", |site| late_body(site, None, 35)).within_s(45).slow(),
        Check::new("a body by a byte a second", |site| late_body(site, Some(b' '), 65)).within_s(75).slow(),
        Check::new("idle after an answer", |site| async move {
            let mut client = Client::connect(site.gateway.addr).await?;
            client.send(chat("", &question("gpt-4o", "hi", false))).await;
            let status = client.reply(SOON).await.map(|reply| reply.status);
            let from = Instant::now();
            let closed = client.is_closed(Duration::from_secs(82)).await;
            expect(status == Some(200) && closed, format!("{status:?}, closed {closed} after {:.0?}", from.elapsed()))
        }).within_s(90).slow(),
        Check::new("idle over HTTP/2", |site| async move {
            let mut client = Http2::connect(site.gateway.addr, &[]).await?;
            let deadline = Instant::now() + Duration::from_secs(85);
            let mut goodbye = false;
            while let Some(frame) = client.next(deadline).await {
                goodbye |= frame.kind == GOAWAY;
            }
            expect(goodbye && client.ended, format!("goodbye {goodbye}, closed {}", client.ended))
        }).within_s(95).slow(),
    ]
}

/// Whether half of a connection is a caller who waits or one who left nobody can know: it is answered or ended.
async fn half_closed(site: Arc<Site>) -> Seen {
    let mut client = Client::connect(site.gateway.addr).await?;
    client.send(chat("", &question("gpt-4o", "hi", false))).await;
    client.half_close().await;
    let reply = client.reply(SOON).await.map(|reply| reply.status);
    let closed = client.is_closed(SOON).await;
    expect(
        closed && reply.is_none_or(|status| status == 200),
        format!("{reply:?}, closed {closed}"),
    )
}

async fn crowd(site: Arc<Site>) -> Seen {
    let mut crowd = Vec::new();
    for _ in 0..500 {
        let mut client = Client::connect(site.gateway.addr).await?;
        client.send("GET /healthz HTTP/1.1\r\nhost: 127").await;
        crowd.push(client);
    }
    let (slowest, _) = others(site.clone(), Duration::from_secs(1)).await?;
    expect(slowest < Duration::from_millis(250), format!("others at most {slowest:.0?}"))
}

async fn expectation(site: Arc<Site>) -> Seen {
    let expects = "expect: 100-continue\r\n";
    let body = question("gpt-4o", "hi", false);
    let mut client = Client::connect(site.gateway.addr).await?;
    client.send(head(body.len(), expects)).await;
    let first = client.reply(SOON).await.map(|reply| reply.status);
    client.send(&body).await;
    let second = client.reply(SOON).await.map(|reply| reply.status);
    let mut refused = Vec::new();
    for (length, more) in [
        (10_usize << 30, expects.to_owned()),
        (body.len(), format!("{expects}origin: https://evil.example\r\n")),
    ] {
        let mut client = Client::connect(site.gateway.addr).await?;
        client.send(head(length, &more)).await;
        refused.push(client.reply(SOON).await.map(|reply| reply.status));
    }
    expect(
        (first, second) == (Some(100), Some(200))
            && refused[0] == Some(413)
            && matches!(refused[1], Some(401 | 403)),
        format!("well: {first:?} {second:?}; too large, foreign page: {refused:?}"),
    )
}

/// So many ask for a stream without an end and do not read it. The provider is free within `limit` seconds.
async fn unread(
    site: Arc<Site>,
    name: &'static str,
    count: usize,
    deadline: Option<u64>,
    limit: u64,
) -> Seen {
    let more = deadline.map_or_else(String::new, |s| format!("x-steadfast-timeout-ms: {s}000\r\n"));
    let before = site.gateway.usage()?.rss_mib;
    let asked_before = site.providers.raw.asked(name);
    let request = chat(&more, &question(&format!("raw-{name}"), "Say much.", true));
    let mut callers = JoinSet::new();
    for _ in 0..count {
        let (addr, request) = (site.gateway.addr, request.clone());
        callers.spawn(async move {
            let mut client = Client::narrow(addr).await?;
            client.send(request).await;
            Ok::<_, Failed>(client)
        });
    }
    let mut clients = Vec::new();
    while let Some(client) = callers.join_next().await {
        clients.push(client??);
    }
    let from = Instant::now();
    let asked = || site.providers.raw.asked(name) - asked_before;
    while asked() < count && from.elapsed() < SOON {
        sleep(Duration::from_millis(20)).await;
    }
    let began = asked();
    while site.providers.raw.open(name) > 0 && from.elapsed().as_secs() < limit + 3 {
        sleep(Duration::from_millis(50)).await;
    }
    let (took, left) = (from.elapsed(), site.providers.raw.open(name));
    let grown = site.gateway.usage()?.rss_mib.saturating_sub(before);
    drop(clients);
    expect(
        began == count && left == 0 && took.as_secs() <= limit,
        format!(
            "{began} streams, {left} of them still held after {took:.1?}; memory + {grown} MiB"
        ),
    )
}

async fn unread_whole(site: Arc<Site>) -> Seen {
    let mut client = Client::narrow(site.gateway.addr).await?;
    client.send(chat("", &question("raw-large", "Say much.", false))).await;
    let from = Instant::now();
    let status = client.status(Duration::from_secs(15)).await;
    // Nothing more is read until then: what the buffers hold is not 28 MiB.
    sleep(Duration::from_secs(70)).await;
    let (bytes, closed) = client.rest(Duration::from_secs(15)).await;
    let (kib, took) = (bytes >> 10, from.elapsed());
    expect(
        status == Some(200) && closed && bytes < 16 << 20,
        format!("{status:?}, {kib} KiB were left after {took:.0?}, closed {closed}"),
    )
}

/// Sends `first`, and then `each` a second: the connection is closed within `limit` seconds.
async fn closes(site: Arc<Site>, first: Vec<u8>, each: Option<u8>, limit: u64) -> Seen {
    let mut client = Client::connect(site.gateway.addr).await?;
    client.send(first).await;
    let from = Instant::now();
    while from.elapsed().as_secs() < limit {
        if client.is_closed(Duration::from_secs(1)).await {
            return Ok(format!("closed after {:.1?}", from.elapsed()));
        }
        if let Some(byte) = each {
            client.send([byte]).await;
        }
    }
    expect(false, format!("still open after {limit} s"))
}

/// A body that does not come, or by a byte a second, is answered 408 within `limit` seconds.
async fn late_body(site: Arc<Site>, each: Option<u8>, limit: u64) -> Seen {
    let mut client = Client::connect(site.gateway.addr).await?;
    client.send(head(1000, "")).await;
    let from = Instant::now();
    while from.elapsed().as_secs() < limit {
        if let Some(reply) = client.reply(Duration::from_secs(1)).await {
            return expect(
                reply.status == 408,
                format!("{} after {:.1?}", reply.brief(), from.elapsed()),
            );
        }
        if let Some(byte) = each
            && !client.send([byte]).await
        {
            return expect(false, format!("closed without a 408 after {:.1?}", from.elapsed()));
        }
    }
    expect(false, format!("nothing after {limit} s"))
}
