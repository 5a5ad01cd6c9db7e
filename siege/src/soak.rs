//! A soak: mixed load for as long as one likes, after which nothing has grown.

use std::{path::Path, sync::Arc, time::Duration};

use parking_lot::Mutex;
use serde_json::json;
use steadfast_sim::{ErrorKind, Fault, FaultPlan, How, PlanRule, RateLimit};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

use crate::{
    check::{Category, Failed},
    checks::soaked,
    process::Usage,
    site::Site,
    wire::{Client, Reply, SOON, call, chat, question},
};

/// What one minute was like.
#[derive(Clone, Copy, Debug)]
struct Minute {
    usage: Usage,
    calls: usize,
    p50: Duration,
    p99: Duration,
}

/// What has been measured since the last minute.
#[derive(Debug, Default)]
struct Measured {
    /// Of callers that are well, at a provider that is well.
    took: Mutex<Vec<Duration>>,
    /// Calls that should have been answered and were not.
    failed: Mutex<Vec<String>>,
}

/// Faults that come and go, by chance.
fn faults() -> FaultPlan {
    let some = |probability: f64, fault: Fault| PlanRule::new(fault).probability(probability);
    FaultPlan::none()
        .rule(some(0.05, Fault::Error(ErrorKind::ServerError)))
        .rule(some(0.05, Fault::rate_limit(RateLimit::after("1"))))
        .rule(some(0.05, Fault::break_after(4, How::Reset)))
        .rule(some(0.05, Fault::break_after(4, How::Stall)))
        .rule(some(0.05, Fault::break_after(2, How::MalformedJson)))
        .rule(some(0.05, Fault::Close))
        .rule(some(0.02, Fault::Hang))
        .seed(7)
}

/// Runs for so many minutes; whether it held.
pub(crate) async fn run(binary: &Path, minutes: u32) -> bool {
    match soak(binary, minutes).await {
        Ok(problems) => {
            problems.iter().for_each(|problem| println!("FAIL {problem}"));
            println!("{}", if problems.is_empty() { "ok   nothing has grown" } else { "failed" });
            problems.is_empty()
        }
        Err(Failed(why)) => {
            println!("FAIL {why}");
            false
        }
    }
}

async fn soak(binary: &Path, minutes: u32) -> Result<Vec<String>, Failed> {
    let category =
        Category { name: "soak", simulated: Vec::new, setup: soaked, at_once: 1, checks: Vec::new };
    let site = Site::start(binary, &category).await?;
    site.providers.fail(faults());
    let measured = Arc::new(Measured::default());
    let mut load = JoinSet::new();
    for worker in 0..4 {
        load.spawn(good_callers(site.clone(), measured.clone(), worker));
    }
    for worker in 0..4 {
        load.spawn(faulty_calls(site.clone(), worker));
    }
    load.spawn(floods(site.clone()));
    load.spawn(slow_callers(site.clone()));
    load.spawn(unread(site.clone()));

    println!("minute     RSS    peak  descriptors  threads    calls      p50      p99");
    let (mut first, mut last): (Option<Minute>, _) = (None, None);
    for n in 1..=minutes {
        let until = Instant::now() + Duration::from_secs(60);
        if let Ok(Some(ended)) = tokio::time::timeout_at(until, load.join_next()).await {
            // They go on for ever, unless something is wrong.
            ended??;
            return Err("a part of the load has ended".into());
        }
        let minute = minute(&site, &measured)?;
        let Minute { usage, calls, p50, p99 } = minute;
        println!(
            "{n:>6} {:>4} MiB {:>4} MiB {:>12} {:>8} {calls:>8} {p50:>8.1?} {p99:>8.1?}",
            usage.rss_mib, usage.peak_mib, usage.descriptors, usage.threads
        );
        first = first.or(Some(minute));
        last = Some(minute);
    }
    load.shutdown().await;
    let (first, last) = first.zip(last).ok_or("it takes at least a minute")?;
    let mut problems = compare(first, last);
    problems.extend(measured.failed.lock().iter().take(5).cloned());
    // Whoever was slow or silent has gone: what they held is given back.
    if let Err(Failed(why)) = site.is_as_before().await {
        problems.push(format!("after the load: {why}"));
    }
    Ok(problems)
}

/// What has grown since the first minute.
fn compare(first: Minute, last: Minute) -> Vec<String> {
    let mut problems = Vec::new();
    let mut holds = |what: &str, holds: bool, from: String, to: String| {
        if !holds {
            problems.push(format!("{what}: {from} -> {to}"));
        }
    };
    let (a, b) = (first.usage, last.usage);
    let memory = b.rss_mib <= a.rss_mib + 50;
    holds("memory in MiB", memory, a.rss_mib.to_string(), b.rss_mib.to_string());
    // A flood may be under way in one and not in the other.
    let descriptors = b.descriptors <= a.descriptors + 100;
    holds("descriptors", descriptors, a.descriptors.to_string(), b.descriptors.to_string());
    holds("threads", b.threads <= a.threads + 4, a.threads.to_string(), b.threads.to_string());
    let p99 = last.p99 <= first.p99 * 2 + Duration::from_millis(50);
    holds("p99", p99, format!("{:?}", first.p99), format!("{:?}", last.p99));
    problems
}

fn minute(site: &Site, measured: &Measured) -> Result<Minute, Failed> {
    let mut took = std::mem::take(&mut *measured.took.lock());
    took.sort_unstable();
    let at = |share: usize| took.get(took.len() * share / 100).copied().unwrap_or_default();
    Ok(Minute { usage: site.gateway.usage()?, calls: took.len(), p50: at(50), p99: at(99) })
}

/// Whole answers, streams and tools, over a connection that is kept.
async fn good_callers(
    site: Arc<Site>,
    measured: Arc<Measured>,
    worker: usize,
) -> Result<(), Failed> {
    let mut client = Client::connect(site.gateway.addr).await?;
    for n in 0_usize.. {
        let content = format!("Question {n} of caller {worker}?");
        let mut body = question("gpt-4o", &content, n % 2 == 0);
        if n % 5 == 0 {
            let tool = json!({"type": "function", "function": {"name": "find", "parameters":
                {"type": "object", "properties": {"q": {"type": "string"}}}}});
            body = json!({"model": "gpt-4o", "stream": n % 2 == 0, "tools": [tool],
                "messages": [{"role": "user", "content": format!("{content} call find")}]})
            .to_string();
        }
        let from = Instant::now();
        client.send(chat("", &body)).await;
        let reply = client.reply(Duration::from_secs(20)).await;
        measured.took.lock().push(from.elapsed());
        match reply {
            Some(Reply { status: 200, is_whole: true, .. }) => {}
            other => {
                let seen = other.map_or_else(|| "no answer".into(), |reply| reply.brief());
                measured.failed.lock().push(format!("a good call: {seen}"));
                client = Client::connect(site.gateway.addr).await?;
            }
        }
        sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// Calls to a provider that fails now and then; callers who leave in the middle.
async fn faulty_calls(site: Arc<Site>, worker: usize) -> Result<(), Failed> {
    for n in 0_usize.. {
        let body = question("faulty-a", &format!("Question {n} of {worker}?"), n % 2 == 0);
        let request = chat("x-steadfast-timeout-ms: 3000\r\n", &body);
        // Some do not wait.
        let patience = if n % 7 == 0 { Duration::from_millis(5) } else { SOON };
        let _ = call(site.gateway.addr, request, patience).await;
        sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

/// Two hundred at once, every ten seconds: questions, a body of 8 MiB, and bytes of no protocol.
async fn floods(site: Arc<Site>) -> Result<(), Failed> {
    let large =
        Arc::new(chat("", &question("raw-taker", &"It was there. ".repeat(600_000), false)));
    loop {
        let mut flood = JoinSet::new();
        for n in 0..200 {
            let (addr, large) = (site.gateway.addr, large.clone());
            flood.spawn(async move {
                match n % 50 {
                    0 => drop(call(addr, large.as_slice(), Duration::from_secs(10)).await),
                    1..10 => drop(call(addr, [0xff; 512], SOON).await),
                    _ => drop(call(addr, chat("", &question("gpt-4o", "hi", true)), SOON).await),
                }
            });
        }
        while flood.join_next().await.is_some() {}
        sleep(Duration::from_secs(10)).await;
    }
}

/// Twenty at a time that send a byte a second, for ten seconds each.
async fn slow_callers(site: Arc<Site>) -> Result<(), Failed> {
    loop {
        let mut slow = JoinSet::new();
        for _ in 0..20 {
            let addr = site.gateway.addr;
            slow.spawn(async move {
                let Ok(mut client) = Client::connect(addr).await else { return };
                client.send("GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\nx-slow: ").await;
                for _ in 0..10 {
                    sleep(Duration::from_secs(1)).await;
                    client.send("y").await;
                }
            });
        }
        while slow.join_next().await.is_some() {}
    }
}

/// Ten at a time that ask for a stream without an end, and do not read it.
async fn unread(site: Arc<Site>) -> Result<(), Failed> {
    loop {
        let mut held = Vec::new();
        for _ in 0..10 {
            let mut client = Client::narrow(site.gateway.addr).await?;
            let body = question("raw-endless", "Say much.", true);
            client.send(chat("x-steadfast-timeout-ms: 5000\r\n", &body)).await;
            held.push(client);
        }
        sleep(Duration::from_secs(10)).await;
    }
}
