//! Random faults over real sockets: the real gateway, providers on their own ports, callers with a
//! hand-written HTTP client, and the real clock.
//!
//! The report of a seed that fails has the command to replay it, with `STEADFAST_CHAOS_SEED=n`.
//! `STEADFAST_CHAOS_SEEDS=n` runs seeds 1 to n instead of 1 to 100. Unlike on a paused clock, two
//! runs of one seed differ with the machine's timing.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod callers;
mod faster;
#[path = "../chaos/faults.rs"]
mod faults;

use std::{fmt::Write as _, future::ready, sync::Arc, time::Duration};

use fastrand::Rng;
use steadfast::sim::{self, Entry, FaultPlan, Latency};
use steadfast_tests::{
    gateway::{
        DIALECTS, Rig, RigBuilder,
        http::{HttpRequest, poll_until, within},
        model, provider,
    },
    seeds::{chance, number},
};
use tokio::{sync::Semaphore, task::JoinSet};

use self::callers::{Caller, End};

/// Seeds of a default run.
const SEEDS: u64 = 100;
/// How many of them run at once: most of their time is waiting.
const AT_ONCE: usize = 12;

/// Everything besides the providers.
fn config(rng: &mut Rng) -> String {
    let mut text = String::new();
    let stall = rng.u64(200..600);
    let _ = writeln!(text, "[timeout]\nstall_ms = {stall}\nattempt_ms = {}", rng.u64(300..900));
    let _ = writeln!(text, "pipeline_ms = {}", rng.u64(400..2_500));
    // One invariant here is that a caller gets what one provider sent; resuming and continuing
    // answers have their own tests.
    text += "[resume]\nenabled = false\n[continuation]\nenabled = false\n";
    let _ = writeln!(text, "[retry]\nretries = {}\nbase_ms = {}", rng.u32(0..4), rng.u64(1..30));
    let _ = writeln!(text, "cap_ms = 60\nmax_wait_ms = 80");
    let exhausted = ["fail", "wait", "try_soonest"][rng.usize(..3)];
    let _ = writeln!(text, "[failover]\nwhen_exhausted = {exhausted:?}\nwait_ms = 200");
    if chance(rng, 0.3) {
        let _ = writeln!(text, "hedge_ms = {}", rng.u64(10..200));
    }
    let _ = writeln!(text, "[breaker]\nfailures = {}", rng.u32(1..6));
    let _ = writeln!(text, "[cooldown]");
    for reason in ["server_error", "timeout", "network", "overloaded", "rate_limit"] {
        if rng.bool() {
            let _ = writeln!(text, "{reason} = {}", rng.u32(0..2));
        }
    }
    text
}

fn world(rng: &mut Rng, seed: u64) -> (RigBuilder, String, Vec<FaultPlan>) {
    let text = config(rng);
    let mut rig = Rig::builder().config(&text);
    let mut plans = Vec::new();
    let count = rng.usize(1..=3);
    for dialect in &DIALECTS[..count] {
        let plan = faster::plan(faults::plan(rng, true));
        plans.push(plan.clone());
        let latency = Latency {
            headers: Duration::from_millis(rng.u64(0..20)),
            per_token: Duration::from_micros(rng.u64(0..300)),
            jitter: 0.5,
        };
        let sim =
            provider(*dialect).with_seed(seed).with_latency(latency).with_faults(plan).build();
        rig = rig.provider_with(sim, &format!("models = {{ \"*\" = {:?} }}", model(*dialect)));
    }
    (rig, text, plans)
}

/// Runs one seed: a gateway, its providers and its callers.
async fn run(seed: u64) -> Vec<End> {
    let mut rng = Rng::with_seed(seed);
    let (rig, config, plans) = world(&mut rng, seed);
    let mut rig = rig.start().await;
    let case = format!(
        "STEADFAST_CHAOS_SEED={seed} cargo test -p steadfast-tests --test gateway_chaos\n\
         {config}{plans:#?}"
    );
    let mut callers = JoinSet::new();
    for id in 0..rng.usize(2..=8) {
        callers.spawn(Caller::new(id, &mut rng).call(rig.addr));
    }
    let mut replies = Vec::new();
    while let Some(caller) = callers.join_next().await {
        replies.push(caller.unwrap_or_else(|panic| panic!("{panic}: {case}")));
    }

    // The gateway notices a disconnect at its next read or write.
    poll_until("no request is in flight", || async { in_flight(&rig).await == 0 }).await;
    let mut entries = Vec::new();
    for sim in &rig.sims {
        let journal = sim.provider().journal();
        let closed = |all: &[Entry]| all.iter().all(|entry| entry.end != sim::End::Open);
        entries.extend(within(journal.wait_until(closed)).await);
    }
    // What is cut off between its connection and its first byte is counted, and nobody received
    // it: when its caller leaves, by a hedge, or by a time limit on a machine that stood still.
    let metrics = rig.app.metrics();
    let cut = replies.iter().filter(|(_, reply)| reply.as_ref().is_none_or(callers::is_late));
    let late = metrics.steps().into_iter().filter(|step| step.reason == "timeout");
    let late = late.map(|step| step.times).sum::<u64>();
    let cut = cut.count() as u64 + metrics.count("failover", "hedged") + late;
    let (counted, asked) = (metrics.attempts(), entries.len() as u64);
    assert!((asked..=asked + cut).contains(&counted), "{counted} attempts of {asked}: {case}");
    let mut ends = Vec::new();
    for (caller, reply) in replies {
        match caller.check(reply, &entries) {
            Ok(end) => ends.push(end),
            Err(what) => panic!("{what}\n{caller:?}\n{case}\n{entries:#?}"),
        }
    }
    rig.begin_stop();
    let cut = rig.stopped().await;
    assert_eq!(cut, 0, "connections were cut: {case}");
    ends
}

/// The gateway's count of requests in flight.
async fn in_flight(rig: &Rig) -> u64 {
    let reply = HttpRequest::get("/metrics").send(rig.addr).await;
    let line = reply.text().lines().find_map(|line| line.strip_prefix("steadfast_in_flight "));
    line.expect("the metric is missing").parse().unwrap()
}

/// Open sockets of this process, by their numbers.
fn sockets() -> Vec<String> {
    let files = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let names = files.filter_map(|file| std::fs::read_link(file.path()).ok());
    let names = names.map(|name| name.to_string_lossy().into_owned());
    names.filter(|name| name.starts_with("socket:")).collect()
}

#[test]
fn invariants_hold_over_sockets() {
    let seeds = match number("STEADFAST_CHAOS_SEED") {
        Some(seed) => seed..=seed,
        None => 1..=number("STEADFAST_CHAOS_SEEDS").unwrap_or(SEEDS),
    };
    let count = seeds.end() - seeds.start() + 1;
    let mut runtimes = tokio::runtime::Builder::new_multi_thread();
    let runtimes = runtimes.worker_threads(2).enable_all();
    // The first runtime opens a pair of sockets for the signals of the process, which stay open.
    drop(runtimes.build());
    let before = sockets();
    let runtime = runtimes.build().unwrap();
    let (ends, failed) = runtime.block_on(async {
        let (room, mut running) = (Arc::new(Semaphore::new(AT_ONCE)), JoinSet::new());
        for seed in seeds {
            let room = room.clone();
            running.spawn(async move {
                let _room = room.acquire().await;
                run(seed).await
            });
        }
        let (mut ends, mut failed) = (Vec::new(), Vec::new());
        while let Some(ended) = running.join_next().await {
            match ended {
                Ok(more) => ends.extend(more),
                Err(panic) => failed.push(panic.to_string()),
            }
        }
        (ends, failed)
    });
    assert!(failed.is_empty(), "{} seeds failed; the first: {}", failed.len(), failed[0]);
    let counts = End::ALL.map(|end| (end, ends.iter().filter(|other| **other == end).count()));
    println!("{counts:?}");
    // A few seeds need not have every end.
    let many = count >= SEEDS;
    assert!(!many || counts.iter().all(|(_, count)| *count > 10), "too few: {counts:?}");

    // The tasks of closed connections end one by one.
    let metrics = runtime.metrics();
    runtime.block_on(poll_until("no task runs", || ready(metrics.num_alive_tasks() == 0)));
    drop(runtime);
    let left: Vec<_> = sockets().into_iter().filter(|name| !before.contains(name)).collect();
    assert!(left.is_empty(), "sockets are left open: {left:?}");
}
