//! Breakers that are saved and restored in another layer, as after a restart.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod support;

use std::sync::Arc;

use steadfast_breaker::{BreakerHandle, BreakerPolicy, CircuitBreakerLayer};
use steadfast_core::circuit::{CircuitCause, CircuitState};
use steadfast_core::{Failure, LeaseEnd, Observer, Permit, PermitKind, Reason, Routed, Target};
use support::*;
use tokio::time::Instant;
use tower::{Layer, Service, ServiceExt, service_fn};

async fn fail(_: PlainRequest) -> Result<Reply, Failure> {
    Err(network())
}

/// Stands for failover.
struct NobodyObserves;

impl Observer for NobodyObserves {
    fn ended(&self, _: LeaseEnd<'_>) {}
}

/// What another process has, of a layer with the same settings.
fn restarted(policy: &BreakerPolicy, handle: &BreakerHandle) -> BreakerHandle {
    let new = CircuitBreakerLayer::new(policy.clone()).unwrap().handle();
    assert_eq!(new.restore(&handle.save(), |_| true).restored, handle.save().len());
    new
}

#[tokio::test(start_paused = true)]
async fn an_open_breaker_is_open_after_a_restart() {
    let layer = CircuitBreakerLayer::new(strict()).unwrap().at_once();
    let mut service = layer.layer(service_fn(fail));
    let other = openai().with_model("other");
    let _ = service.ready().await.unwrap().call(request(&openai())).await.unwrap_err();
    layer.handle().force_open(&Some(other.clone()));
    tokio::time::advance(secs(10)).await;
    let saved = layer.handle().save();
    assert_eq!(saved.len(), 1, "what is forced is not kept");

    let layer = CircuitBreakerLayer::new(strict()).unwrap().at_once();
    let mut transitions = layer.handle().subscribe();
    let counts = layer.handle().restore(&saved, |key| *key == Some(openai()));
    assert_eq!((counts.restored, counts.expired, counts.unknown), (1, 0, 0));
    let opened = transitions.try_recv().unwrap().transition;
    assert_eq!((opened.to, opened.cause), (CircuitState::Open, CircuitCause::Restored));
    let mut service = layer.layer(service_fn(fail));
    let refused = service.ready().await.unwrap().call(request(&openai())).await.unwrap_err();
    // Files have whole milliseconds.
    let wait = refused.retry_after().unwrap().as_secs_f64().round();
    assert_eq!((refused.reason(), wait), (Reason::CircuitOpen, 5.0));
    let passed = service.ready().await.unwrap().call(request(&other)).await.unwrap_err();
    assert_eq!(passed.reason(), Reason::Network);
    // It grows as it would have: its probe fails, and it rests twice as long.
    tokio::time::advance(secs(6)).await;
    let probe = service.ready().await.unwrap().call(request(&openai())).await.unwrap_err();
    assert_eq!(probe.reason(), Reason::Network);
    let snapshot = layer.handle().get(&Some(openai())).unwrap();
    assert_eq!(snapshot.circuit.remaining(Instant::now()), secs(60));
}

#[tokio::test(start_paused = true)]
async fn keys_that_nobody_wants_and_rests_that_are_over_are_counted() {
    let handle = CircuitBreakerLayer::default().handle();
    let key = |name: &str| Some(Target::new(name));
    for (name, wait) in [("gone", 100), ("over", 10), ("rests", 100)] {
        handle.trip(&key(name), Reason::Overloaded, secs(wait));
    }
    handle.trip(&None, Reason::Overloaded, secs(100));
    let saved = handle.save();
    tokio::time::advance(secs(11)).await;
    let handle = CircuitBreakerLayer::default().handle();
    let counts = handle.restore(&saved, |target| *target != key("gone"));
    assert_eq!((counts.restored, counts.expired, counts.unknown), (2, 1, 1));
    let mut known: Vec<_> = handle.snapshot().into_iter().map(|breaker| breaker.key).collect();
    known.sort_by_key(|key| key.as_ref().map(ToString::to_string));
    assert_eq!(known, [None, key("rests")], "of the others nothing is kept");
    // A second time changes nothing.
    assert_eq!(handle.restore(&saved, |_| true).restored, 1, "the one that was left out");
}

#[tokio::test(start_paused = true)]
async fn a_target_that_is_dead_below_failover_still_is() {
    let policy = BreakerPolicy { dead: Some(3), ..BreakerPolicy::default() };
    let routed = |repeats| {
        let mut call = request(&openai());
        let mut routed =
            Routed::new(Arc::new(NobodyObserves), Permit::new(PermitKind::Ordinary, 1));
        routed.repeats = repeats;
        call.context.routed = Some(routed);
        call
    };
    let layer = CircuitBreakerLayer::new(policy.clone()).unwrap().at_once();
    let mut service = layer.layer(service_fn(fail));
    for _ in 0..3 {
        let _ = service.ready().await.unwrap().call(routed(0)).await.unwrap_err();
    }
    // Its rest of a second is over, and it has not answered.
    tokio::time::advance(secs(5)).await;
    let new = restarted(&policy, &layer.handle());
    let layer = CircuitBreakerLayer::new(policy.clone()).unwrap().at_once().sharing(&new);
    let mut service = layer.layer(service_fn(fail));
    let mut reason = async |repeats| {
        service.ready().await.unwrap().call(routed(repeats)).await.unwrap_err().reason()
    };
    assert_eq!(reason(0).await, Reason::Network, "a first attempt always passes");
    assert_eq!(reason(1).await, Reason::Network, "a repetition has its turn");
    assert_eq!(reason(1).await, Reason::CircuitOpen, "and the next one has not");
    // One that was opened by hand before its first call: that call says who decides.
    let handle = CircuitBreakerLayer::new(policy.clone()).unwrap().handle();
    handle.trip(&Some(openai()), Reason::Overloaded, secs(60));
    let layer = CircuitBreakerLayer::new(policy.clone())
        .unwrap()
        .at_once()
        .sharing(&restarted(&policy, &handle));
    let mut service = layer.layer(service_fn(fail));
    let failure = service.ready().await.unwrap().call(routed(0)).await.unwrap_err();
    assert_eq!(failure.reason(), Reason::Network);
}
