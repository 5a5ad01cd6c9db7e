//! Providers that several processes observe together.

use std::{sync::Arc, time::Duration};

use steadfast_core::{Failure, Reason, shared::EmbeddedStore};
use steadfast_health::{HealthHandle, HealthPolicy, HealthStatus, ProviderHealthLayer};
use tokio::time::{Instant, advance, sleep};

fn fleet<const N: usize>(store: &EmbeddedStore) -> [HealthHandle; N] {
    std::array::from_fn(|at| {
        let handle = ProviderHealthLayer::default().handle();
        assert!(handle.share(Arc::new(store.join(&format!("node {at}")))));
        handle
    })
}

async fn heard() {
    sleep(Duration::from_millis(1)).await;
}

fn fail(handle: &HealthHandle) {
    let failure = Failure::new(Reason::ServerError, "the model crashed");
    for _ in 0..HealthPolicy::default().failures {
        handle.probed("openai", Err(&failure));
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_degraded_for_one_is_for_all_until_one_sees_it_well() {
    let store = EmbeddedStore::new();
    let nodes: [HealthHandle; 3] = fleet(&store);
    fail(&nodes[0]);
    heard().await;
    for node in &nodes {
        let known = node.get("openai").unwrap();
        assert_eq!(
            (known.status, known.last_failure),
            (HealthStatus::Degraded, Some(Reason::ServerError))
        );
        assert!(node.degraded().contains("openai"));
    }
    // Who comes later knows it, too.
    let [late] = {
        let handle = ProviderHealthLayer::default().handle();
        assert!(handle.share(Arc::new(store.join("late"))));
        [handle]
    };
    heard().await;
    assert!(late.degraded().contains("openai"));
    advance(Duration::from_secs(20)).await;
    for _ in 0..HealthPolicy::default().recover_after {
        nodes[1].probed("openai", Ok(()));
    }
    heard().await;
    for node in nodes.iter().chain([&late]) {
        assert!(node.degraded().is_empty());
    }
}

/// How many probes of one provider these nodes make within a time, each of which has a call once a second.
async fn probes(nodes: &[HealthHandle], time: Duration) -> usize {
    let mut probes = 0;
    for _ in 0..time.as_secs() {
        let now = Instant::now();
        probes += nodes.iter().filter(|node| node.degraded().acquire_probe("openai", now)).count();
        sleep(Duration::from_secs(1)).await;
    }
    probes
}

#[tokio::test(start_paused = true)]
async fn one_of_all_sees_whether_a_provider_is_well() {
    let store = EmbeddedStore::new();
    let nodes: [HealthHandle; 8] = fleet(&store);
    fail(&nodes[0]);
    heard().await;
    // One in 10 s; that it is due somewhere else is found by a call that goes by.
    let time = Duration::from_secs(300);
    let made = probes(&nodes, time).await;
    assert!((20..=30).contains(&made), "{made}");
    // Whoever had the turn has no calls any more, or was another one: somebody has it after a while.
    let left = &nodes[1..];
    let made = probes(left, time).await;
    assert!((15..=30).contains(&made), "{made}");
    // Without the store each makes its part.
    store.set_away(true);
    let made = probes(left, time).await;
    assert!((10..=60).contains(&made), "{made}");
    store.set_away(false);
    heard().await;
    for _ in 0..HealthPolicy::default().recover_after {
        left[3].probed("openai", Ok(()));
    }
    heard().await;
    assert!(left.iter().all(|node| node.degraded().is_empty()));
}

#[tokio::test(start_paused = true)]
async fn what_an_operator_forces_holds_in_one_process_and_a_reset_in_all() {
    let store = EmbeddedStore::new();
    let nodes: [HealthHandle; 2] = fleet(&store);
    nodes[0].force("openai", HealthStatus::Degraded);
    heard().await;
    assert!(nodes[1].degraded().is_empty());
    fail(&nodes[1]);
    nodes[0].force("openai", HealthStatus::Healthy);
    heard().await;
    assert!(nodes[0].degraded().is_empty() && nodes[1].degraded().contains("openai"));
    nodes[0].reset("openai");
    nodes[1].reset("openai");
    heard().await;
    assert!(nodes.iter().all(|node| node.degraded().is_empty()));
}
