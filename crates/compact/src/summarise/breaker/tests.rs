//! The breaker, on a paused clock.

use std::{sync::Arc, time::Duration};

use steadfast_core::{Failure, Reason};
use tokio::time::{Instant, advance};

use super::{Breaker, Permit};
use crate::{SummariserState, SummaryPolicy};

fn new() -> Arc<Breaker> {
    Arc::new(Breaker::new(SummaryPolicy::default()))
}

fn admit(breaker: &Arc<Breaker>) -> Option<Permit> {
    breaker.admit(Instant::now())
}

fn fail(permit: Permit) {
    permit.failure(&Failure::new(Reason::Unknown, "no"));
}

async fn wait(seconds: u64) {
    advance(Duration::from_secs(seconds)).await;
}

/// A breaker that has just failed often enough.
fn open() -> Arc<Breaker> {
    let breaker = new();
    for number in 1..=5 {
        fail(admit(&breaker).unwrap());
        assert_eq!(breaker.state() == SummariserState::Open, number == 5, "{number}");
    }
    breaker
}

#[tokio::test(start_paused = true)]
async fn five_failures_in_a_row_open_it_for_a_minute() {
    let breaker = open();
    wait(59).await;
    assert!(admit(&breaker).is_none());
    wait(1).await;
    let probe = admit(&breaker).unwrap();
    assert!(probe.is_probe && breaker.state() == SummariserState::HalfOpen);
    assert!(admit(&breaker).is_none(), "one tries at a time");
    probe.success();
    assert_eq!(breaker.state(), SummariserState::Closed);
    for _ in 0..4 {
        fail(admit(&breaker).unwrap());
    }
    admit(&breaker).unwrap().success();
    fail(admit(&breaker).unwrap());
    assert_eq!(breaker.state(), SummariserState::Closed, "they were not in a row");
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_fails_is_dropped_or_never_reports() {
    let breaker = open();
    wait(60).await;
    fail(admit(&breaker).unwrap());
    assert_eq!(breaker.state(), SummariserState::Open);
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
    assert_eq!(breaker.state(), SummariserState::HalfOpen, "too late to decide");
    third.success();
    assert_eq!(breaker.state(), SummariserState::Closed);
}

#[tokio::test(start_paused = true)]
async fn who_was_admitted_before_it_opened_decides_nothing() {
    let breaker = new();
    let old = admit(&breaker).unwrap();
    let cancelled = admit(&breaker).unwrap();
    for _ in 0..5 {
        fail(admit(&breaker).unwrap());
    }
    old.success();
    drop(cancelled);
    assert_eq!(breaker.state(), SummariserState::Open);
    breaker.reset();
    assert!(!admit(&breaker).unwrap().is_probe);
}
