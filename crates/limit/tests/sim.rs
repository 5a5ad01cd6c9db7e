//! Against a simulated provider that limits requests and tokens and states it: nothing is configured.
#![allow(clippy::unwrap_used, clippy::cast_precision_loss, reason = "tests")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use steadfast_chat::ChatRequest;
use steadfast_classify::ClassifyLayer;
use steadfast_client::{Credential, LlmClient, Provider, Providers};
use steadfast_core::{CallContext, Dialect, Failure, Reason, Target};
use steadfast_limit::{RateHandle, RateLimitLayer};
use steadfast_sim::{Answer, Journal, KeyLimits, Latency, SimProvider};
use tokio::time::{Instant, sleep_until};
use tower::{Layer, ServiceExt};

const MODEL: &str = "gpt-4o";
const CALLERS: usize = 50;
const RUN: Duration = Duration::from_secs(120);
/// As long as what can be taken at once lasts.
const FREE: Duration = Duration::from_secs(20);

#[derive(Debug, Default)]
struct Counts {
    answered: AtomicU64,
    failed: AtomicU64,
}

struct World {
    journal: Journal,
    handle: RateHandle,
    by_tenant: Vec<u64>,
    failed: u64,
}

impl World {
    /// The share of requests that the provider refused for their rate.
    fn refused(&self) -> f64 {
        let entries = self.journal.entries();
        let refused = entries.iter().filter(|entry| entry.status == Some(429)).count();
        refused as f64 / entries.len() as f64
    }

    fn answered(&self) -> u64 {
        self.journal.entries().iter().filter(|entry| entry.status == Some(200)).count() as u64
    }

    fn tokens(&self) -> u64 {
        let entries = self.journal.entries();
        let sent = entries.iter().filter_map(|entry| entry.sent.as_ref());
        sent.map(|sent| sent.usage.input + sent.usage.output).sum()
    }
}

/// `callers` of each tenant ask, one call after the other, for two minutes.
async fn run(dialect: Dialect, limits: KeyLimits, callers: &[usize], max_output: u64) -> World {
    run_nodes(&[RateLimitLayer::default()], dialect, limits, callers, max_output).await
}

/// The same through these layers in turn, as of several processes.
async fn run_nodes(
    layers: &[RateLimitLayer],
    dialect: Dialect,
    limits: KeyLimits,
    callers: &[usize],
    max_output: u64,
) -> World {
    let journal = Journal::keeping(100_000);
    let words = "word ".repeat(40);
    let sim = SimProvider::builder(dialect)
        .with_model(steadfast_sim::Model::new(MODEL, 128_000, 32_768))
        .with_limits(limits)
        .with_latency(Latency {
            headers: Duration::from_millis(700),
            per_token: Duration::from_millis(5),
            jitter: 0.5,
        })
        .with_journal(&journal)
        .respond(move |_| Some(Answer::text(words.clone())))
        .build();
    let provider =
        Provider::new("sim", dialect).with_credential(Credential::new("main", "sk-anything"));
    let client = LlmClient::with_service(Providers::new([provider]).unwrap(), sim);
    let classified = ClassifyLayer::default().layer(client);
    let services: Vec<_> = layers.iter().map(|layer| layer.layer(classified.clone())).collect();
    let end = Instant::now() + RUN;
    let mut tasks = tokio::task::JoinSet::new();
    let counts: Vec<Arc<Counts>> = callers.iter().map(|_| Arc::default()).collect();
    for (tenant, (count, counts)) in callers.iter().zip(&counts).enumerate() {
        for caller in 0..*count {
            let (service, counts) = (services[caller % services.len()].clone(), counts.clone());
            tasks.spawn(async move {
                let mut number = 0;
                while Instant::now() < end {
                    number += 1;
                    let text = format!("{tenant} {caller} {number} {}", "why? ".repeat(60));
                    let target = Target::new("sim").with_model(MODEL).with_credential("main");
                    let context = CallContext::new()
                        .with_target(target)
                        .with_tenant(format!("tenant {tenant}"));
                    let request = ChatRequest::user(text)
                        .with_model(MODEL)
                        .with_max_output(max_output)
                        .with_context(context);
                    let request = if caller % 2 == 0 { request.streaming() } else { request };
                    let answer = async { service.clone().oneshot(request).await?.collect().await };
                    match answer.await {
                        // At first there is enough for all.
                        Ok(_) if Instant::now() + RUN < end + FREE => 0,
                        Ok(_) => counts.answered.fetch_add(1, Ordering::Relaxed),
                        Err(failure) => {
                            counts.failed.fetch_add(1, Ordering::Relaxed);
                            back_off(&failure, end).await;
                            0
                        }
                    };
                }
            });
        }
    }
    tasks.join_all().await;
    World {
        journal,
        handle: layers[0].handle(),
        by_tenant: counts.iter().map(|one| one.answered.load(Ordering::Relaxed)).collect(),
        failed: counts.iter().map(|one| one.failed.load(Ordering::Relaxed)).sum(),
    }
}

/// A caller obeys a refusal.
async fn back_off(failure: &Failure, end: Instant) {
    assert!(matches!(failure.reason(), Reason::RateLimit | Reason::Budget), "{failure}");
    let wait = failure.retry_after().unwrap_or(Duration::from_secs(1));
    sleep_until((Instant::now() + wait).min(end)).await;
}

/// What a provider of this limit serves in the run at most: all at once, and then at the rate.
fn most(limit: u64) -> f64 {
    limit as f64 * (1.0 + RUN.as_secs_f64() / 60.0)
}

#[tokio::test(start_paused = true)]
async fn a_request_limit_is_used_and_hardly_ever_hit() {
    for dialect in [Dialect::OpenAi, Dialect::Anthropic] {
        let limits = KeyLimits { requests: Some(150), tokens: None };
        let world = run(dialect, limits, &[CALLERS], 400).await;
        let used = world.answered() as f64 / most(150);
        println!(
            "{dialect:?}: {:.2} % refused, {:.1} % used",
            world.refused() * 100.0,
            used * 100.0
        );
        assert!(world.refused() < 0.01, "{dialect:?}: {} refused", world.refused());
        assert!(used >= 0.9, "{dialect:?}: {used} used");
        let quotas = &world.handle.snapshot()[0].quotas;
        assert_eq!((quotas[0].limit, quotas[0].learned), (150, true), "{dialect:?}");
        assert_eq!(quotas[0].period, Duration::from_secs(60));
    }
}

#[tokio::test(start_paused = true)]
async fn so_is_a_limit_on_tokens() {
    for dialect in [Dialect::Anthropic, Dialect::OpenAi] {
        let limits = KeyLimits { requests: Some(1_000), tokens: Some(30_000) };
        let world = run(dialect, limits, &[CALLERS], 400).await;
        let used = world.tokens() as f64 / most(30_000);
        println!(
            "{dialect:?}: {:.2} % refused, {:.1} % used",
            world.refused() * 100.0,
            used * 100.0
        );
        assert!(world.refused() < 0.01, "{dialect:?}: {} refused", world.refused());
        assert!(used >= 0.9, "{dialect:?}: {used} used");
    }
}

/// More than the whole limit of a minute, of which they use a hundredth.
#[tokio::test(start_paused = true)]
async fn so_it_is_by_calls_that_may_write_much() {
    for dialect in [Dialect::Anthropic, Dialect::OpenAi] {
        let limits = KeyLimits { requests: Some(1_000), tokens: Some(30_000) };
        let world = run(dialect, limits, &[CALLERS], 32_000).await;
        let used = world.tokens() as f64 / most(30_000);
        assert!(world.refused() < 0.01, "{dialect:?}: {} refused", world.refused());
        assert!(used >= 0.9, "{dialect:?}: {used} used");
        assert_eq!(world.failed, 0, "{dialect:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn two_tenants_get_the_same_whatever_they_ask() {
    let limits = KeyLimits { requests: Some(150), tokens: None };
    let world = run(Dialect::OpenAi, limits, &[45, 15], 400).await;
    let [greedy, modest] = world.by_tenant[..] else { panic!("two tenants") };
    println!("{greedy} and {modest}, {} failed", world.failed);
    assert!(modest as f64 >= greedy as f64 * 0.8, "{greedy} and {modest}");
    assert_eq!(world.failed, 0);
}

/// Each of them alone would use all of it.
#[cfg(feature = "shared")]
#[tokio::test(start_paused = true)]
async fn four_nodes_keep_to_one_limit_together_and_use_it() {
    use steadfast_core::shared::EmbeddedStore;
    for limits in [
        KeyLimits { requests: Some(150), tokens: None },
        KeyLimits { requests: Some(1_000), tokens: Some(30_000) },
    ] {
        let store = EmbeddedStore::new();
        let layers: Vec<_> = (0..4)
            .map(|node| {
                let layer = RateLimitLayer::default();
                assert!(layer.handle().share(Arc::new(store.join(&format!("node {node}")))));
                layer
            })
            .collect();
        let world = run_nodes(&layers, Dialect::OpenAi, limits, &[64], 400).await;
        let used = match limits.tokens {
            Some(tokens) => world.tokens() as f64 / most(tokens),
            None => world.answered() as f64 / most(150),
        };
        println!("{:.2} % refused, {:.1} % used", world.refused() * 100.0, used * 100.0);
        assert!(world.refused() < 0.005, "{} refused", world.refused());
        assert!(used >= 0.95, "{used} used");
    }
}
