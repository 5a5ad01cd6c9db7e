//! Breakers of several processes that share what they know.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod support;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use steadfast_breaker::{BreakerHandle, BreakerPolicy, ByTarget, CircuitBreakerLayer};
use steadfast_core::{
    AtOnce, Failure, Reason, Target,
    circuit::{CircuitCause, CircuitState},
    shared::EmbeddedStore,
};
use support::*;
use tokio::time::{advance, sleep};
use tower::{Layer, ServiceExt, service_fn};

type ByTargetAtOnce = CircuitBreakerLayer<Option<Target>, ByTarget, AtOnce>;

/// Layers of as many processes.
fn fleet<const N: usize>(policy: &BreakerPolicy) -> [ByTargetAtOnce; N] {
    let store = EmbeddedStore::new();
    std::array::from_fn(|at| {
        let layer = CircuitBreakerLayer::new(policy.clone()).unwrap().at_once();
        assert!(layer.handle().share(Arc::new(store.join(&format!("node {at}")))));
        layer
    })
}

/// A provider that counts what it is asked.
#[derive(Clone, Default)]
struct Counting(Arc<(AtomicUsize, AtomicUsize)>);

impl Counting {
    fn asked(&self) -> usize {
        self.0.0.swap(0, Ordering::Relaxed)
    }

    fn set_well(&self, well: bool) {
        self.0.1.store(usize::from(well), Ordering::Relaxed);
    }

    async fn ask(&self, layer: &ByTargetAtOnce) -> Result<Reply, Failure> {
        let provider = self.clone();
        let service = layer.layer(service_fn(move |_: PlainRequest| {
            let counts = provider.0.clone();
            counts.0.fetch_add(1, Ordering::Relaxed);
            let well = counts.1.load(Ordering::Relaxed) > 0;
            std::future::ready(if well { Ok("!") } else { Err(network()) })
        }));
        service.oneshot(request(&openai())).await
    }
}

async fn heard() {
    sleep(Duration::from_millis(1)).await;
}

fn state(handle: &BreakerHandle) -> Option<CircuitState> {
    handle.get(&Some(openai())).map(|breaker| breaker.circuit.state)
}

#[tokio::test(start_paused = true)]
async fn a_breaker_that_opens_opens_everywhere_and_one_probe_closes_all() {
    let layers: [ByTargetAtOnce; 3] = fleet(&strict());
    let mut transitions = layers[2].handle().subscribe();
    let provider = Counting::default();
    assert_eq!(provider.ask(&layers[0]).await.unwrap_err().reason(), Reason::Network);
    heard().await;
    let opened = transitions.try_recv().unwrap().transition;
    assert_eq!((opened.to, opened.cause), (CircuitState::Open, CircuitCause::Shared));
    for layer in &layers {
        assert_eq!(provider.ask(layer).await.unwrap_err().reason(), Reason::CircuitOpen);
    }
    assert_eq!(provider.asked(), 1);
    // All of them could probe. One does, by its second call; and its failure is that of all.
    advance(secs(30)).await;
    for _ in 0..3 {
        for layer in &layers {
            let _ = provider.ask(layer).await;
            heard().await;
        }
    }
    assert_eq!(provider.asked(), 1);
    provider.set_well(true);
    advance(secs(120)).await;
    let mut answered = 0;
    for _ in 0..3 {
        for layer in &layers {
            answered += usize::from(provider.ask(layer).await.is_ok());
            heard().await;
        }
    }
    assert_eq!(
        layers.each_ref().map(|layer| state(&layer.handle())),
        [Some(CircuitState::Closed); 3]
    );
    assert!(answered >= 5, "{answered}: all but those before the probe");
}

#[tokio::test(start_paused = true)]
async fn what_is_forced_stays_and_a_reset_is_one_for_all() {
    let [one, other, forced] = fleet(&strict()).map(|layer| layer.handle());
    let key = Some(openai());
    forced.force_closed(&key);
    one.trip(&key, Reason::Overloaded, secs(60));
    heard().await;
    assert_eq!(state(&other), Some(CircuitState::Open));
    assert_eq!(state(&forced), Some(CircuitState::ForcedClosed));
    other.force_closed(&key);
    heard().await;
    assert_eq!(state(&one), Some(CircuitState::Open), "that holds where it was said");
    assert!(other.reset(&key));
    heard().await;
    assert_eq!(state(&one), Some(CircuitState::Closed));
    tokio::time::advance(Duration::from_millis(1)).await;
    one.trip(&key, Reason::Overloaded, secs(60));
    heard().await;
    // A longer rest is heard, a shorter one is not news.
    other.trip(&key, Reason::Overloaded, secs(600));
    heard().await;
    one.trip(&key, Reason::Overloaded, secs(5));
    heard().await;
    for handle in [&one, &other] {
        let left = handle.get(&key).unwrap().circuit.remaining(tokio::time::Instant::now());
        assert!(left > secs(599), "{left:?}");
    }
    assert!(other.reset(&key));
    heard().await;
    assert_eq!([state(&one), state(&other)], [Some(CircuitState::Closed); 2]);
}

#[tokio::test(start_paused = true)]
async fn a_key_of_ones_own_is_shared_by_its_name() {
    let store = EmbeddedStore::new();
    let by = |request: &PlainRequest| request.text.to_owned();
    let [one, other] = ["one", "other"].map(|name| {
        let handle = CircuitBreakerLayer::new(strict()).unwrap().with_key(by).handle();
        let name_of = |key: &String| (!key.starts_with('-')).then(|| key.clone());
        assert!(handle.share_named(Arc::new(store.join(name)), name_of));
        handle
    });
    for key in ["api.example", "-secret"] {
        one.trip(&key.to_owned(), Reason::Network, secs(60));
    }
    heard().await;
    let keys: Vec<_> = other.snapshot().into_iter().map(|breaker| breaker.key).collect();
    assert_eq!(keys, ["api.example"]);
}
