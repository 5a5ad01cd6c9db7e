//! How a call ends when no target answers.

mod support;

use std::{error::Error, num::NonZeroU32};

use steadfast_core::{BudgetPolicy, Deadline, Failure, Reason, RetryBudget, Usage};
use steadfast_failover::{CooldownFailoverLayer, WhenExhausted};
use support::*;
use tokio::time::{Instant, advance};

fn limited(wait: u64) -> Action {
    fail_with(move || {
        Failure::new(Reason::RateLimit, "slow down")
            .with_status(http::StatusCode::TOO_MANY_REQUESTS)
            .with_retry_after(Some(secs(wait)))
    })
}

fn trail(failure: &Failure) -> Vec<String> {
    failure.trail().iter().map(ToString::to_string).collect()
}

#[tokio::test(start_paused = true)]
async fn the_failure_lists_all_attempts_and_has_the_last_one_as_source() {
    let providers = Providers::new();
    providers.set("a", fail(Reason::Overloaded)).set("b", fail(Reason::Auth));
    providers.set(
        "c",
        fail_with(|| {
            Failure::new(Reason::ServerError, "it broke")
                .with_usage(Usage::new(7, 0))
                .with_attempts(3)
        }),
    );
    let layer = abc().at_once();
    let request = PlainRequest::new();
    let log = request.log();
    let failure = send(&layer, &providers, request).await.unwrap_err();
    assert_eq!(failure.reason(), Reason::Exhausted);
    assert_eq!(trail(&failure), ["a: overloaded", "b: auth", "c: server_error"]);
    assert_eq!(failure.attempts(), 5);
    assert_eq!(failure.message(), "no target is left: 3 failed; last server_error at c: it broke");
    let source = failure.source().unwrap().downcast_ref::<Failure>().unwrap();
    assert_eq!(source.reason(), Reason::ServerError);
    assert_eq!(failure.retry_after(), Some(secs(60)), "the soonest of 120, 600 and 60 s");
    assert_eq!(failure.usage().unwrap().input, Some(7));
    assert_eq!(failure.http_status(), 503);
    let steps = log.to_string();
    for step in [
        "failover.cooled a overloaded 120000ms",
        "failover.switched b overloaded",
        "failover.switched c auth",
        "failover.exhausted server_error",
    ] {
        assert!(steps.contains(step), "{step} in {steps}");
    }
}

#[tokio::test(start_paused = true)]
async fn all_limited_is_a_429_with_the_soonest_hint() {
    let providers = Providers::new();
    providers.set("a", limited(90)).set("b", limited(40)).set("c", limited(70));
    let layer = abc().at_once();
    let failure = send(&layer, &providers, PlainRequest::new()).await.unwrap_err();
    assert_eq!((failure.http_status().as_u16(), failure.retry_after()), (429, Some(secs(40))));
    // The next call has the same failure, without an attempt: the hints are kept.
    providers.calls();
    advance(secs(10)).await;
    let failure = send(&layer, &providers, PlainRequest::new()).await.unwrap_err();
    assert!(providers.calls().is_empty());
    assert_eq!((failure.http_status().as_u16(), failure.retry_after()), (429, Some(secs(30))));
    assert_eq!((failure.reason(), failure.attempts()), (Reason::Exhausted, 0));
    assert_eq!(trail(&failure)[1], "b: skipped, rate_limit");
    assert!(failure.message().contains("cooling for 60.0 s more after rate_limit"), "{failure}");
}

#[tokio::test(start_paused = true)]
async fn the_operators_bad_keys_are_not_the_callers_401() {
    let providers = Providers::new();
    for name in ["a", "b", "c"] {
        providers.set(name, fail(Reason::Auth));
    }
    let failure = send(&abc().at_once(), &providers, PlainRequest::new()).await.unwrap_err();
    assert_eq!(failure.http_status(), 503);
}

#[tokio::test(start_paused = true)]
async fn a_single_target_returns_its_own_failure() {
    let providers = Providers::new();
    providers.set("a", limited(90));
    let layer = CooldownFailoverLayer::new(chain(["a"])).at_once();
    let failure = send(&layer, &providers, PlainRequest::new()).await.unwrap_err();
    assert_eq!((failure.reason(), failure.retry_after()), (Reason::RateLimit, Some(secs(90))));
    assert!(failure.trail().is_empty());
    advance(secs(30)).await;
    let failure = send(&layer, &providers, PlainRequest::new()).await.unwrap_err();
    assert_eq!((failure.reason(), failure.retry_after()), (Reason::Cooling, Some(secs(60))));
    assert_eq!((failure.attempts(), failure.http_status().as_u16()), (0, 429));
    assert_eq!(failure.target().unwrap().to_string(), "a");
}

#[tokio::test(start_paused = true)]
async fn a_single_target_is_called_in_spite_of_a_cooldown_without_a_hint() {
    let providers = Providers::new();
    providers.set("a", fail(Reason::Network));
    let layer = CooldownFailoverLayer::new(chain(["a"])).at_once();
    for _ in 0..3 {
        drop(send(&layer, &providers, PlainRequest::new()).await.unwrap_err());
    }
    assert_eq!(providers.calls().len(), 3);
    providers.repair("a");
    assert_eq!(send(&layer, &providers, PlainRequest::new()).await.unwrap(), "a");
}

#[tokio::test(start_paused = true)]
async fn fail_makes_no_call() {
    let providers = Providers::new();
    for name in ["a", "b", "c"] {
        providers.set(name, fail(Reason::ServerError));
    }
    let layer = abc().with_when_exhausted(WhenExhausted::Fail).at_once();
    drop(send(&layer, &providers, PlainRequest::new()).await.unwrap_err());
    providers.calls();
    advance(secs(10)).await;
    let failure = send(&layer, &providers, PlainRequest::new()).await.unwrap_err();
    assert!(providers.calls().is_empty());
    assert_eq!(failure.retry_after(), Some(secs(50)));
    assert_eq!(failure.http_status(), 502, "all have the same reason");
}

#[tokio::test(start_paused = true)]
async fn try_soonest_calls_a_target_without_a_hint() {
    let providers = Providers::new();
    providers
        .set("a", limited(25))
        .set("b", fail(Reason::ServerError))
        .set("c", fail(Reason::Network));
    let layer = abc().at_once();
    drop(send(&layer, &providers, PlainRequest::new()).await.unwrap_err());
    providers.calls();
    advance(secs(1)).await;
    let request = PlainRequest::new();
    let log = request.log();
    let failure = send(&layer, &providers, request).await.unwrap_err();
    assert_eq!(
        providers.calls(),
        ["c"],
        "24 s are too long to wait, and c cools for 29 s, b for 59 s"
    );
    assert!(log.to_string().contains("failover.insisted c network"), "{log}");
    assert_eq!(
        trail(&failure),
        ["a: skipped, rate_limit", "b: skipped, server_error", "c: network"]
    );
    providers.repair("c");
    assert_eq!(send(&layer, &providers, PlainRequest::new()).await.unwrap(), "c");
}

#[tokio::test(start_paused = true)]
async fn try_soonest_waits_for_a_short_hint() {
    let providers = Providers::new();
    providers.set("a", limited(15)).set("b", limited(300)).set("c", limited(300));
    let layer = abc().at_once();
    drop(send(&layer, &providers, PlainRequest::new()).await.unwrap_err());
    providers.repair("a").calls();
    let start = Instant::now();
    assert_eq!(send(&layer, &providers, PlainRequest::new()).await.unwrap(), "a");
    assert_eq!((start.elapsed(), providers.calls()), (secs(15), vec!["a".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn wait_waits_for_the_first_cooldown_to_end() {
    let providers = Providers::new();
    providers.set("a", limited(50)).set("b", limited(40)).set("c", limited(300));
    let layer = abc().with_when_exhausted(WhenExhausted::Wait(secs(60))).at_once();
    // The same call tries a target again after its hint.
    let start = Instant::now();
    providers.set("b", limited(40));
    let mut call = tokio_test::task::spawn(send(&layer, &providers, PlainRequest::new()));
    assert!(call.poll().is_pending());
    providers.repair("b");
    assert_eq!(call.await.unwrap(), "b");
    assert_eq!(start.elapsed(), secs(40));
    assert_eq!(providers.calls(), ["a", "b", "c", "b"]);
}

#[tokio::test(start_paused = true)]
async fn wait_is_bounded_by_its_limit_the_deadline_and_one_more_attempt_each() {
    let providers = Providers::new();
    for name in ["a", "b", "c"] {
        providers.set(name, limited(10));
    }
    let layer = abc().with_when_exhausted(WhenExhausted::Wait(secs(60))).at_once();
    let start = Instant::now();
    let failure = send(&layer, &providers, PlainRequest::new()).await.unwrap_err();
    assert_eq!(failure.reason(), Reason::Exhausted);
    assert_eq!(providers.calls(), ["a", "b", "c", "a", "b", "c"], "each has one more attempt");
    assert_eq!(start.elapsed(), secs(10));

    layer.handle().reset_all();
    let mut urgent = PlainRequest::new();
    urgent.context.deadline = Some(Deadline::after(secs(9)));
    let start = Instant::now();
    let failure = send(&layer, &providers, urgent).await.unwrap_err();
    assert_eq!((start.elapsed(), failure.retry_after()), (secs(0), Some(secs(10))));

    for name in ["a", "b", "c"] {
        providers.set(name, limited(61));
    }
    layer.handle().reset_all();
    let start = Instant::now();
    drop(send(&layer, &providers, PlainRequest::new()).await.unwrap_err());
    assert_eq!(start.elapsed(), secs(0), "too long, so not at all");
}

#[tokio::test(start_paused = true)]
async fn a_dropped_wait_makes_no_call() {
    let providers = Providers::new();
    providers.set("a", limited(30));
    let layer = CooldownFailoverLayer::new(chain(["a"]))
        .with_when_exhausted(WhenExhausted::Wait(secs(60)))
        .at_once();
    let mut call = tokio_test::task::spawn(send(&layer, &providers, PlainRequest::new()));
    assert!(call.poll().is_pending());
    drop(call);
    advance(secs(60)).await;
    assert_eq!(providers.calls(), ["a"]);
}

#[tokio::test(start_paused = true)]
async fn attempts_are_limited_over_the_chain() {
    let providers = Providers::new();
    for name in ["a", "b", "c"] {
        providers.set(name, fail(Reason::ServerError));
    }
    let mut request = PlainRequest::new();
    request.context.max_attempts = NonZeroU32::new(4);
    request.context.attempts = 2;
    let failure = send(&abc().at_once(), &providers, request).await.unwrap_err();
    assert_eq!(providers.calls(), ["a", "b"]);
    assert!(failure.message().contains("all the attempts it may have: 2 failed"), "{failure}");
    assert_eq!(failure.retry_after(), None, "`c` is not cooling");
    let mut spent = PlainRequest::new();
    spent.context.max_attempts = NonZeroU32::new(2);
    spent.context.attempts = 2;
    let failure = send(&abc().at_once(), &providers, spent).await.unwrap_err();
    assert_eq!((failure.reason(), providers.calls().len()), (Reason::Budget, 0));
}

#[tokio::test(start_paused = true)]
async fn a_passed_deadline_ends_it() {
    let providers = Providers::new();
    providers.set("a", after(secs(3), fail(Reason::ServerError)));
    let mut request = PlainRequest::new();
    request.context.deadline = Some(Deadline::after(secs(2)));
    let failure = send(&abc().at_once(), &providers, request).await.unwrap_err();
    assert_eq!((failure.reason(), providers.calls()), (Reason::ServerError, vec!["a".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn every_further_attempt_is_reserved_and_refunded_on_success() {
    let providers = Providers::new();
    providers.set("a", fail(Reason::ServerError)).set("b", fail(Reason::Overloaded));
    let budget = RetryBudget::new(BudgetPolicy { capacity: 20, ..BudgetPolicy::default() });
    let layer = abc().with_budget(budget.clone()).at_once();
    assert_eq!(send(&layer, &providers, PlainRequest::new()).await.unwrap(), "c");
    assert_eq!(budget.remaining(), 20, "14 and 5 were taken out and put back");
    let inner = providers.received()[2].request.context.budget.clone().unwrap();
    assert_eq!(inner.remaining(), 20, "inner layers draw from the same budget");

    // Skipping a cooling target costs nothing.
    assert_eq!(send(&layer, &providers, PlainRequest::new()).await.unwrap(), "c");
    assert_eq!(budget.remaining(), 20);

    providers.set("c", fail(Reason::ServerError));
    layer.handle().reset_all();
    drop(send(&layer, &providers, PlainRequest::new()).await.unwrap_err());
    assert_eq!(budget.remaining(), 1);
    layer.handle().reset_all();
    providers.calls();
    let request = PlainRequest::new();
    let log = request.log();
    let failure = send(&layer, &providers, request).await.unwrap_err();
    assert_eq!((providers.calls(), failure.reason()), (vec!["a".to_owned()], Reason::ServerError));
    assert!(log.to_string().contains("failover.stopped"), "{log}");
    providers.repair("a");
    layer.handle().reset_all();
    send(&layer, &providers, PlainRequest::new()).await.unwrap();
    assert_eq!(budget.remaining(), 2, "a successful first attempt puts one token back");
}

#[tokio::test(start_paused = true)]
async fn the_budget_of_the_request_is_used_when_the_layer_has_none() {
    let providers = Providers::new();
    providers.set("a", fail(Reason::ServerError));
    let budget = RetryBudget::new(BudgetPolicy { capacity: 3, ..BudgetPolicy::default() });
    let mut request = PlainRequest::new();
    request.context.budget = Some(budget);
    let failure = send(&abc().at_once(), &providers, request).await.unwrap_err();
    assert_eq!((failure.reason(), providers.calls().len()), (Reason::ServerError, 1));
}

#[tokio::test(start_paused = true)]
async fn a_refusal_of_an_inner_breaker_costs_nothing_and_keeps_its_hint() {
    let refused =
        || fail_with(|| Failure::refused(Reason::CircuitOpen, "").with_retry_after(Some(secs(12))));
    let providers = Providers::new();
    providers.set("a", refused()).set("b", refused()).set("c", refused());
    let budget = RetryBudget::new(BudgetPolicy { capacity: 0, ..BudgetPolicy::default() });
    let layer = abc().with_budget(budget).at_once();
    let failure = send(&layer, &providers, PlainRequest::new()).await.unwrap_err();
    assert_eq!(providers.calls(), ["a", "b", "c"]);
    assert_eq!((failure.attempts(), failure.retry_after()), (0, Some(secs(12))));
    let snapshot = layer.handle().snapshot();
    let cooling: Vec<_> =
        snapshot.cooling().map(|health| (health.errors, health.cooling.unwrap().reason)).collect();
    assert_eq!(cooling, [(0, Reason::CircuitOpen); 3], "no failure of a target");
}
