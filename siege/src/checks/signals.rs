//! Signals, with calls under way.

use std::{sync::Arc, time::Duration};

use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

use super::open;
use crate::{
    check::{Category, Check, Failed, Seen, expect},
    process::{Gateway, Setup},
    provider::{Part, Providers, stream_end, stream_head, text_event},
    site::{Site, is_well},
    wire::{Client, Reply, call, chat, question},
};

/// Each has a process of its own: most of them end it.
pub(crate) const CATEGORY: Category =
    Category { name: "signals", simulated: Vec::new, setup, at_once: 3, checks };

fn setup(providers: &Providers) -> Setup {
    paced(providers);
    providers.raw.serve("stuck", vec![Part::Bytes(stream_head()), Part::Hang]);
    Setup { config: providers.config(&["paced", "stuck"]), ..open(providers) }
}

/// `raw-paced` has a stream of two seconds.
pub(super) fn paced(providers: &Providers) {
    let mut parts = vec![Part::Bytes(stream_head())];
    for _ in 0..40 {
        parts.extend([Part::Bytes(text_event("a piece ")), Part::PauseMs(50)]);
    }
    parts.push(Part::Bytes(stream_end()));
    providers.raw.serve("paced", parts);
}

#[rustfmt::skip]
fn checks() -> Vec<Check> {
    vec![
        Check::new("SIGTERM with 50 streams under way", |site| ends(site, &["TERM"], 50)).within_s(20),
        Check::new("SIGINT with 10 streams under way", |site| ends(site, &["INT"], 10)).within_s(20),
        Check::new("SIGTERM with nothing under way", |site| ends(site, &["TERM"], 0)).within_s(20),
        Check::new("SIGHUP, SIGTERM, SIGHUP", |site| ends(site, &["HUP", "TERM", "HUP"], 5)).within_s(20),
        Check::new("SIGINT twice", twice).within_s(20),
        Check::new("SIGTERM with a stream that does not end", stuck).within_s(20),
        Check::new("300 times SIGHUP under load", storm).within_s(40),
        Check::new("stopped for two seconds", |site| async move {
            let gateway = site.another(|_| ()).await?;
            gateway.signal("STOP").await?;
            sleep(Duration::from_secs(2)).await;
            gateway.signal("CONT").await?;
            is_well(&gateway).await?;
            Ok("it is well".into())
        }),
    ]
}

/// Starts `count` streams of two seconds, and returns when they have begun.
pub(super) async fn streams(
    gateway: &Gateway,
    count: usize,
) -> Result<JoinSet<Result<Reply, Failed>>, Failed> {
    let mut streams = JoinSet::new();
    for n in 0..count {
        let addr = gateway.addr;
        let request = chat("", &question("raw-paced", &format!("Slowly, {n}."), true));
        streams.spawn(async move { call(addr, request, Duration::from_secs(10)).await });
    }
    sleep(Duration::from_millis(700)).await;
    Ok(streams)
}

/// How many of them are whole.
pub(super) async fn whole(mut streams: JoinSet<Result<Reply, Failed>>) -> usize {
    let mut whole = 0;
    while let Some(ended) = streams.join_next().await {
        if let Ok(Ok(reply)) = ended {
            whole += usize::from(reply.is_whole && reply.text().contains("[DONE]"));
        }
    }
    whole
}

async fn ends(site: Arc<Site>, signals: &'static [&'static str], count: usize) -> Seen {
    let gateway = site.another(|_| ()).await?;
    let streams = streams(&gateway, count).await?;
    let from = Instant::now();
    for signal in signals {
        gateway.signal(signal).await?;
        sleep(Duration::from_millis(50)).await;
    }
    let status = gateway.wait_exit(Duration::from_secs(12)).await?;
    let took = from.elapsed();
    let whole = whole(streams).await;
    expect(
        status.code() == Some(0) && whole == count,
        format!("{status} after {took:.1?}, {whole} of {count} streams were whole"),
    )
}

async fn twice(site: Arc<Site>) -> Seen {
    let gateway = site.another(|_| ()).await?;
    let streams = streams(&gateway, 5).await?;
    gateway.signal("INT").await?;
    sleep(Duration::from_millis(200)).await;
    // Perhaps it has ended by then.
    let _ = gateway.signal("INT").await;
    let status = gateway.wait_exit(Duration::from_secs(12)).await?;
    let whole = whole(streams).await;
    let panicked = gateway.output().contains("panicked");
    expect(
        matches!(status.code(), Some(0 | 1 | 130)) && !panicked,
        format!("{status}, {whole} of 5 streams were whole, panicked {panicked}"),
    )
}

async fn stuck(site: Arc<Site>) -> Seen {
    let gateway = site.another(|setup| setup.server += "\nshutdown_s = 1").await?;
    let mut client = Client::connect(gateway.addr).await?;
    client.send(chat("", &question("raw-stuck", "Never.", true))).await;
    sleep(Duration::from_millis(300)).await;
    let from = Instant::now();
    gateway.signal("TERM").await?;
    let status = gateway.wait_exit(Duration::from_secs(10)).await?;
    let took = from.elapsed();
    expect(
        status.code() == Some(1) && took < Duration::from_secs(3),
        format!("{status} after {took:.1?}, it may wait for 1 s"),
    )
}

async fn storm(site: Arc<Site>) -> Seen {
    let gateway = Arc::new(site.another(|_| ()).await?);
    is_well(&gateway).await?;
    let before = gateway.usage()?;
    let under_way = streams(&gateway, 10).await?;
    let load = {
        let gateway = gateway.clone();
        tokio::spawn(async move {
            let mut failed = 0;
            for n in 0..200 {
                let request = chat("", &question("gpt-4o", &format!("And I {n}?"), n % 2 == 0));
                let reply = call(gateway.addr, request, Duration::from_secs(5)).await?;
                failed += usize::from(reply.status != 200 || !reply.is_whole);
                sleep(Duration::from_millis(5)).await;
            }
            Ok::<_, Failed>(failed)
        })
    };
    for _ in 0..300 {
        gateway.signal("HUP").await?;
    }
    let failed = load.await??;
    let whole = whole(under_way).await;
    is_well(&gateway).await?;
    let after = gateway.usage()?;
    expect(
        failed == 0 && whole == 10 && after.rss_mib <= before.rss_mib + 50,
        format!(
            "{failed} of 200 calls failed, {whole} of 10 streams were whole, memory {} -> {} MiB, threads {} -> {}",
            before.rss_mib, after.rss_mib, before.threads, after.threads
        ),
    )
}
