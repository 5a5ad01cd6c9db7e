//! The same weather over real sockets: the real gateway, providers on their own ports, callers who
//! write HTTP by hand, and time that really passes.
//!
//! A seed that fails says how to replay it: `STEADFAST_CHAOS_SEED=n`. `STEADFAST_CHAOS_SEEDS=n`
//! tries seeds 1 to n instead of 1 to 100. Unlike those on a paused clock, two runs of one seed
//! differ in what the machine's own timing decides.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod callers;
#[path = "../chaos/faults.rs"]
mod faults;
mod tame;

use std::{env, fmt::Write as _, sync::Arc, time::Duration};

use fastrand::Rng;
use steadfast::sim::{self, Entry, FaultPlan, Latency};
use steadfast_tests::gateway::{
    DIALECTS, Rig, RigBuilder, http::Ask, http::within, model, provider,
};
use tokio::{
    sync::Semaphore,
    task::JoinSet,
    time::{Instant, sleep},
};

use self::callers::{Caller, End};

/// How many seeds are tried when nobody says.
const SEEDS: u64 = 100;
/// How many of them at once: most of their time is waiting.
const AT_ONCE: usize = 12;

fn number(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is {text:?}; it takes a number")))
}

fn chance(dice: &mut Rng, probability: f64) -> bool {
    dice.f64() < probability
}

fn maybe<T>(dice: &mut Rng, make: impl FnOnce(&mut Rng) -> T) -> Option<T> {
    if dice.bool() { Some(make(dice)) } else { None }
}

/// Everything besides the providers.
fn config(dice: &mut Rng) -> String {
    let mut text = String::new();
    let stall = dice.u64(200..600);
    let _ = writeln!(text, "[timeout]\nstall_ms = {stall}\nattempt_ms = {}", dice.u64(300..900));
    let _ = writeln!(text, "pipeline_ms = {}", dice.u64(400..2_500));
    // One law here is that a caller is given what one call was: what goes on with answers has tests
    // of its own.
    text += "[resume]\nenabled = false\n[continuation]\nenabled = false\n";
    let _ = writeln!(text, "[retry]\nretries = {}\nbase_ms = {}", dice.u32(0..4), dice.u64(1..30));
    let _ = writeln!(text, "cap_ms = 60\nmax_wait_ms = 80");
    let exhausted = ["fail", "wait", "try_soonest"][dice.usize(..3)];
    let _ = writeln!(text, "[failover]\nwhen_exhausted = {exhausted:?}\nwait_ms = 200");
    if chance(dice, 0.3) {
        let _ = writeln!(text, "hedge_ms = {}", dice.u64(10..200));
    }
    let _ = writeln!(text, "[breaker]\nfailures = {}", dice.u32(1..6));
    let _ = writeln!(text, "[cooldown]");
    for reason in ["server_error", "timeout", "network", "overloaded", "rate_limit"] {
        if dice.bool() {
            let _ = writeln!(text, "{reason} = {}", dice.u32(0..2));
        }
    }
    text
}

fn world(dice: &mut Rng, seed: u64) -> (RigBuilder, String, Vec<FaultPlan>) {
    let text = config(dice);
    let mut rig = Rig::builder().config(&text);
    let mut plans = Vec::new();
    let count = dice.usize(1..=3);
    for dialect in &DIALECTS[..count] {
        let plan = tame::plan(faults::plan(dice, true));
        plans.push(plan.clone());
        let latency = Latency {
            headers: Duration::from_millis(dice.u64(0..20)),
            per_token: Duration::from_micros(dice.u64(0..300)),
            jitter: 0.5,
        };
        let sim =
            provider(*dialect).with_seed(seed).with_latency(latency).with_faults(plan).build();
        rig = rig.provider_with(sim, &format!("models = {{ \"*\" = {:?} }}", model(*dialect)));
    }
    (rig, text, plans)
}

/// One gateway, its providers and its callers, from beginning to end.
async fn run(seed: u64) -> Vec<End> {
    let mut dice = Rng::with_seed(seed);
    let (rig, config, plans) = world(&mut dice, seed);
    let mut rig = rig.start().await;
    let case = format!(
        "STEADFAST_CHAOS_SEED={seed} cargo test -p steadfast-tests --test gateway_chaos\n\
         {config}{plans:#?}"
    );
    let mut callers = JoinSet::new();
    for id in 0..dice.usize(2..=8) {
        callers.spawn(Caller::new(id, &mut dice).call(rig.addr));
    }
    let mut told = Vec::new();
    while let Some(caller) = callers.join_next().await {
        told.push(caller.unwrap_or_else(|panic| panic!("{panic}: {case}")));
    }

    // Who left is noticed when the gateway next looks at the connection.
    within(async {
        while in_flight(&rig).await > 0 {
            sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let mut entries = Vec::new();
    for sim in &rig.sims {
        let journal = sim.provider().journal();
        let closed = |all: &[Entry]| all.iter().all(|entry| entry.end != sim::End::Open);
        entries.extend(within(journal.wait_until(closed)).await);
    }
    let mut ends = Vec::new();
    for (caller, reply) in told {
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

/// What the gateway says of requests under way.
async fn in_flight(rig: &Rig) -> u64 {
    let reply = Ask::get("/metrics").send(rig.addr).await;
    let line = reply.text().lines().find_map(|line| line.strip_prefix("steadfast_in_flight "));
    line.expect("it says how many").parse().unwrap()
}

/// Open sockets of this process, by their numbers.
fn sockets() -> Vec<String> {
    let files = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let names = files.filter_map(|file| std::fs::read_link(file.path()).ok());
    let names = names.map(|name| name.to_string_lossy().into_owned());
    names.filter(|name| name.starts_with("socket:")).collect()
}

#[test]
fn whatever_happens_over_sockets() {
    let seeds = match number("STEADFAST_CHAOS_SEED") {
        Some(seed) => seed..=seed,
        None => 1..=number("STEADFAST_CHAOS_SEEDS").unwrap_or(SEEDS),
    };
    let count = seeds.end() - seeds.start() + 1;
    let mut runtimes = tokio::runtime::Builder::new_multi_thread();
    let runtimes = runtimes.worker_threads(2).enable_all();
    // The first opens a pair of sockets for the signals of the process, which stay.
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
    // A few seeds need not have everything.
    let tried = count >= SEEDS;
    assert!(!tried || counts.iter().all(|(_, count)| *count > 10), "too quiet: {counts:?}");

    // Closed connections are noticed one by one.
    let metrics = runtime.metrics();
    let began = Instant::now();
    runtime.block_on(async {
        while metrics.num_alive_tasks() > 0 && began.elapsed() < Duration::from_secs(10) {
            sleep(Duration::from_millis(5)).await;
        }
    });
    assert_eq!(metrics.num_alive_tasks(), 0, "tasks live on");
    drop(runtime);
    let left: Vec<_> = sockets().into_iter().filter(|name| !before.contains(name)).collect();
    assert!(left.is_empty(), "sockets are left open: {left:?}");
}
