//! How a call ends when nobody answers.

mod support;

use std::{error::Error, num::NonZeroU32};

use steadfast_core::{BudgetPolicy, Deadline, Failure, Reason, RetryBudget, Usage};
use steadfast_failover::{CooldownFailoverLayer, WhenExhausted};
use support::*;
use tokio::time::{Instant, advance};

fn limited(wait: u64) -> Act {
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
async fn the_end_lists_everything_and_keeps_the_last_failure() {
    let world = World::new();
    world.set("a", fail(Reason::Overloaded)).set("b", fail(Reason::Auth));
    world.set(
        "c",
        fail_with(|| {
            Failure::new(Reason::ServerError, "it broke")
                .with_usage(Usage::new(7, 0))
                .with_attempts(3)
        }),
    );
    let layer = abc().at_once();
    let request = Ask::new();
    let log = request.log();
    let failure = ask(&layer, &world, request).await.unwrap_err();
    assert_eq!(failure.reason(), Reason::Exhausted);
    assert_eq!(trail(&failure), ["a: overloaded", "b: auth", "c: server_error"]);
    assert_eq!(failure.attempts(), 5);
    assert_eq!(failure.message(), "no target is left: 3 failed; last server_error at c: it broke");
    let source = failure.source().unwrap().downcast_ref::<Failure>().unwrap();
    assert_eq!(source.reason(), Reason::ServerError);
    assert_eq!(failure.retry_after(), Some(secs(60)), "the soonest of 120, 600 and 60 s");
    assert_eq!(failure.usage().unwrap().input, Some(7));
    assert_eq!(failure.http_status(), 503);
    let told = log.to_string();
    for step in [
        "failover.cooled a overloaded 120000ms",
        "failover.switched b overloaded",
        "failover.switched c auth",
        "failover.exhausted server_error",
    ] {
        assert!(told.contains(step), "{step} in {told}");
    }
}

#[tokio::test(start_paused = true)]
async fn all_limited_is_a_429_with_the_soonest_hint() {
    let world = World::new();
    world.set("a", limited(90)).set("b", limited(40)).set("c", limited(70));
    let layer = abc().at_once();
    let failure = ask(&layer, &world, Ask::new()).await.unwrap_err();
    assert_eq!((failure.http_status().as_u16(), failure.retry_after()), (429, Some(secs(40))));
    // So is it for the next one, who asks nobody: the providers asked to be left alone.
    world.calls();
    advance(secs(10)).await;
    let failure = ask(&layer, &world, Ask::new()).await.unwrap_err();
    assert!(world.calls().is_empty());
    assert_eq!((failure.http_status().as_u16(), failure.retry_after()), (429, Some(secs(30))));
    assert_eq!((failure.reason(), failure.attempts()), (Reason::Exhausted, 0));
    assert_eq!(trail(&failure)[1], "b: skipped, rate_limit");
    assert!(failure.message().contains("cooling for 60.0 s more after rate_limit"), "{failure}");
}

#[tokio::test(start_paused = true)]
async fn the_operators_bad_keys_are_not_the_callers_401() {
    let world = World::new();
    for name in ["a", "b", "c"] {
        world.set(name, fail(Reason::Auth));
    }
    let failure = ask(&abc().at_once(), &world, Ask::new()).await.unwrap_err();
    assert_eq!(failure.http_status(), 503);
}

#[tokio::test(start_paused = true)]
async fn a_lone_target_speaks_for_itself() {
    let world = World::new();
    world.set("a", limited(90));
    let layer = CooldownFailoverLayer::new(chain(["a"])).at_once();
    let failure = ask(&layer, &world, Ask::new()).await.unwrap_err();
    assert_eq!((failure.reason(), failure.retry_after()), (Reason::RateLimit, Some(secs(90))));
    assert!(failure.trail().is_empty());
    advance(secs(30)).await;
    let failure = ask(&layer, &world, Ask::new()).await.unwrap_err();
    assert_eq!((failure.reason(), failure.retry_after()), (Reason::Cooling, Some(secs(60))));
    assert_eq!((failure.attempts(), failure.http_status().as_u16()), (0, 429));
    assert_eq!(failure.target().unwrap().to_string(), "a");
}

#[tokio::test(start_paused = true)]
async fn a_lone_target_is_never_refused_for_a_guess() {
    let world = World::new();
    world.set("a", fail(Reason::Network));
    let layer = CooldownFailoverLayer::new(chain(["a"])).at_once();
    for _ in 0..3 {
        drop(ask(&layer, &world, Ask::new()).await.unwrap_err());
    }
    assert_eq!(world.calls().len(), 3);
    world.mend("a");
    assert_eq!(ask(&layer, &world, Ask::new()).await.unwrap(), "a");
}

#[tokio::test(start_paused = true)]
async fn fail_asks_nobody() {
    let world = World::new();
    for name in ["a", "b", "c"] {
        world.set(name, fail(Reason::ServerError));
    }
    let layer = abc().with_when_exhausted(WhenExhausted::Fail).at_once();
    drop(ask(&layer, &world, Ask::new()).await.unwrap_err());
    world.calls();
    advance(secs(10)).await;
    let failure = ask(&layer, &world, Ask::new()).await.unwrap_err();
    assert!(world.calls().is_empty());
    assert_eq!(failure.retry_after(), Some(secs(50)));
    assert_eq!(failure.http_status(), 502, "they all broke");
}

#[tokio::test(start_paused = true)]
async fn try_soonest_asks_one_that_nobody_asked_to_spare() {
    let world = World::new();
    world.set("a", limited(25)).set("b", fail(Reason::ServerError)).set("c", fail(Reason::Network));
    let layer = abc().at_once();
    drop(ask(&layer, &world, Ask::new()).await.unwrap_err());
    world.calls();
    advance(secs(1)).await;
    let request = Ask::new();
    let log = request.log();
    let failure = ask(&layer, &world, request).await.unwrap_err();
    assert_eq!(world.calls(), ["c"], "24 s would be too long to wait, and c rests 29 s to b's 59");
    assert!(log.to_string().contains("failover.insisted c network"), "{log}");
    assert_eq!(
        trail(&failure),
        ["a: skipped, rate_limit", "b: skipped, server_error", "c: network"]
    );
    world.mend("c");
    assert_eq!(ask(&layer, &world, Ask::new()).await.unwrap(), "c");
}

#[tokio::test(start_paused = true)]
async fn try_soonest_waits_out_a_short_request_to_wait() {
    let world = World::new();
    world.set("a", limited(15)).set("b", limited(300)).set("c", limited(300));
    let layer = abc().at_once();
    drop(ask(&layer, &world, Ask::new()).await.unwrap_err());
    world.mend("a").calls();
    let start = Instant::now();
    assert_eq!(ask(&layer, &world, Ask::new()).await.unwrap(), "a");
    assert_eq!((start.elapsed(), world.calls()), (secs(15), vec!["a".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn wait_waits_for_the_first_to_come_back() {
    let world = World::new();
    world.set("a", limited(50)).set("b", limited(40)).set("c", limited(300));
    let layer = abc().with_when_exhausted(WhenExhausted::Wait(secs(60))).at_once();
    // The same call comes back to a target that has asked it to wait.
    let start = Instant::now();
    world.set("b", limited(40));
    let mut call = tokio_test::task::spawn(ask(&layer, &world, Ask::new()));
    assert!(call.poll().is_pending());
    world.mend("b");
    assert_eq!(call.await.unwrap(), "b");
    assert_eq!(start.elapsed(), secs(40));
    assert_eq!(world.calls(), ["a", "b", "c", "b"]);
}

#[tokio::test(start_paused = true)]
async fn wait_is_bounded_by_its_own_limit_the_deadline_and_a_second_chance() {
    let world = World::new();
    for name in ["a", "b", "c"] {
        world.set(name, limited(10));
    }
    let layer = abc().with_when_exhausted(WhenExhausted::Wait(secs(60))).at_once();
    let start = Instant::now();
    let failure = ask(&layer, &world, Ask::new()).await.unwrap_err();
    assert_eq!(failure.reason(), Reason::Exhausted);
    assert_eq!(world.calls(), ["a", "b", "c", "a", "b", "c"], "each has one more chance");
    assert_eq!(start.elapsed(), secs(10));

    layer.handle().reset_all();
    let mut hurried = Ask::new();
    hurried.context.deadline = Some(Deadline::after(secs(9)));
    let start = Instant::now();
    let failure = ask(&layer, &world, hurried).await.unwrap_err();
    assert_eq!((start.elapsed(), failure.retry_after()), (secs(0), Some(secs(10))));

    for name in ["a", "b", "c"] {
        world.set(name, limited(61));
    }
    layer.handle().reset_all();
    let start = Instant::now();
    drop(ask(&layer, &world, Ask::new()).await.unwrap_err());
    assert_eq!(start.elapsed(), secs(0), "too long, so not at all");
}

#[tokio::test(start_paused = true)]
async fn a_wait_dropped_is_over() {
    let world = World::new();
    world.set("a", limited(30));
    let layer = CooldownFailoverLayer::new(chain(["a"]))
        .with_when_exhausted(WhenExhausted::Wait(secs(60)))
        .at_once();
    let mut call = tokio_test::task::spawn(ask(&layer, &world, Ask::new()));
    assert!(call.poll().is_pending());
    drop(call);
    advance(secs(60)).await;
    assert_eq!(world.calls(), ["a"]);
}

#[tokio::test(start_paused = true)]
async fn attempts_are_limited_whatever_the_chain() {
    let world = World::new();
    for name in ["a", "b", "c"] {
        world.set(name, fail(Reason::ServerError));
    }
    let mut request = Ask::new();
    request.context.max_attempts = NonZeroU32::new(4);
    request.context.attempts = 2;
    let failure = ask(&abc().at_once(), &world, request).await.unwrap_err();
    assert_eq!(world.calls(), ["a", "b"]);
    assert!(failure.message().contains("all the attempts it may have: 2 failed"), "{failure}");
    assert_eq!(failure.retry_after(), None, "`c` is well");
    let mut spent = Ask::new();
    spent.context.max_attempts = NonZeroU32::new(2);
    spent.context.attempts = 2;
    let failure = ask(&abc().at_once(), &world, spent).await.unwrap_err();
    assert_eq!((failure.reason(), world.calls().len()), (Reason::Budget, 0));
}

#[tokio::test(start_paused = true)]
async fn a_passed_deadline_ends_it() {
    let world = World::new();
    world.set("a", after(secs(3), fail(Reason::ServerError)));
    let mut request = Ask::new();
    request.context.deadline = Some(Deadline::after(secs(2)));
    let failure = ask(&abc().at_once(), &world, request).await.unwrap_err();
    assert_eq!((failure.reason(), world.calls()), (Reason::ServerError, vec!["a".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn every_further_attempt_is_paid_for_and_refunded_when_it_helps() {
    let world = World::new();
    world.set("a", fail(Reason::ServerError)).set("b", fail(Reason::Overloaded));
    let budget = RetryBudget::new(BudgetPolicy { capacity: 20, ..BudgetPolicy::default() });
    let layer = abc().with_budget(budget.clone()).at_once();
    assert_eq!(ask(&layer, &world, Ask::new()).await.unwrap(), "c");
    assert_eq!(budget.remaining(), 20, "14 and 5 were taken out and put back");
    let below = world.seen()[2].ask.context.budget.clone().unwrap();
    assert_eq!(below.remaining(), 20, "the layers below draw from the same one");

    // Skipping what cools costs nothing.
    assert_eq!(ask(&layer, &world, Ask::new()).await.unwrap(), "c");
    assert_eq!(budget.remaining(), 20);

    world.set("c", fail(Reason::ServerError));
    layer.handle().reset_all();
    drop(ask(&layer, &world, Ask::new()).await.unwrap_err());
    assert_eq!(budget.remaining(), 1);
    layer.handle().reset_all();
    world.calls();
    let request = Ask::new();
    let log = request.log();
    let failure = ask(&layer, &world, request).await.unwrap_err();
    assert_eq!((world.calls(), failure.reason()), (vec!["a".to_owned()], Reason::ServerError));
    assert!(log.to_string().contains("failover.stopped"), "{log}");
    world.mend("a");
    layer.handle().reset_all();
    ask(&layer, &world, Ask::new()).await.unwrap();
    assert_eq!(budget.remaining(), 2, "a call that needs nothing puts one back");
}

#[tokio::test(start_paused = true)]
async fn the_calls_own_budget_counts_when_the_layer_has_none() {
    let world = World::new();
    world.set("a", fail(Reason::ServerError));
    let budget = RetryBudget::new(BudgetPolicy { capacity: 3, ..BudgetPolicy::default() });
    let mut request = Ask::new();
    request.context.budget = Some(budget);
    let failure = ask(&abc().at_once(), &world, request).await.unwrap_err();
    assert_eq!((failure.reason(), world.calls().len()), (Reason::ServerError, 1));
}

#[tokio::test(start_paused = true)]
async fn a_refusal_of_the_breaker_below_costs_nothing_and_says_when() {
    let refused =
        || fail_with(|| Failure::refused(Reason::CircuitOpen, "").with_retry_after(Some(secs(12))));
    let world = World::new();
    world.set("a", refused()).set("b", refused()).set("c", refused());
    let budget = RetryBudget::new(BudgetPolicy { capacity: 0, ..BudgetPolicy::default() });
    let layer = abc().with_budget(budget).at_once();
    let failure = ask(&layer, &world, Ask::new()).await.unwrap_err();
    assert_eq!(world.calls(), ["a", "b", "c"]);
    assert_eq!((failure.attempts(), failure.retry_after()), (0, Some(secs(12))));
    let snapshot = layer.handle().snapshot();
    let resting: Vec<_> =
        snapshot.cooling().map(|health| (health.errors, health.cooling.unwrap().reason)).collect();
    assert_eq!(resting, [(0, Reason::CircuitOpen); 3], "no failure of anybody's");
}
