//! The breaker, on a paused clock.

use std::{sync::Arc, time::Duration};

use steadfast_core::{Failure, Lease, Reason, circuit::CircuitState};
use tokio::time::{Instant, advance};

use super::SummariserBreaker;
use crate::SummaryPolicy;

fn new() -> Arc<SummariserBreaker> {
    Arc::new(SummariserBreaker::new("acme", SummaryPolicy::default()))
}

fn admit(breaker: &Arc<SummariserBreaker>) -> Option<Lease> {
    breaker.admit(Instant::now()).map(|(lease, _)| lease)
}

fn fail(lease: Lease) {
    lease.failure(&Failure::new(Reason::Unknown, "no"));
}

async fn wait(seconds: u64) {
    advance(Duration::from_secs(seconds)).await;
}

/// A breaker that has just failed often enough.
fn open() -> Arc<SummariserBreaker> {
    let breaker = new();
    for number in 1..=5 {
        fail(admit(&breaker).unwrap());
        assert_eq!(breaker.state() == CircuitState::Open, number == 5, "{number}");
    }
    breaker
}

#[tokio::test(start_paused = true)]
async fn five_failures_in_a_row_open_it_for_a_minute() {
    let breaker = open();
    wait(59).await;
    assert!(admit(&breaker).is_none());
    wait(1).await;
    let (probe, is_probe) = breaker.admit(Instant::now()).unwrap();
    assert!(is_probe && breaker.state() == CircuitState::HalfOpen);
    assert!(admit(&breaker).is_none(), "one tries at a time");
    probe.success();
    assert_eq!(breaker.state(), CircuitState::Closed);
    for _ in 0..4 {
        fail(admit(&breaker).unwrap());
    }
    admit(&breaker).unwrap().success();
    fail(admit(&breaker).unwrap());
    assert_eq!(breaker.state(), CircuitState::Closed, "they were not in a row");
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_fails_is_dropped_or_never_reports() {
    let breaker = open();
    wait(60).await;
    fail(admit(&breaker).unwrap());
    assert_eq!(breaker.state(), CircuitState::Open);
    wait(59).await;
    assert!(admit(&breaker).is_none());
    wait(1).await;
    drop(admit(&breaker).unwrap());
    let silent = admit(&breaker).expect("the next one tries at once");
    wait(29).await;
    assert!(admit(&breaker).is_none());
    wait(1).await;
    let third = admit(&breaker).expect("thirty seconds are enough");
    silent.success();
    assert_eq!(breaker.state(), CircuitState::HalfOpen, "too late to decide");
    third.success();
    assert_eq!(breaker.state(), CircuitState::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_call_admitted_before_it_opened_decides_nothing() {
    let breaker = new();
    let old = admit(&breaker).unwrap();
    let cancelled = admit(&breaker).unwrap();
    for _ in 0..5 {
        fail(admit(&breaker).unwrap());
    }
    old.success();
    drop(cancelled);
    assert_eq!(breaker.state(), CircuitState::Open);
    breaker.reset();
    assert!(!breaker.admit(Instant::now()).unwrap().1);
}
