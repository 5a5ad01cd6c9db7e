//! A provider goes down for ten minutes: what its callers notice of it, what it is asked meanwhile, and when
//! it is used again.
//!
//! The default stack (`Stack::new(chain)`, nothing set) in front of two providers, three models, twenty
//! calls a second of as many conversations, on a paused clock. The first provider fails from the second
//! minute to the twelfth. `cargo xtask outage` prints the table.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{fmt, sync::Arc, time::Duration};

use fastrand::Rng;
use parking_lot::Mutex;
use steadfast::{
    ChatRequest, Dialect, Stack,
    failover::{Chain, TargetSpec},
    sim::{ErrorKind, Fault, FaultPlan, Journal, RateLimit, SimProvider},
};
use steadfast_tests::{
    harness::{self, CallResult},
    seeds,
};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};

/// Calls a second.
const RATE: f64 = 20.0;

const DOWN: Duration = Duration::from_secs(120);
const UP: Duration = Duration::from_secs(720);
const END: Duration = Duration::from_secs(900);

/// What an outage came to.
struct Outage {
    name: &'static str,
    calls: usize,
    lost: usize,
    /// What each answered call took, sorted; the providers themselves answer at once.
    added: Vec<Duration>,
    /// Calls that were made while the provider was down, and attempts at it meanwhile.
    calls_meanwhile: usize,
    attempts: usize,
    /// From its end until the provider has answered a call again.
    back_after: Option<Duration>,
}

impl Outage {
    fn quantile(&self, share: f64) -> Duration {
        let at = (self.added.len() as f64 * share) as usize;
        self.added[at.min(self.added.len() - 1)]
    }

    /// Attempts at the provider for a call, while it was down.
    fn attempts_a_call(&self) -> f64 {
        self.attempts as f64 / self.calls_meanwhile.max(1) as f64
    }
}

impl fmt::Display for Outage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, calls, lost, .. } = self;
        let [half, most, all] = [0.5, 0.99, 1.0].map(|share| self.quantile(share).as_secs_f64());
        let back = self.back_after.map_or(f64::NAN, |back| back.as_secs_f64());
        write!(
            f,
            "| {name} | {calls} | {lost} | {half:.2} s | {most:.2} s | {all:.2} s | {} ({:.3}) | {back:.1} s |",
            self.attempts,
            self.attempts_a_call()
        )
    }
}

const HEAD: &str = "\
| the first provider | calls | lost | p50 added | p99 added | most added | attempts at it (a call) | used again after |
|---|---|---|---|---|---|---|---|";

fn outage(name: &'static str, spares: usize, fault: Fault, stream: bool) -> Outage {
    seeds::paused().build().unwrap().block_on(async move {
        let dialects = [Dialect::Anthropic, Dialect::OpenAi];
        let sims: Vec<SimProvider> = (0..=spares)
            .map(|at| {
                SimProvider::builder(dialects[at % 2])
                    .with_name(["first", "second"][at])
                    .with_journal(&Journal::keeping(1_000_000))
                    .build()
            })
            .collect();
        let specs = sims.iter().map(|sim| {
            let spec = TargetSpec::new(sim.name()).with_dialect(sim.dialect());
            MODELS
                .into_iter()
                .zip(models(sim.dialect()))
                .fold(spec, |spec, (asked, sent)| spec.with_model(asked, sent))
        });
        let stack = Stack::new(Chain::new(specs).unwrap()).without_guard();
        let service = stack.boxed(harness::client(&sims));
        let began = Instant::now();
        let dead = sims[0].clone();
        let down = tokio::spawn(async move {
            sleep_until(began + DOWN).await;
            dead.set_faults(FaultPlan::always(fault));
            sleep_until(began + UP).await;
            dead.set_faults(FaultPlan::none());
        });
        let took = Arc::new(Mutex::new((Vec::new(), 0)));
        let mut rng = Rng::with_seed(1);
        let (mut calls, mut running) = (0, JoinSet::new());
        while began.elapsed() < END {
            calls += 1;
            let model = MODELS[rng.usize(..3)];
            let mut request = ChatRequest::user(rng.u64(..).to_string()).with_model(model);
            request.context = request.context.with_session(rng.u32(..1_000).to_string());
            let request = if stream { request.streaming() } else { request };
            let (service, took) = (service.clone(), took.clone());
            running.spawn(async move {
                let got = CallResult::of(&service, request).await;
                let mut took = took.lock();
                match got.failure {
                    None => took.0.push(got.took),
                    Some(_) => took.1 += 1,
                }
            });
            sleep(Duration::from_secs_f64(-(1.0 - rng.f64()).ln() / RATE)).await;
            while running.try_join_next().is_some() {}
        }
        while running.join_next().await.is_some() {}
        down.await.unwrap();
        let (mut added, lost) = std::mem::take(&mut *took.lock());
        added.sort();
        let entries = sims[0].journal().entries();
        let while_down = |at: Duration| (DOWN..UP).contains(&at);
        let well = entries.iter().find(|entry| entry.at >= UP && entry.sent.is_some());
        Outage {
            name,
            calls,
            lost,
            added,
            calls_meanwhile: (RATE * (UP - DOWN).as_secs_f64()) as usize,
            attempts: entries.iter().filter(|entry| while_down(entry.at)).count(),
            back_after: well.map(|entry| entry.at - UP),
        }
    })
}

/// The models that callers ask for.
const MODELS: [&str; 3] = ["large", "medium", "small"];

/// What a provider of this dialect calls them.
fn models(dialect: Dialect) -> [&'static str; 3] {
    match dialect {
        Dialect::Anthropic => ["claude-opus-4-5", "claude-sonnet-4-5", "claude-haiku-4-5"],
        _ => ["gpt-4.1", "gpt-4o", "gpt-4o-mini"],
    }
}

#[test]
fn with_a_healthy_spare_callers_hardly_notice() {
    println!("{HEAD}");
    for (name, fault) in [
        ("500", Fault::Error(ErrorKind::ServerError)),
        ("overloaded", Fault::Error(ErrorKind::Overloaded)),
        ("connections refused", Fault::Refused),
        ("429 without a hint", Fault::rate_limit(RateLimit::default())),
        ("429, `retry-after: 20`", Fault::rate_limit(RateLimit::after("20"))),
        ("the key is refused", Fault::Error(ErrorKind::Auth)),
    ] {
        let outage = outage(name, 1, fault, true);
        println!("{outage}");
        assert_eq!(outage.lost, 0, "{name}");
        assert_eq!(outage.quantile(0.99), Duration::ZERO, "{name}: most callers notice nothing");
        // Two attempts more at most, and half a second and a whole one before them.
        assert!(outage.quantile(1.0) <= Duration::from_millis(1_875), "{name}");
        assert!(outage.attempts_a_call() < 0.1, "{name}");
    }
}

#[test]
fn a_dead_provider_that_is_alone_is_asked_hardly_more_than_once_a_call() {
    println!("{HEAD}");
    for (name, fault) in [
        ("alone, 500", Fault::Error(ErrorKind::ServerError)),
        ("alone, connections refused", Fault::Refused),
    ] {
        let outage = outage(name, 0, fault, true);
        println!("{outage}");
        assert!(outage.attempts_a_call() < 1.2, "{name}");
        assert!(outage.back_after.unwrap() < Duration::from_secs(2), "{name}");
    }
}
