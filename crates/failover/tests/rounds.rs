//! Rounds over the targets when nobody answers: their pauses, their limits, what they cost.

#![allow(clippy::unwrap_used, reason = "helpers of a test")]

mod support;

use std::{num::NonZeroU32, time::Duration};

use steadfast_core::{BudgetPolicy, Deadline, Failure, Reason, RetryBudget, TimeLimit};
use steadfast_failover::{CooldownFailoverLayer, TargetSpec};
use support::*;
use tokio::time::{Instant, advance};

fn layer(names: &[&str]) -> CooldownFailoverLayer {
    CooldownFailoverLayer::new(chain(names.iter().copied()))
}

fn budget(capacity: u32) -> RetryBudget {
    RetryBudget::new(BudgetPolicy { capacity, ..BudgetPolicy::default() })
}

/// When `name` was asked, in milliseconds.
fn times_of(name: &str, times: &[(String, u128)]) -> Vec<u128> {
    times.iter().filter(|(at, _)| at == name).map(|(_, time)| *time).collect()
}

fn names(times: &[(String, u128)]) -> String {
    times.iter().map(|(at, _)| at.as_str()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_target_alone_is_asked_ten_times_with_growing_pauses() {
    let (layer, providers) = (layer(&["a"]).at_once(), Providers::new());
    providers.set("a", fail(Reason::ServerError));
    let start = Instant::now();
    let failure = send(&layer, &providers, PlainRequest::new()).await.unwrap_err();
    let times = times_of("a", &providers.times(start));
    let pauses: Vec<_> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let usual = [250, 500, 1_000, 2_000, 4_000, 8_000, 8_000, 8_000, 8_000];
    assert_eq!(pauses.len(), usual.len());
    for (pause, usual) in pauses.iter().zip(usual) {
        // Timers are exact to a millisecond.
        assert!((usual..=usual + usual / 4 + 1).contains(pause), "{pauses:?}");
    }
    // Its own failure, and not that of a chain.
    assert_eq!((failure.reason(), failure.attempts()), (Reason::ServerError, 10));
    assert!(failure.trail().is_empty());
    let waited = start.elapsed().as_millis() - failure.waited().as_millis();
    assert!(waited < 10, "timers are exact to a millisecond");
}

#[tokio::test(start_paused = true)]
async fn several_targets_are_asked_round_by_round_ten_times_in_all() {
    let (layer, providers) = (abc().at_once(), Providers::new());
    providers.set_all(&["a", "b", "c"], &fail(Reason::ServerError));
    let start = Instant::now();
    let failure = send(&layer, &providers, PlainRequest::new()).await.unwrap_err();
    let times = providers.times(start);
    assert_eq!(names(&times), "abcabcabca");
    assert_eq!((failure.reason(), failure.attempts()), (Reason::Exhausted, 10));
    assert_eq!(failure.trail().len(), 10);
    // A short pause, and then until the first of them is back from its rest.
    let times = times_of("a", &times);
    assert!((250..=313).contains(&times[1]), "{times:?}");
    assert_eq!((times[2] - times[1], times[3] - times[2]), (2_000, 3_000));
}

#[tokio::test(start_paused = true)]
async fn a_later_round_may_answer() {
    let (layer, providers) = (abc().at_once(), Providers::new());
    providers.set_all(&["a", "b", "c"], &after(secs(1), fail(Reason::Overloaded)));
    let request = PlainRequest::new();
    let log = request.log();
    let mut call = tokio_test::task::spawn(send(&layer, &providers, request));
    for _ in 0..3 {
        assert!(call.poll().is_pending());
        advance(secs(1)).await;
    }
    assert!(call.poll().is_pending());
    providers.repair("b").calls();
    assert_eq!(call.await.unwrap(), "b");
    assert_eq!(providers.calls(), ["a", "b"]);
    let log = log.to_string();
    assert!(log.contains("failover.waited a "), "{log}");
    assert!(log.contains("failover.switched a overloaded"), "{log}");
}

#[tokio::test(start_paused = true)]
async fn each_target_is_asked_once_however_many_there_are() {
    let many: Vec<_> = (0..13).map(|n| n.to_string()).collect();
    let layer = CooldownFailoverLayer::new(chain(many.clone())).at_once();
    let providers = Providers::new();
    for name in &many {
        providers.set(name, fail(Reason::Network));
    }
    let failure = send(&layer, &providers, PlainRequest::new()).await.unwrap_err();
    assert_eq!((providers.calls(), failure.attempts()), (many, 13));
}

#[tokio::test(start_paused = true)]
async fn a_smaller_model_that_stands_in_is_asked_again_too() {
    let spec = TargetSpec::new("a").with_downgrade("big", ["small"]);
    let layer = CooldownFailoverLayer::new(chain([spec])).at_once();
    let providers = Providers::new();
    providers.set("a/big", fail(Reason::ModelNotFound));
    send(&layer, &providers, PlainRequest::model("big")).await.unwrap();
    providers.set("a/small", after(secs(1), fail(Reason::Overloaded))).calls();
    let mut call = tokio_test::task::spawn(send(&layer, &providers, PlainRequest::model("big")));
    assert!(call.poll().is_pending());
    providers.repair("a/small");
    assert_eq!(call.await.unwrap(), "a/small");
    assert_eq!(providers.calls(), ["a/small", "a/small"]);
}

#[tokio::test(start_paused = true)]
async fn what_can_not_pass_is_asked_once() {
    let hang = || Failure::new(Reason::Timeout, "").with_time_limit(TimeLimit::Stall);
    for action in [fail_with(hang), fail(Reason::Unsupported), fail(Reason::Auth)] {
        let (layer, providers) = (layer(&["a", "b"]).at_once(), Providers::new());
        providers.set("a", action).set("b", fail(Reason::ServerError));
        drop(send(&layer, &providers, PlainRequest::new()).await.unwrap_err());
        let calls = providers.calls().concat();
        assert_eq!(calls, "abbbbbbbbb");
    }
}

#[tokio::test(start_paused = true)]
async fn waits_are_at_most_half_a_minute_with_a_spare_and_a_minute_alone() {
    // The layer below has waited so long for each failure.
    for (chain, cooled, waited, calls) in [
        (&["a", "b"][..], None, 14, "abab"),
        (&["a", "b"], None, 15, "ab"),
        (&["a"], None, 59, "aa"),
        (&["a"], None, 60, "a"),
        // What refuses is no spare.
        (&["a", "b"], Some("b"), 59, "aa"),
        (&["a", "b"], Some("b"), 60, "a"),
    ] {
        let (layer, providers) = (layer(chain).at_once(), Providers::new());
        if let Some(cooled) = cooled {
            layer.handle().cool(&target(cooled), secs(600));
        }
        let slow = move || Failure::new(Reason::ServerError, "").with_waited(secs(waited));
        providers.set_all(chain, &fail_with(slow));
        drop(send(&layer, &providers, PlainRequest::new()).await.unwrap_err());
        assert_eq!(providers.calls().concat(), calls, "{chain:?} {cooled:?} {waited}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_hint_binds_the_call_that_it_answers() {
    let (layer, providers) = (layer(&["a", "b"]).at_once(), Providers::new());
    providers.set("a", limited(5)).set("b", fail(Reason::ServerError));
    let start = Instant::now();
    drop(send(&layer, &providers, PlainRequest::new()).await.unwrap_err());
    let times = providers.times(start);
    let (a, b) = (times_of("a", &times), times_of("b", &times));
    assert_eq!((a[0], a[1]), (0, 5_000), "as soon as it may");
    assert!(a.windows(2).all(|pair| pair[1] - pair[0] >= 5_000), "{a:?}");
    assert!(b[1] < 5_000, "meanwhile the other is asked: {b:?}");
}

#[tokio::test(start_paused = true)]
async fn when_all_ask_for_a_wait_the_call_waits_for_the_soonest() {
    for (a, b, soonest, wait) in [(40, 20, "b", 20), (45, 50, "a", 45), (60, 61, "a", 60)] {
        let (layer, providers) = (layer(&["a", "b"]).at_once(), Providers::new());
        providers.set("a", limited(a)).set("b", limited(b));
        let (start, request) = (Instant::now(), PlainRequest::new());
        let log = request.log();
        let mut call = tokio_test::task::spawn(send(&layer, &providers, request));
        assert!(call.poll().is_pending());
        providers.repair(soonest);
        assert_eq!(call.await.unwrap(), soonest);
        assert_eq!((start.elapsed(), providers.calls().len()), (secs(wait), 3));
        let waited = format!("failover.waited {soonest} {wait}000ms");
        assert!(log.to_string().contains(&waited), "{log}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_longer_than_a_minute_is_final_for_its_call() {
    // Alone it is the failure of the call, at once.
    let (alone, providers) = (layer(&["a"]).at_once(), Providers::new());
    providers.set("a", limited(61));
    let start = Instant::now();
    let failure = send(&alone, &providers, PlainRequest::new()).await.unwrap_err();
    assert_eq!((start.elapsed(), providers.calls().len()), (secs(0), 1));
    assert_eq!((failure.reason(), failure.retry_after()), (Reason::RateLimit, Some(secs(61))));
    // Others go on without it.
    let layer = layer(&["a", "b"]).at_once();
    providers.set("b", fail(Reason::ServerError));
    drop(send(&layer, &providers, PlainRequest::new()).await.unwrap_err());
    assert_eq!(providers.calls().concat(), "abbbbbbbbb");
}

#[tokio::test(start_paused = true)]
async fn a_long_wait_is_not_believed_of_a_target_that_has_answered_lately() {
    for (ago, asked_again) in [(120, true), (121, false)] {
        let (layer, providers) = (layer(&["a"]).at_once(), Providers::new());
        send(&layer, &providers, PlainRequest::new()).await.unwrap();
        advance(secs(ago)).await;
        providers.set("a", limited(3_600)).calls();
        drop(send(&layer, &providers, PlainRequest::new()).await.unwrap_err());
        assert_eq!(providers.calls().len() > 1, asked_again, "{ago} s ago");
    }
}

#[tokio::test(start_paused = true)]
async fn no_wait_lasts_until_the_deadline() {
    let (layer, providers) = (layer(&["a"]).at_once(), Providers::new());
    for (hint, left, calls) in [(10, 11, 2), (10, 10, 1)] {
        providers.set("a", limited(hint));
        let mut request = PlainRequest::new();
        request.context.deadline = Some(Deadline::after(secs(left)));
        drop(send(&layer, &providers, request).await.unwrap_err());
        assert_eq!(providers.calls().len(), calls, "{hint} s of {left}");
        layer.handle().reset_all();
    }
}

#[tokio::test(start_paused = true)]
async fn the_calls_own_limit_of_attempts_holds_over_all_rounds() {
    let (layer, providers) = (abc().at_once(), Providers::new());
    providers.set_all(&["a", "b", "c"], &fail(Reason::ServerError));
    let mut request = PlainRequest::new();
    request.context.max_attempts = NonZeroU32::new(5);
    let failure = send(&layer, &providers, request).await.unwrap_err();
    assert_eq!(providers.calls().concat(), "abcab");
    assert!(failure.message().contains("all the attempts it may have: 5 failed"), "{failure}");
}

#[tokio::test(start_paused = true)]
async fn moves_and_two_repetitions_of_a_target_cost_nothing() {
    let providers = Providers::new();
    providers.set_all(&["a", "b", "c"], &fail(Reason::ServerError));
    // A failure after something else than throttling costs 14.
    for (chain, capacity, calls, left) in [
        (&["a"][..], 0, "aaa", 0),
        (&["a"], 13, "aaa", 13),
        (&["a"], 14, "aaaa", 0),
        (&["a"], 30, "aaaaa", 2),
        (&["a", "b", "c"], 0, "abcabcabc", 0),
        (&["a", "b"], 14, "abababa", 0),
    ] {
        let budget = budget(capacity);
        let layer = layer(chain).with_budget(budget.clone()).at_once();
        let request = PlainRequest::new();
        let log = request.log();
        let failure = send(&layer, &providers, request).await.unwrap_err();
        assert_eq!(providers.calls().concat(), calls, "{chain:?} {capacity}");
        assert_eq!(budget.remaining(), left, "{chain:?} {capacity}");
        assert!(log.to_string().contains("failover.stopped"), "{log}");
        let reason = if chain.len() == 1 { Reason::ServerError } else { Reason::Exhausted };
        assert_eq!(failure.reason(), reason);
    }
}

#[tokio::test(start_paused = true)]
async fn the_layer_below_repeats_too() {
    // It has asked three times, and two of these were free.
    let providers = Providers::new();
    let thrice = || Failure::new(Reason::ServerError, "").with_attempts(3);
    providers.set_all(&["a", "b"], &fail_with(thrice));
    let layer = layer(&["a", "b"]).with_budget(budget(0)).at_once();
    drop(send(&layer, &providers, PlainRequest::new()).await.unwrap_err());
    assert_eq!(providers.calls().concat(), "ab", "a move is free, a third repetition is not");
}

#[tokio::test(start_paused = true)]
async fn what_can_not_be_paid_is_left_out_and_others_are_waited_for() {
    let (layer, providers) =
        (layer(&["a", "b"]).with_budget(budget(0)).at_once(), Providers::new());
    providers.set("a", fail(Reason::ServerError)).set("b", limited(20));
    let start = Instant::now();
    let mut call = tokio_test::task::spawn(send(&layer, &providers, PlainRequest::new()));
    assert!(call.poll().is_pending());
    providers.repair("b");
    assert_eq!(call.await.unwrap(), "b");
    let times = providers.times(start);
    assert_eq!((names(&times), times_of("b", &times)), ("abaab".to_owned(), vec![0, 20_000]));
}

#[tokio::test(start_paused = true)]
async fn an_answer_puts_back_what_its_call_has_drawn() {
    let (budget, providers) = (budget(100), Providers::new());
    let layer = layer(&["a"]).with_budget(budget.clone()).at_once();
    providers.set("a", after(secs(1), fail(Reason::ServerError)));
    let mut call = tokio_test::task::spawn(send(&layer, &providers, PlainRequest::new()));
    while budget.remaining() > 100 - 3 * 14 {
        assert!(call.poll().is_pending());
        advance(Duration::from_millis(500)).await;
    }
    providers.repair("a");
    assert_eq!(call.await.unwrap(), "a");
    assert_eq!(budget.remaining(), 100);
}

#[tokio::test(start_paused = true)]
async fn the_budget_of_the_request_is_used_when_the_layer_has_none() {
    let providers = Providers::new();
    providers.set("a", fail(Reason::ServerError));
    let mut request = PlainRequest::new();
    request.context.budget = Some(budget(14));
    drop(send(&layer(&["a"]).at_once(), &providers, request).await.unwrap_err());
    assert_eq!(providers.calls().concat(), "aaaa");
}

#[tokio::test(start_paused = true)]
async fn calls_that_wait_have_a_limit_beyond_which_they_end_with_what_they_have() {
    let budget = RetryBudget::new(BudgetPolicy { max_waiting: 4, ..BudgetPolicy::default() });
    let (layer, providers) =
        (layer(&["a"]).at_once().with_budget(budget.clone()), Providers::new());
    providers.set("a", fail(Reason::ServerError));
    let mut waiting: Vec<_> = (0..3)
        .map(|_| tokio_test::task::spawn(send(&layer, &providers, PlainRequest::new())))
        .collect();
    for call in &mut waiting {
        assert!(call.poll().is_pending());
    }
    assert_eq!(budget.waiting(), 3);
    let start = Instant::now();
    let (request, log) = (PlainRequest::new(), PlainRequest::new().log());
    let request = PlainRequest { context: request.context.with_log(log.clone()), ..request };
    let failure = send(&layer, &providers, request).await.unwrap_err();
    assert_eq!((failure.reason(), failure.attempts()), (Reason::ServerError, 1));
    assert!(failure.is_crowded(), "whoever called may ask again");
    assert_eq!(start.elapsed(), secs(0));
    assert!(log.to_string().contains("too many calls wait already"), "{log}");
    // A place is free when a call that waits is dropped, asks again, or ends.
    drop(waiting.pop());
    assert_eq!(budget.waiting(), 2);
    providers.repair("a");
    for call in waiting {
        assert_eq!(call.await.unwrap(), "a");
    }
    assert_eq!(budget.waiting(), 0);
}

/// A limit of ours that has room again at `free`, above a target that answers.
fn limited_until(free: Instant) -> Action {
    let wait = move || free.saturating_duration_since(Instant::now());
    fail_with(move || Failure::refused(Reason::Budget, "our limit").with_retry_after(Some(wait())))
}

#[tokio::test(start_paused = true)]
async fn what_our_own_limit_holds_back_is_asked_once_there_is_room() {
    let (layer, providers) = (layer(&["a", "b"]).at_once(), Providers::new());
    let start = Instant::now();
    let free = start + Duration::from_millis(1_500);
    providers.set("a", limited_until(free)).set("b", fail(Reason::ServerError));
    let mut call = tokio_test::task::spawn(send(&layer, &providers, PlainRequest::new()));
    assert!(call.poll().is_pending());
    providers.set("a", Action::Answer);
    assert_eq!(call.await.unwrap(), "a");
    assert!(start.elapsed() >= Duration::from_millis(1_500));
    assert!(start.elapsed() < Duration::from_secs(3));
    let asked = providers.received().into_iter().filter(|one| one.at == "a");
    let returns: Vec<_> = asked.map(|one| one.request.context.routed.unwrap().is_return).collect();
    assert_eq!(returns, [false, true]);
}

#[tokio::test(start_paused = true)]
async fn a_target_alone_behind_our_own_limit_has_waited_as_long_as_it_may() {
    let (layer, providers) = (layer(&["a"]).at_once(), Providers::new());
    let start = Instant::now();
    providers.set("a", limited_until(start + Duration::from_secs(5)));
    let failure = send(&layer, &providers, PlainRequest::new()).await.unwrap_err();
    assert_eq!((failure.reason(), start.elapsed()), (Reason::Budget, Duration::ZERO));
    assert_eq!(failure.retry_after(), Some(Duration::from_secs(5)));
}
