//! Standard output and standard error: closed, full, without a reader, with one who does not read.

use std::{sync::Arc, time::Duration};

use tokio::{
    task::JoinSet,
    time::{Instant, timeout},
};

use super::{open, signals};
use crate::{
    check::{Category, Check, Failed, Seen, expect},
    process::{Gateway, Setup, Sink},
    provider::Providers,
    site::Site,
    wire::{Client, SOON, chat, get, question},
};

/// Each has a process of its own.
pub(crate) const CATEGORY: Category =
    Category { name: "streams", simulated: Vec::new, setup, at_once: 2, checks };

/// Enough for a pipe that nobody reads to be full.
const REQUESTS: usize = 1_500;

fn setup(providers: &Providers) -> Setup {
    signals::paced(providers);
    Setup { config: providers.config(&["paced"]), ..open(providers) }
}

fn checks() -> Vec<Check> {
    let mut all = Vec::new();
    for out in Sink::ALL {
        for err in Sink::ALL {
            let name = format!("output {out:?}, error {err:?}");
            let check = Check::new(name, move |site| with(site, [out, err])).within_s(40);
            let is_quick = out == err || (out == Sink::File && err == Sink::Unread);
            all.push(if is_quick { check } else { check.slow() });
        }
    }
    all.push(Check::new("lines that nobody reads are counted", counted).within_s(60));
    all
}

/// Sends so many requests over eight connections; how many were answered well.
async fn load(gateway: &Gateway, count: usize) -> Result<usize, Failed> {
    let mut callers = JoinSet::new();
    for caller in 0..8 {
        let addr = gateway.addr;
        callers.spawn(async move {
            let mut client = Client::connect(addr).await?;
            let mut good = 0;
            for n in (caller..count).step_by(8) {
                client.send(chat("", &question("gpt-4o", &format!("And I {n}?"), false))).await;
                match client.reply(SOON).await {
                    Some(reply) => good += usize::from(reply.status == 200),
                    None => break,
                }
            }
            Ok::<_, Failed>(good)
        });
    }
    let mut good = 0;
    while let Some(ended) = callers.join_next().await {
        good += ended??;
    }
    Ok(good)
}

async fn with(site: Arc<Site>, streams: [Sink; 2]) -> Seen {
    let gateway = site.another(|setup| setup.streams = streams).await?;
    let good = load(&gateway, REQUESTS).await?;
    let health = get(gateway.addr, "/healthz").await.map(|reply| reply.status);
    let health = health.map_err(|Failed(why)| why);
    let under_way = timeout(SOON, signals::streams(&gateway, 5)).await??;
    let from = Instant::now();
    gateway.signal("TERM").await?;
    let status = gateway.wait_exit(Duration::from_secs(10)).await;
    let status = status.map_or_else(|Failed(why)| why, |status| status.to_string());
    let took = from.elapsed();
    let whole = signals::whole(under_way).await;
    expect(
        good == REQUESTS && health == Ok(200) && whole == 5 && status == "exit status: 0",
        format!(
            "{good} of {REQUESTS} answered, health {health:?}, {whole} of 5 streams were whole, {status} after {took:.1?}"
        ),
    )
}

async fn counted(site: Arc<Site>) -> Seen {
    let gateway = site
        .another(|setup| {
            setup.streams = [Sink::File, Sink::Unread];
            // A line for each frame of each connection: more than the pipe and the queue hold.
            setup.config += "[log]\nlibraries = true\n";
            setup.env.push(("RUST_LOG".into(), "trace".into()));
        })
        .await?;
    let good = load(&gateway, 6_000).await?;
    let metrics = get(gateway.addr, "/metrics").await?.text();
    let line = metrics.lines().find(|line| line.starts_with("steadfast_log_lines_dropped_total"));
    let dropped: f64 = line
        .and_then(|line| line.rsplit_once(' '))
        .and_then(|(_, count)| count.parse().ok())
        .unwrap_or(0.0);
    expect(good == 6_000 && dropped > 0.0, format!("{good} of 6000 answered, {dropped} dropped"))
}
